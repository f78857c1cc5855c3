"""A suffix index proposes what verified answers said after such text, in a bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from helpers.drafting import paths_of
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.suffix_index import (
    BYTES_PER_SUFFIX,
    ENOUGH,
    ESCAPE,
    LEAST_OCCURRENCES,
    LENGTHS_ALONE,
    LENGTHS_BESIDE_LAST,
    MAX_INDEXED_TOKENS,
    MAX_PATTERNS,
    MAX_TOKEN,
    RECENT_OCCURRENCES,
    SuffixIndex,
)

Symbol = int | str
Answer = tuple[str, tuple[int, ...]]

tokens = st.lists(st.integers(0, 3), max_size=9).map(tuple)
answers = st.lists(st.tuples(st.sampled_from(["a", "b"]), tokens), max_size=12)


def filled(said: Sequence[Answer], max_suffixes: int = 100_003) -> SuffixIndex:
    index = SuffixIndex(max_suffixes)
    for pattern, answer in said:
        index.add(pattern, answer)
    return index


@given(answers, st.sampled_from(["a", "b"]), tokens, st.integers(1, 60), st.data())
def test_all_that_is_proposed_was_said_after_such_text(
    said: list[Answer], pattern: str, prefix: tuple[int, ...], size: int, data: st.DataObject
) -> None:
    nodes, depth = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 6))
    draft = filled(said, size).look_up(pattern, prefix, nodes, depth)
    assert len(draft) <= nodes and draft.depth <= depth and draft.looked_up == len(draft)
    assert len(set(paths_of(draft))) == len(draft)
    pairs = {pair for _, answer in said for pair in zip(("begin", *answer), answer, strict=False)}
    for path in paths_of(draft):
        assert (("begin", *prefix, *path)[-2], path[-1]) in pairs


def beside(symbol: Symbol, pattern: str, said: Sequence[Answer]) -> Symbol | None:
    """What the last of these answers to the pattern said after the same symbol."""
    last = next((answer for of, answer in reversed(said) if of == pattern), ())
    symbols: list[Symbol] = ["begin", *last]
    return next((b for a, b in pairwise(symbols) if a == symbol), None)


def chances(said: list[Answer], pattern: str, prefix: tuple[int, ...]) -> dict[int, float]:
    """How likely each next token is, by a walk through all that was ever said."""
    suffix: list[Symbol] = [pattern, "begin", *prefix]
    here = beside(suffix[-1], pattern, said)
    found: dict[int, float] = {}
    left = 1.0
    for length, is_beside in [
        *((n, True) for n in LENGTHS_BESIDE_LAST),
        *((n, False) for n in LENGTHS_ALONE),
    ]:
        counts: dict[int, float] = {}
        for number, (of, answer) in enumerate(said):
            symbols: list[Symbol] = [of, "begin", *answer]
            for at in range(2, len(symbols)):
                same = length <= at and symbols[at - length : at] == suffix[-length:]
                if same and is_beside:
                    same = beside(symbols[at - 1], of, said[:number]) == here
                if same:
                    kept = {
                        token: count * (1 - 1 / RECENT_OCCURRENCES)
                        for token, count in counts.items()
                    }
                    counts = {
                        token: count for token, count in kept.items() if count > LEAST_OCCURRENCES
                    }
                    counts[int(symbols[at])] = counts.get(int(symbols[at]), 0.0) + 1
        if counts and length <= len(suffix):
            escape = ESCAPE * len(counts)
            share = left / (sum(counts.values()) + escape)
            for token, count in counts.items():
                found[token] = found.get(token, 0.0) + share * count
            left = share * escape
            if left < ENOUGH:
                break
    return found


@given(answers, st.sampled_from(["a", "b"]), tokens)
def test_the_likeliest_tokens_are_those_of_all_that_was_said(
    said: list[Answer], pattern: str, prefix: tuple[int, ...]
) -> None:
    expected = chances(said, pattern, prefix)
    draft = filled(said).look_up(pattern, prefix, 1000, 1)
    assert set(draft.tokens) == set(expected)
    found = [expected[token] for token in draft.tokens]
    assert found == pytest.approx(sorted(found, reverse=True), abs=1e-6)


@given(answers, st.sampled_from(["a", "b"]), tokens, st.integers(1, 12))
def test_a_tree_has_the_likeliest_nodes_of_all(
    said: list[Answer], pattern: str, prefix: tuple[int, ...], nodes: int
) -> None:
    def likelihood(path: tuple[int, ...]) -> float:
        product = 1.0
        for at, token in enumerate(path):
            product *= chances(said, pattern, (*prefix, *path[:at]))[token]
        return product

    index = filled(said)
    chosen = paths_of(index.look_up(pattern, prefix, nodes, 3))
    least = min((likelihood(path) for path in chosen), default=1.0)
    for path in set(paths_of(index.look_up(pattern, prefix, 100, 3))) - set(chosen):
        assert len(chosen) == nodes and likelihood(path) <= least + 1e-6


def test_a_word_of_the_instruction_is_replaced_by_that_of_another() -> None:
    index = SuffixIndex(1000)
    index.add("", (1, 20, 21, 3), prompt=(9, 20, 21))
    assert index.look_up("", (1,), 3, 3, prompt=(8, 8, 40, 41)).tokens == (40, 41, 3)
    assert index.look_up("", (1, 40), 2, 3, prompt=(8, 8, 40, 41)).tokens == (41, 3)
    assert index.look_up("", (1,), 3, 3, prompt=(41,)).tokens != (20, 21, 3)
    assert not len(index.look_up("", (1,), 3, 3))


@pytest.mark.parametrize(
    "answer",
    [[7] * 5000, list(range(5000)), [0, MAX_TOKEN] * 2500, [MAX_TOKEN] * 5000],
    ids=["equal", "ascending", "alternating", "largest"],
)
def test_a_hostile_robot_cannot_make_it_grow(answer: list[int]) -> None:
    index = SuffixIndex(1000)
    for repeat in range(MAX_PATTERNS + 9):
        index.add(f"p{repeat}" * 10**4, answer, answer)
        draft = index.look_up("p", answer, 64, 64, answer)
        assert draft.depth <= 64 and len(draft) <= 64
    assert len(index._records) == 1000 * BYTES_PER_SUFFIX
    assert len(index._last) == MAX_PATTERNS
    assert max(map(len, index._last.values())) <= MAX_INDEXED_TOKENS


def test_of_a_long_answer_its_beginning_is_kept() -> None:
    """What a token after it says is not there, and changes nothing that is."""
    long, kept = SuffixIndex(100_003), SuffixIndex(100_003)
    long.add("p", range(4096))
    kept.add("p", range(MAX_INDEXED_TOKENS))
    assert long._records == kept._records and long._last == kept._last
    assert long.look_up("p", range(MAX_INDEXED_TOKENS - 9), 4, 4).tokens == (247, 248, 249, 250)
    assert not len(long.look_up("p", range(MAX_INDEXED_TOKENS), 4, 4))


def test_a_token_that_followed_long_ago_is_forgotten() -> None:
    index = filled([("p", (0, 1)), ("p", (0, 5)), *[("p", (0, 1))] * 9])
    assert set(index.look_up("q", (0,), 9, 1).tokens) == {1, 5}
    for _ in range(3):
        index.add("p", (0, 1))
    assert set(index.look_up("q", (0,), 9, 1).tokens) == {1}


def test_what_is_no_token_is_refused() -> None:
    index = SuffixIndex(100)
    for token in (-1, MAX_TOKEN + 1, 2**70):
        with pytest.raises(ValueError, match="token ids are 0 to"):
            index.add("p", (1, token))
        assert not len(index.look_up("p", (token,), 8, 8))
    with pytest.raises(ValueError, match="at least 1 suffix"):
        SuffixIndex(0)
