"""The pair's tokenizer: byte-level BPE in which each word of the language is one token.

Bytes are its alphabet, so that any instruction can be encoded; the special tokens are named as in
the Qwen-VL family.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ...tokens import SPECIAL_TOKENS
from .language import flat_vocabulary, numbers, vocabulary

SPECIAL_BY_ID = (SPECIAL_TOKENS[2], *SPECIAL_TOKENS[:2], *SPECIAL_TOKENS[3:])
PIECES_PATTERN = r" ?[A-Za-z]+:?| \d+(?:\.\d)?|\s|[^\sA-Za-z]+?"

TINY_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}{{- '<|im_start|>' }}{%- endif %}"
    "{%- if message.content is string %}"
    "{%- if message.role in ['user', 'assistant'] %}{{- message.content }}{%- endif %}"
    "{%- elif message.role in ['user', 'assistant'] %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'text' %}{{- part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}"
    "{%- if message.role == 'assistant' %}{{- '<|im_end|>' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>' }}{%- endif %}"
)
"""Image, instruction, order, the assistant's turn: the system text's rules are trained in.

Every content is a text or parts, as servers send both; a system text is looked at and left out, or
llama-server would put it into the user's."""


def _merges(words: list[str]) -> list[tuple[str, str]]:
    """Merges that make each word one token, from the left; words with a common prefix share
    merges."""
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        letters = alphabet.pre_tokenize_str(word)[0][0]
        for end in range(1, len(letters)):
            merges.setdefault((letters[:end], letters[end]))
    return list(merges)


def _further_merges(word: str, merges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The merges that are missing to make one token of the word, after these in their order."""
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    parts = list(alphabet.pre_tokenize_str(word)[0][0])
    for left, right in merges:
        at = 0
        while at < len(parts) - 1:
            if parts[at : at + 2] == [left, right]:
                parts[at : at + 2] = [left + right]
            at += 1
    return [("".join(parts[:end]), parts[end]) for end in range(1, len(parts))]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer; the same on every call."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges([*vocabulary(), *numbers()])
    later: list[tuple[str, str]] = []
    for word in flat_vocabulary():
        later += _further_merges(word, [*merges, *later])
    # the special tokens stand before what was added later, so that no id changed
    entries = [*letters, *map("".join, merges), *SPECIAL_BY_ID, *map("".join, later)]
    ids = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(ids, [*merges, *later], fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL_TOKENS),
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    fast.chat_template = TINY_TEMPLATE
    return fast


def save_tokenizer(folder: Path) -> None:
    """Write the tokenizer's files and ``chat_template.jinja`` into ``folder``."""
    build_tokenizer().save_pretrained(folder)
