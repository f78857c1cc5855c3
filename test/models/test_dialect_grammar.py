"""Each dialect's grammar and reader are one language: what either takes, the other does."""

from __future__ import annotations

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

from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.prompt import ORDERS
from edge_cloud_spec.models.token_grammar import GrammarCompiler
from edge_cloud_spec.nav.answer import Dialect

COUNT = 10_000
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


@pytest.mark.parametrize("name", sorted(set(TRUTHS) - {"clauses"}))
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


@pytest.mark.parametrize("name", TRUTHS)
def test_with_a_real_tokenizer_every_answer_drawn_is_an_action(name: str) -> None:
    """Also where a sign is several tokens, of bytes."""
    tokenizer, dialect, random = vlm().tokenizer, load_dialect(name), Random(name)
    compiler = GrammarCompiler(tokenizer)
    text = dialect.grammar("action", ORDERS[0])
    kept = compiler.grammar(text, tokenizer.eos_token_id, len(tokenizer))
    for _ in range(20):
        tokens: list[int] = []
        while tokens[-1:] != [tokenizer.eos_token_id]:
            tokens.append(int(random.choice(np.flatnonzero(kept.allowed(tokens)))))
        said = tokenizer.decode(tokens, skip_special_tokens=True)
        assert dialect.action_of(said, ended=True), said


def test_a_grammar_of_another_table_is_found_out() -> None:
    """The negative control."""
    random, dialect = Random(3), load_dialect("navila")
    texts = [mutated(genuine(dialect, random), random) for _ in range(1000)]

    class Other(Dialect):
        def grammar(self, name: str, order: str) -> str:
            return dialect.grammar(name, order).replace("[0-9]{0,3}", "[0-9]{0,4}")

    with pytest.raises(AssertionError):
        agree(Other(dialect.name, dialect.form, dialect.actions), texts)
