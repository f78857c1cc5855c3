"""Grammars over tokens, by llguidance: every answer is an action, and no text costs much. Each
dialect's grammar and reader are one language: what either takes, the other does."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fuzz.dialects import TRUTHS, genuine, mutated
from helpers.checkpoints import vlm
from helpers.dialects import THINKING, made
from hypothesis import assume, event, given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from edge_cloud_spec.decoding.grammar import forced_token
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.token_grammar import GrammarCompiler, TokenGrammar
from edge_cloud_spec.nav.answer import CLAUSES_FORM, ORDERS, Dialect, answer_grammar, every_action
from edge_cloud_spec_lab.training.tiny.tokenizer import build_tokenizer

TINY = build_tokenizer()
TOKENIZERS = {"embedded": TINY, "random": vlm().tokenizer}


def grammar(text: str, name: str = "embedded") -> TokenGrammar:
    tokenizer = TOKENIZERS[name]
    return GrammarCompiler(tokenizer).grammar(text, tokenizer.eos_token_id, len(tokenizer))


def tokens_of(text: str) -> list[int]:
    return TINY(text, add_special_tokens=False)["input_ids"]


def accepts(kept: TokenGrammar, text: str) -> bool:
    tokens = [*tokens_of(text), TINY.eos_token_id]
    return all(kept.allowed(tokens[:place])[token] for place, token in enumerate(tokens))


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", TRUTHS)
def test_whatever_is_drawn_is_an_answer_with_an_action(name: str, order: str, kind: str) -> None:
    """Also where a sign is several tokens, of bytes."""
    dialect, tokenizer = load_dialect(name), TOKENIZERS[kind]
    kept = grammar(dialect.grammar("action", order), kind)
    random = np.random.default_rng(4)
    for _ in range(20):
        tokens: list[int] = []
        while tokens[-1:] != [tokenizer.eos_token_id]:
            tokens.append(int(random.choice(np.flatnonzero(kept.allowed(tokens)))))
        decided = tokenizer.decode(tokens[:64], skip_special_tokens=True)
        assert dialect.action_of(decided, ended=True), decided
        assert len(tokens) <= 80


def test_the_answers_of_the_language_are_in_the_grammar_and_nothing_else_is() -> None:
    kept = grammar(answer_grammar("action", "action first"))
    for action in every_action():
        assert accepts(kept, f"action: {action};")
        assert accepts(kept, f"action: {action}; reason: silver bottle far 3.0 left 14;")
    for text in (
        "",
        "action: move forward small",
        "action: move forward;",
        "action: move left small;",
        "action: cannot move forward small;",
        "reason: red chair; action: stop;",
        "action: stop; action: search;",
        "action: stop; stop",
    ):
        assert not accepts(kept, text)
    assert accepts(
        grammar(answer_grammar("action", "reason first")), "reason: red chair; action: stop;"
    )


def test_a_state_is_a_function_of_the_tokens_alone() -> None:
    text = answer_grammar("action", "reason first")
    tokens = tokens_of("reason: silver bottle far 3.0 left 14; action: turn left medium;")
    kept = grammar(text)
    for place in np.random.default_rng(1).permutation(np.arange(len(tokens) + 1).repeat(2)):
        fresh = grammar(text).allowed(tokens[:place])
        assert (kept.allowed(tokens[:place]) == fresh).all()


def test_forced_characters_are_the_tokenizers_own_tokens() -> None:
    kept = grammar(answer_grammar("action", "action first"))
    assert forced_token(kept.allowed([])) == tokens_of("action:")[0]
    assert forced_token(kept.allowed(tokens_of("action:"))) is None


def test_an_answer_against_the_grammar_cannot_go_on() -> None:
    kept = grammar(answer_grammar("action", "action first"))
    with pytest.raises(UserError, match="cannot go on in its grammar"):
        kept.allowed(tokens_of("reason: red chair;"))
    assert kept.allowed([]).any()  # and others are as before


@pytest.mark.parametrize(
    "text",
    [
        "start: @@@",
        "start: nothing",
        "",
        "start: \x00",
        "no grammar at all",
        'start: "bild" <|im_start|>"',
        "start: " + "(" * 1000 + '"a"' + ")" * 1000,
    ],
)
def test_a_text_that_is_no_grammar_is_named(text: str) -> None:
    with pytest.raises(UserError, match="grammar"):
        grammar(text)


@pytest.mark.parametrize(
    "text",
    [
        "start: A\nA: /.*a.{20}/ & /.*b.{21}/ & /.*c.{22}/ & /.*d.{23}/",
        "start: a0\n" + "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(60)) + '\na60: "x"',
        "start: /(a|b)*a(a|b){30}c/",
        'start: (a{0,1000}){0,1000}\na: "x"?',
        'start: start start | "a" | ""',
    ],
)
def test_a_grammar_that_blows_up_ends_at_its_limits(text: str) -> None:
    """No time is asserted: without the limits some of these would not end."""
    random = np.random.default_rng(0)
    tokens: list[int] = []
    try:
        kept = grammar(text)
        while len(tokens) < 40 and tokens[-1:] != [TINY.eos_token_id]:
            tokens.append(int(random.choice(np.flatnonzero(kept.allowed(tokens)))))
    except UserError as error:
        assert len(str(error)) < 500


def test_a_tokenizer_without_the_needed_characters_is_refused() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    few = Tokenizer(models.WordLevel({"move": 0, "stop": 1, "<end>": 2}, unk_token="<end>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=few, eos_token="<end>")
    with pytest.raises(UserError, match="grammar"):
        GrammarCompiler(tokenizer).grammar(answer_grammar("action", "action first"), 2, 3)


def test_without_llguidance_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match=r"pip install 'llguidance>=1.3'$"):
        grammar("start: /a/")


# Dialects: their grammars, byte by byte, beside their readers

COUNT = 5_000
BYTES = LLTokenizer("byte")


def matcher(dialect: Dialect, order: str = ORDERS[0]) -> Any:
    text = LLMatcher.grammar_from_lark(dialect.grammar("action", order))
    start = LLMatcher(BYTES, text, log_level=0)
    assert not start.is_error(), start.get_error()
    return start


def takes(start: Any, text: str) -> bool:
    here, data = start.deep_copy(), list(text.encode())
    return here.try_consume_tokens(data) == len(data) and here.is_accepting()


def drawn(start: Any, random: Random) -> str:
    """An answer of the grammar, a byte after the other; empty for one that gets too long."""
    here, said = start.deep_copy(), bytearray()
    while len(said) < 400:
        bits = np.unpackbits(np.frombuffer(here.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[:256])
        if here.is_accepting() and (not len(allowed) or random.random() < 0.2):
            return said.decode()
        said.append(int(random.choice(allowed)))
        assert here.consume_token(said[-1])
    return ""


def agree(dialect: Dialect, texts: Iterable[str], order: str = ORDERS[0]) -> int:
    """Assert that grammar and reader take the same of these; how many."""
    start, taken = matcher(dialect, order), 0
    for text in texts:
        reads = dialect.action_of(text, ended=True) is not None
        assert takes(start, text) == reads, (dialect.actions, text)
        taken += reads
    return taken


@pytest.mark.parametrize(
    "name", sorted(name for name in TRUTHS if load_dialect(name).form != CLAUSES_FORM)
)
def test_what_the_grammar_takes_of_random_texts_is_what_is_read(name: str) -> None:
    random, dialect = Random(name), load_dialect(name)
    texts = [mutated(genuine(dialect, random), random) for _ in range(COUNT)]
    assert COUNT / 20 < agree(dialect, texts) < COUNT / 2
    start = matcher(dialect)
    said = [drawn(start, random) for _ in range(COUNT // 10)]
    assert agree(dialect, said) == len(said) and len(set(said)) > 20


def test_our_grammar_says_what_is_read_and_what_is_not_read_it_does_not_say() -> None:
    """The reader lets anything follow an action."""
    random, dialect = Random(1), load_dialect("clauses")
    first, last = (matcher(dialect, order) for order in ORDERS)
    taken = 0
    for _ in range(COUNT):
        text = mutated(genuine(dialect, random), random)
        action, in_grammar = dialect.action_of(text), takes(first, text) or takes(last, text)
        assert action is not None or not in_grammar, text
        assert action is None or takes(first, f"action: {action};")
        taken += in_grammar
    assert COUNT / 20 < taken < COUNT / 2
    for start in (first, last):
        assert all(dialect.action_of(drawn(start, random)) for _ in range(COUNT // 100))


def test_a_thought_is_in_the_grammar_up_to_its_marker(tmp_path: Path) -> None:
    random, dialect = Random(2), made(tmp_path, THINKING)
    texts = [mutated(genuine(dialect, random), random) for _ in range(COUNT // 10)]
    assert COUNT / 200 < agree(dialect, texts) < COUNT / 20


SIGNS = st.text(
    r"ab1 .*+?()[]{}|\/^$&~-_\"'<>#@%:=!,;" + "\u2190\u00e9\U0001f916", min_size=1, max_size=5
)
MEANINGS = st.sampled_from(["stop", "turn left 15 degrees", "move forward {amount} cm"])


@given(
    st.dictionaries(SIGNS, MEANINGS, min_size=1, max_size=4),
    st.tuples(SIGNS | st.just(""), SIGNS | st.just("")),
    st.sampled_from(["", " ", ", ", "."]),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_whatever_signs_are_in_a_table_both_read_them_alike(
    table: dict[str, str], around: tuple[str, str], apart: str, most: int, random: Random
) -> None:
    def with_amount(phrase: str, meaning: str) -> tuple[str, str]:
        return (f"{phrase}{{amount}}" if "{amount}" in meaning else phrase), meaning

    fields = {
        "summary": "random",
        "form": "{action}".join(around),
        "actions": dict(with_amount(*pair) for pair in table.items()),
        "separator": apart,
        "most": most,
        "examples": {"\x00": None},
    }
    try:
        dialect = made(None, fields)
    except UserError:
        assume(False)
    texts = [genuine(dialect, random) for _ in range(10)]
    agree(dialect, [*texts, *(mutated(text, random) for text in texts)])
    event(f"{dialect.action_of(texts[0], ended=True) is not None} {most}")


def test_a_grammar_of_another_table_is_found_out() -> None:
    """The negative control."""
    random, dialect = Random(3), load_dialect("navila")
    texts = [mutated(genuine(dialect, random), random) for _ in range(1000)]

    class Other(Dialect):
        def grammar(self, name: str, order: str) -> str:
            return dialect.grammar(name, order).replace("[0-9]{0,3}", "[0-9]{0,4}")

    with pytest.raises(AssertionError):
        agree(Other(dialect.name, dialect.form, dialect.actions), texts)
