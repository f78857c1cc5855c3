"""Tokenizers and chat templates without transformers: what they give is what transformers gives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from helpers.checkpoints import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED, FLATS, chat_template
from edge_cloud_spec.models.tokenizer import (
    TextStream,
    Tokenizer,
    load_tokenizer,
    tokenizer_digest,
)

ADDED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<think>", "<|image_pad|>")
NOT_SPECIAL = ("<tool_call>", "<think>")
MESSAGES = [
    {"role": "system", "content": "Be <b>brief</b>."},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": 'find "it"\n'}]},
    {"role": "assistant", "content": "action: стоп; 停"},
]

Files = dict[str, Any]


@cache
def words() -> tuple[dict[str, int], list[list[str]]]:
    """The vocabulary of a small byte-level BPE and its merges."""
    content = json.loads((checkpoint() / "tokenizer.json").read_text("utf-8"))
    return content["model"]["vocab"], content["model"]["merges"]


def added_tokens() -> dict[int, dict[str, Any]]:
    first = max(words()[0].values()) + 1
    return {
        first + place: {
            "content": text,
            "single_word": False,
            "lstrip": text == "<think>",
            "rstrip": False,
            "normalized": text == "<tool_call>",
            "special": text not in NOT_SPECIAL,
        }
        for place, text in enumerate(ADDED)
    }


def whole(normalizer: Any = None) -> str:
    """A tokenizer.json that cuts words as GPT-2 does."""
    vocabulary, merges = words()
    backend = Backend(models.BPE(vocabulary, [tuple(pair) for pair in merges]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.normalizer = normalizer
    content = json.loads(backend.to_str())
    content["added_tokens"] = [{"id": index, **token} for index, token in added_tokens().items()]
    content["decoder"] = content["pre_tokenizer"]
    return json.dumps(content)


def in_words() -> str:
    """A tokenizer.json that cuts words as sentencepiece does."""
    content = json.loads(whole())
    cut = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    return json.dumps(content | {"pre_tokenizer": cut, "decoder": cut})


def as_they_are() -> Files:
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    return {"tokenizer.json": whole(normalizers.Lowercase()), "tokenizer_config.json": own}


def published() -> Files:
    """As Qwen's own: the class, and the added tokens in both files."""
    own = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": added_tokens(),
        "additional_special_tokens": ["<|im_start|>", "<|image_pad|>"],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "split_special_tokens": False,
        "chat_template": "{{ messages[0].content }}",
    }
    return {"tokenizer.json": whole(), "tokenizer_config.json": own}


def older() -> Files:
    end = {"content": "<|im_end|>", "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "tokenizer.json": whole(),
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "image_token": "<|image_pad|>",
        },
        "special_tokens_map.json": {
            "eos_token": {**end, "single_word": False},
            "additional_special_tokens": ["<|im_start|>"],
        },
    }


def of_gpt2() -> Files:
    """As SmolLM2's: digits are cut apart in tokenizer.json, and the class does not do so."""
    content = json.loads(whole(normalizers.Lowercase()))
    digits = {"type": "Digits", "individual_digits": True}
    cut = {"type": "Sequence", "pretokenizers": [digits, content["pre_tokenizer"]]}
    own = {
        "tokenizer_class": "GPT2Tokenizer",
        "added_tokens_decoder": added_tokens(),
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "add_prefix_space": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
    }
    return {
        "tokenizer.json": json.dumps(content | {"pre_tokenizer": cut}),
        "tokenizer_config.json": own,
    }


def of_gpt2_with_little_said() -> Files:
    own = {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}
    return of_gpt2() | {"tokenizer_config.json": own}


def of_llama_in_bytes() -> Files:
    own = {"tokenizer_class": "LlamaTokenizerFast", "eos_token": "<|im_end|>"}
    return as_they_are() | {"tokenizer_config.json": own}


def without_a_class() -> Files:
    return {"tokenizer.json": whole(), "tokenizer_config.json": {"eos_token": "<|im_end|>"}}


def saved_again() -> Files:
    """What transformers 5 writes, and a token that is in no vocabulary yet."""
    end = {"__type": "AddedToken", "content": "<|im_end|>", "special": True, "normalized": False}
    own = {
        "tokenizer_class": "TokenizersBackend",
        "eos_token": end,
        "extra_special_tokens": ["<|im_start|>", "<think>", "<new>"],
        "model_specific_special_tokens": {"image_token": "<|image_pad|>"},
    }
    return {"tokenizer.json": whole(), "tokenizer_config.json": own}


def split() -> Files:
    files = published()
    files["tokenizer_config.json"] |= {"split_special_tokens": True}
    return files


MADE: dict[str, tuple[Callable[[], Files], str]] = {
    "as they are": (as_they_are, "qwen3_vl"),
    "published": (published, "qwen2_5_vl"),
    "older": (older, "qwen2_vl"),
    "of GPT-2's class": (of_gpt2, "llama"),
    "of GPT-2's class, with little said": (of_gpt2_with_little_said, "llama"),
    "of Llama's class, in bytes": (of_llama_in_bytes, "llama"),
    "without a class": (without_a_class, "qwen3_vl"),
    "without a class, llama": (without_a_class, "llama"),
    "saved again": (saved_again, "qwen3_vl"),
    "a class that is wrong for qwen2": (as_they_are, "qwen2"),
    "split": (split, "qwen3"),
}
SHIPPED = {
    f"{pair.name}/{name}": pair / name
    for pair in (EMBEDDED, FLATS)
    for name in ("target", "drafter")
}


def write(directory: Path, files: Files, family: str = "qwen3_vl") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": family}))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text, "utf-8")
    return directory


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Tokenizer, Any]]:
    """Ours and transformers' of a name."""

    @cache
    def made(name: str) -> tuple[Tokenizer, Any]:
        if name in SHIPPED:
            directory = SHIPPED[name]
        elif name in MADE:
            files, family = MADE[name]
            directory = write(tmp_path_factory.mktemp("made"), files(), family)
        else:
            directory = checkpoint(name)
        config = json.loads((directory / "config.json").read_text("utf-8"))
        return load_tokenizer(directory, config), AutoTokenizer.from_pretrained(directory)

    return made


NAMES = [*MADE, *SHIPPED, "qwen2_vl", "qwen3_vl"]
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from([*ADDED, "action: turn left small;", "<new>", " don't", "2026", "\r\n\n "]),
        st.sampled_from(["e\u0301", "\u1e9b\u0323", "\U0001f469\u200d\U0001f680", "\u3000", "ﬁ"]),
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(text=TEXTS, share=st.floats(0, 1))
def test_any_text_has_the_tokens_that_it_has_in_transformers(
    both: Callable[[str], tuple[Tokenizer, Any]], name: str, text: str, share: float
) -> None:
    ours, theirs = both(name)
    ids = ours(text, add_special_tokens=False)["input_ids"]
    assert ids == theirs(text, add_special_tokens=False)["input_ids"]
    part = ids[: round(share * len(ids))]  # may end within a character
    for skip in (True, False):
        assert ours.decode(part, skip_special_tokens=skip) == theirs.decode(
            part, skip_special_tokens=skip
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_tokenizer_names_the_tokens_that_transformers_names(
    both: Callable[[str], tuple[Tokenizer, Any]], name: str
) -> None:
    ours, theirs = both(name)
    assert ours.get_vocab() == theirs.get_vocab() and len(ours) == len(theirs)
    assert tokenizer_digest(ours) == tokenizer_digest(theirs)
    assert ours.added_tokens_decoder == theirs.added_tokens_decoder
    for attribute in ("content", "special", "normalized", "lstrip", "rstrip"):
        named = [
            {index: getattr(token, attribute) for index, token in each.added_tokens_decoder.items()}
            for each in (ours, theirs)
        ]
        assert named[0] == named[1], attribute
    assert ours.eos_token_id == theirs.eos_token_id
    for token in (*ADDED, "action", "no such token"):
        assert ours.convert_tokens_to_ids(token) == theirs.convert_tokens_to_ids(token)
    for index in (0, len(ours) - 1, len(ours), 10**6):
        assert ours.convert_ids_to_tokens(index) == theirs.convert_ids_to_tokens(index)
    template = theirs.chat_template
    assert ours.chat_template == template
    assert ours.apply_chat_template(
        MESSAGES, chat_template="{{ eos_token }}|{{ image_token }}|{{ unk_token }}", tokenize=False
    ) == theirs.apply_chat_template(
        MESSAGES, chat_template="{{ eos_token }}|{{ image_token }}|{{ unk_token }}", tokenize=False
    )


@pytest.mark.parametrize("name", ["published", "as they are"])
def test_the_check_of_the_tokens_sees_another_rule(
    both: Callable[[str], tuple[Tokenizer, Any]], name: str
) -> None:
    """The control: the two rules cut some text of these otherwise."""
    other = "as they are" if name == "published" else "published"
    texts = ("Don't  STOP 2026\n\n", "A\u0301")
    assert any(both(name)[0](text) != both(other)[1](text) for text in texts)


TEMPLATES = {
    "blocks": "{% for m in messages %}\n    {% if loop.first %}\nfirst\n    {% endif %}\n"
    "{{ m.role }}\n{%- endfor %}",
    "loop controls": "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}"
    "{{ m.role }}{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages[1] | tojson(indent=2) }}"
    "{{ {'b': '<é>', 'a': 1} | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
    "date": "{{ strftime_now('%Y') }}",
    "generation": "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}"
    "{{ m.role }}{{ x }}{% endgeneration %}{{ x }}{% endfor %}",
    "namespace": "{% set ns = namespace(last=0, found=false) %}{% for m in messages %}"
    "{% set ns.last = loop.index %}{% endfor %}{{ ns.last }}{{ ns.found }}",
    "dictionary": "{{ dict(a=1)['a'] }}{{ dict.fromkeys(['x'], 3) }}",
    "nothing given": "{{ tools is none }}{{ documents is none }}{{ missing is defined }}"
    "{{ add_generation_prompt }}{{ enable_thinking }}",
    "texts": "{{ messages[0].content.upper().strip().split(' ')[0] }}"
    "{{ messages[-1]['content'][3:] }}{{ ('a' ~ 1) }}{{ messages | length }}"
    "{{ messages[0].content | trim | replace('b', 'c') }}",
    "macro": "{% macro say(m) %}<{{ m.role }}>{% endmacro %}{{ say(messages[0]) }}",
}
REFUSED = {
    "its own": "{{ raise_exception('no system text') }}",
    "syntax": "{% for m in messages %}{{ m.role }",
    "classes": "{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}",
    "change": "{{ messages.append(1) }}",
    "namespace": "{% set ns = namespace(__class__=1) %}",
    "attribute": "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "dictionary": "{{ dict.__base__.__subclasses__() }}",
    "files": "{{ namespace.__init__.__globals__ }}{% include '/etc/passwd' %}",
}
GIVEN = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_template_renders_as_in_transformers(
    both: Callable[[str], tuple[Tokenizer, Any]], name: str
) -> None:
    ours, theirs = (
        each.apply_chat_template(MESSAGES, chat_template=TEMPLATES[name], **GIVEN)
        for each in both("published")
    )
    assert ours == theirs and ours


def test_a_date_in_a_chat_template_is_the_same_in_every_time_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.fromtimestamp(86_400.0 * 20_000 + 43_200.0, tz)

    monkeypatch.setattr(chat_template, "datetime", Clock)
    rendered, local = set(), set()
    try:
        for zone in ("UTC", "AHEAD-14", "BEHIND+12"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            rendered.add(chat_template.compiled("{{ strftime_now('%d %b %Y') }}").render())
            local.add(Clock.now().strftime("%d"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert rendered == {"04 Oct 2024"} and len(local) == 2


@pytest.mark.parametrize("name", REFUSED)
def test_a_chat_template_is_refused_where_transformers_refuses_it(
    both: Callable[[str], tuple[Tokenizer, Any]], name: str
) -> None:
    for each in both("published"):
        with pytest.raises((TemplateError, TypeError)):
            each.apply_chat_template(MESSAGES, chat_template=REFUSED[name], **GIVEN)


@pytest.mark.parametrize("name", [*SHIPPED, "qwen3_vl"])
@settings(max_examples=30)
@given(texts=st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_the_own_template_renders_as_in_transformers(
    both: Callable[[str], tuple[Tokenizer, Any]], name: str, texts: list[str]
) -> None:
    ours, theirs = both(name)
    roles = ["system", *["user", "assistant"] * len(texts)]
    messages = [
        {"role": role, "content": [{"type": "image"}, {"type": "text", "text": text}]}
        for role, text in zip(roles, texts, strict=False)
    ]
    for given_ in (GIVEN, GIVEN | {"add_generation_prompt": False}):
        rendered = [
            each.apply_chat_template(messages, chat_template=theirs.chat_template, **given_)
            for each in (ours, theirs)
        ]
        assert rendered[0] == rendered[1]


NAMED = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]


@pytest.mark.parametrize(
    ("own", "files", "template"),
    [
        ("in the config", {}, "in the config"),
        (NAMED, {}, "d"),
        (NAMED[1:], {}, None),
        ("in the config", {"chat_template.jinja": "a file\n"}, "a file\n"),
        ("x", {"chat_template.jinja": "a", "additional_chat_templates/rag.jinja": "b"}, "a"),
        (None, {}, None),
    ],
)
def test_the_chat_template_is_the_one_that_transformers_takes(
    own: object, files: Files, template: str | None, tmp_path: Path
) -> None:
    made = published()
    made["tokenizer_config.json"]["chat_template"] = own
    directory = write(tmp_path / "made", made | files)
    theirs = AutoTokenizer.from_pretrained(directory).chat_template
    if isinstance(theirs, dict):
        theirs = theirs.get("default")
    assert load_tokenizer(directory, {}).chat_template == template == theirs


def test_files_that_cannot_be_read_so_are_refused_with_what_to_do(tmp_path: Path) -> None:
    unigram = Backend(models.Unigram([("a", -1.0), ("b", -2.0)], 0)).to_str()
    kinds = write(tmp_path / "unigram", {"tokenizer.json": unigram})
    with pytest.raises(UserError, match="kind Unigram, which is not implemented: take a model"):
        load_tokenizer(kinds, {})
    for name in ("LlamaTokenizer", "GemmaTokenizerFast"):
        files = {"tokenizer.json": in_words(), "tokenizer_config.json": {"tokenizer_class": name}}
        ruled = write(tmp_path / name, files, "llama")
        with pytest.raises(
            UserError, match=r"names the tokenizer (Ll|G)\w+zer, .* tokenizer_class"
        ):
            load_tokenizer(ruled, {"model_type": "llama"})


class Counted:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, backend: Backend) -> None:
        self._tokenizer, self.count = Tokenizer(backend, {}), 0

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        self.count += len(tokens)
        return self._tokenizer.decode(tokens, skip_special_tokens)


def bytes_in_words() -> Backend:
    """As Llama 2's: a space is a letter, the first of a text is dropped, and bytes are tokens."""
    letters = ("<unk>", "\u2581", *"абвгд停", *(f"<0x{byte:02X}>" for byte in range(256)))
    vocabulary = {letter: place for place, letter in enumerate(letters)}
    backend = Backend(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return backend


@pytest.mark.parametrize("each", [1, 7])
@pytest.mark.parametrize("kind", ["byte level", "broken", "bytes in words"])
def test_a_growing_answer_has_the_text_of_all_its_tokens_and_decodes_few_again(
    kind: str, each: int
) -> None:
    """Broken: with bytes, and special tokens, that come anywhere."""
    random, in_words = Random(f"{kind} {each}"), kind == "bytes in words"
    backend = bytes_in_words() if in_words else load_tokenizer(checkpoint(), {}).backend_tokenizer
    letters = [random.choice(("а", "в ", " 停", "🙂", "é", "  ", "x\n")) for _ in range(400)]
    tokens = backend.encode("".join(letters), add_special_tokens=False).ids
    if kind == "broken":
        vocabulary = backend.get_vocab_size()
        tokens = [random.choice((token, random.randrange(vocabulary))) for token in tokens]
    tokenizer, answer = Counted(backend), Tokenizer(backend, {})
    stream, pieces, known = TextStream(tokenizer), list[str](), ""
    for begin in range(0, len(tokens), each):
        pieces.append(stream.add(tokens[begin : begin + each]))
        whole = answer.decode(tokens[: begin + each], skip_special_tokens=True)
        known = max(known, whole.rstrip("\N{REPLACEMENT CHARACTER}"), key=len)
        assert "".join(pieces) == stream.text == known
    pieces.append(stream.add((), ended=True))
    assert "".join(pieces) == stream.text == answer.decode(tokens, skip_special_tokens=True)
    assert len(tokens) < tokenizer.count < 40 * len(tokens) < len(tokens) ** 2 / each / 2
