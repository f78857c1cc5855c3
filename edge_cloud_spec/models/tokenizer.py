"""Text to tokens and back, and the digest that identifies a checkpoint's vocabulary.

Needs ``tokenizers`` and jinja2 alone; both are imported when a checkpoint is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import refuse
from .families import FAMILIES, QWEN, QWEN_3_5

if TYPE_CHECKING:
    import tokenizers

# The names of special tokens that have a meaning of their own.
NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# transformers rebuilds what is of these classes: its tokens, cut into words by the class's rule.
GPT2 = "GPT2Tokenizer"
AS_WRITTEN = ("PreTrainedTokenizer", "TokenizersBackend")  # without ``Fast``
_LETTER = {QWEN: r"\p{L}", QWEN_3_5: r"\p{L}\p{M}"}  # the later rule keeps marks with their letter
WORDS = {
    rule: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?["
    + letter
    + r"]+|\p{N}| ?[^\s"
    + letter
    + r"\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for rule, letter in _LETTER.items()
}
END_OF_TEXT = "<|endoftext|>"
# The special tokens that each of these classes has where its files name none.
USUAL = {
    **{rule: dict.fromkeys(("unk_token", "eos_token", "pad_token"), END_OF_TEXT) for rule in WORDS},
    GPT2: dict.fromkeys(("unk_token", "bos_token", "eos_token"), END_OF_TEXT),
}
# Those without a name.
EXTRA_TOKENS, OLD_EXTRA_TOKENS = "extra_special_tokens", "additional_special_tokens"


class Tokenizer:
    """A checkpoint's tokenizer: those methods of transformers' that this package uses, by the same
    names and with the same results.

    ``special``: the text of special tokens by name; templates read it. ``chat_template``: the
    default one; None if there is none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: Mapping[str, str],
        chat_template: str | None = None,
    ) -> None:
        self.backend_tokenizer, self._special = backend, dict(special)
        self.chat_template = chat_template

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        """``input_ids``: the tokens of a text. Nothing is added to it: templates write all."""
        return {"input_ids": self.backend_tokenizer.encode(text, add_special_tokens=False).ids}

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens; incomplete UTF-8 becomes a replacement character."""
        ids = [int(token) for token in tokens]
        return self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        """The ids of all tokens, by their text."""
        return self.backend_tokenizer.get_vocab()

    @property
    def added_tokens_decoder(self) -> dict[int, tokenizers.AddedToken]:
        """The added tokens by id, as ``tokenizers`` has them: ``content``, ``special``."""
        return self.backend_tokenizer.get_added_tokens_decoder()

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text; None if there is none."""
        return self.convert_tokens_to_ids(self._special.get("eos_token", ""))

    def convert_ids_to_tokens(self, index: int) -> str | None:
        """The token's text; None for an unused id."""
        return self.backend_tokenizer.id_to_token(index)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """The token's id; that of the unknown token, or None, if there is no such token."""
        found = self.backend_tokenizer.token_to_id(token)
        unknown = self._special.get("unk_token")
        if found is None and unknown is not None:
            return self.backend_tokenizer.token_to_id(unknown)
        return found

    def apply_chat_template(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        chat_template: str,
        tokenize: Literal[False],
        **given: Any,
    ) -> str:
        """The text of chat messages; ``given``: further names for the template, such as
        ``add_generation_prompt``. Raises what the template raises."""
        from .chat_template import compiled

        names = {"tools": None, "documents": None, **self._special, **given}
        return compiled(chat_template).render(messages=list(messages), **names)


def load_tokenizer(directory: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a checkpoint's directory, as transformers loads it.

    tokenizer.json is taken as it is written, or cut by the rule of ``QWEN`` or ``GPT2``. config:
    the content of config.json. UserError: a kind that is not implemented; other errors are of
    damaged files.
    """
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE

    own = _read(directory / "tokenizer_config.json")
    file = directory / "tokenizer.json"
    backend = Backend.from_file(str(file))
    rule = _rule(own.get("tokenizer_class") or config.get("tokenizer_class"), config, backend)
    refuse(
        (
            not isinstance(backend.model, BPE),
            f"{file} is of the kind {type(backend.model).__name__}, which is not implemented: "
            "take a model with byte-pair encoding",
        ),
        (
            rule not in (None, *USUAL),
            f"{directory} names the tokenizer {rule}, whose own rule of cutting words is "
            "not implemented: set tokenizer_class to TokenizersBackend in tokenizer_config.json, "
            "and it is taken as tokenizer.json has it",
        ),
    )
    written = backend.get_added_tokens_decoder()
    if rule is not None:
        backend = _cut(Backend(backend.model), rule, bool(own.get("add_prefix_space")))
        own = USUAL[rule] | own
    added = {
        int(index): AddedToken(**token)
        for index, token in own.get("added_tokens_decoder", {}).items()
    }
    if not own.get(EXTRA_TOKENS) and OLD_EXTRA_TOKENS in own:
        own[EXTRA_TOKENS] = own.pop(OLD_EXTRA_TOKENS)
    if "added_tokens_decoder" not in own:
        own |= _read(directory / "special_tokens_map.json")  # of older files
        added |= written
    by_text = {token.content: token for token in added.values()}
    named, others = _special_tokens(own, by_text)
    for token in added.values():
        token.special = token.special or token.content in map(_text, named.values())
    tokens = [token for _, token in sorted(added.items())]
    known = {*by_text, *(token.content for token in backend.get_added_tokens_decoder().values())}
    for new in (*named.values(), *others):
        if _text(new) not in known:
            tokens.append(new if isinstance(new, AddedToken) else AddedToken(new, special=True))
    backend.add_tokens(tokens)
    if rule is not None:
        texts = dict.fromkeys(map(_text, (*named.values(), *others)))
        backend.add_tokens([AddedToken(text, special=True) for text in texts])
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(own.get("split_special_tokens"))
    special_texts = {name: _text(token) for name, token in named.items()}
    return Tokenizer(backend, special_texts, _chat_template(directory, own))


def _rule(named: object, config: Mapping[str, Any], backend: tokenizers.Tokenizer) -> str | None:
    """The class by whose rule words are cut; None: as tokenizer.json has it."""
    kind, family = str(named).removesuffix("Fast"), FAMILIES.get(str(config.get("model_type")))
    if family is not None and family.tokenizer and (family.always_this_tokenizer or named is None):
        return family.tokenizer
    # A class of Llama's that is not of bytes would be rebuilt.
    is_bytes = "ByteLevel" in str(backend.pre_tokenizer)
    as_written = kind in AS_WRITTEN or (kind == "LlamaTokenizer" and is_bytes)
    return None if named is None or as_written else kind


def _cut(backend: tokenizers.Tokenizer, rule: str, add_prefix_space: bool) -> tokenizers.Tokenizer:
    """Cut words by the rule of a class."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    is_qwen = rule in WORDS
    cut = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=not is_qwen)
    backend.decoder, backend.pre_tokenizer = decoders.ByteLevel(), cut
    if is_qwen:
        words = pre_tokenizers.Split(Regex(WORDS[rule]), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([words, cut])
        backend.normalizer = normalizers.NFC()
    return backend


def _special_tokens(
    own: Mapping[str, Any], by_text: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    """The special tokens by name, and those without one; each is a text, or an added token."""
    from tokenizers import AddedToken

    def token_of(given: Any) -> Any:
        if isinstance(given, dict):
            flags = {name: value for name, value in given.items() if name != "__type"}
            given = AddedToken(**{"special": True, **flags})
        return given

    def tokens_of(names: Iterable[str], kinds: Any) -> dict[str, Any]:
        return {name: token_of(own[name]) for name in names if isinstance(own.get(name), kinds)}

    found = tokens_of(NAMED_TOKENS, str | dict)
    found = {name: by_text.get(_text(token), token) for name, token in found.items()}
    # The last two are no tokens, and nothing is added for them.
    known = (*NAMED_TOKENS, "add_bos_token", "add_eos_token")
    others = [name for name in own if name.endswith("_token") and name not in known]
    more = tokens_of(others, str)  # of the model's own, such as image_token
    extra = own[EXTRA_TOKENS] if EXTRA_TOKENS in own else own.get(OLD_EXTRA_TOKENS)
    if isinstance(extra, dict):
        more, extra = more | extra, None
    if not isinstance(extra, list | None):
        raise TypeError(f"{EXTRA_TOKENS} is {extra!r}, which is no list")
    saved = [name for name in others if isinstance(own[name], dict) and "__type" in own[name]]
    more = tokens_of(saved, dict) | (more or own.get("model_specific_special_tokens") or {})
    return found | more, [token_of(given) for given in extra or ()]


def _text(token: Any) -> str:
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return "" if token is None else str(getattr(token, "content", token))


def _chat_template(directory: Path, own: Mapping[str, Any]) -> str | None:
    """The default chat template; files of their own go before tokenizer_config.json."""
    files = [directory / "chat_template.jinja"]
    named = {file.stem: file for file in files if file.is_file()}
    named |= {f.stem: f for f in (directory / "additional_chat_templates").glob("*.jinja")}
    if named:
        default = named.get("chat_template", named.get("default"))
        return default.read_text("utf-8") if default else None
    template = own.get("chat_template")
    if isinstance(template, list):
        template = {each["name"]: each["template"] for each in template}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _read(file: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if there is none."""
    if not file.is_file():
        return {}
    content = json.loads(file.read_text("utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} is not a JSON object")
    return content


def tokens_of(tokenizer: Any) -> list[str | None]:
    """The token text of each id; None for an unused id."""
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    return [by_id.get(index) for index in range(max(by_id) + 1)]


def tokenizer_digest(tokenizer: Any) -> bytes:
    """A 16-byte hash of the text of all ids."""
    text = "\0".join("" if token is None else token for token in tokens_of(tokenizer))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


class TextStream:
    """Decodes a growing answer to text; holds back a last character whose bytes are incomplete."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # The newest tokens, and how much of their text was returned. The first ``_before`` of them
        # are there since some tokenizers drop the first space of what they decode.
        self._tokens: list[int] = []
        self._returned, self._before = 0, 0
        self.text = ""

    def add(self, tokens: Sequence[int], *, ended: bool = False) -> str:
        """The text that these tokens add; ``ended``: the answer is over, so nothing is held
        back."""
        self._tokens += tokens
        text = self._decoded()
        whole = text if ended else text.rstrip("\N{REPLACEMENT CHARACTER}")
        new = whole[self._returned :]
        # Where tokens are bytes, one that begins a character may spoil those before it for a while.
        self._returned = max(self._returned, len(whole))
        self.text += new
        if new and whole == text:  # all was returned: to what comes, only these are near
            self._tokens = self._tokens[self._before :]
            self._before, self._returned = len(self._tokens), len(self._decoded())
        return new

    def _decoded(self) -> str:
        text: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        return text
