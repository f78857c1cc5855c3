"""Looked-up nodes join a model's draft where every rule can follow them, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.draft import BadDraft, Draft, check_distinct, check_draft
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.lookup import with_looked_up

VOCABULARY = 4
ROW = TokenDistribution(np.full(VOCABULARY, 0.25, np.float32))


@st.composite
def trees(draw: st.DrawFn, looked_up: bool) -> Draft:
    """Any tree without equal siblings."""
    nodes: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(0, 12))):
        node = draw(st.integers(-1, len(nodes) - 1)), draw(st.integers(0, VOCABULARY - 1))
        nodes += [] if node in nodes else [node]
    parents, tokens = (tuple(node[place] for node in nodes) for place in (0, 1))
    return Draft(tokens, parents or None, looked_up=len(nodes) if looked_up else 0)


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens that lead to each node."""
    found: list[tuple[int, ...]] = []
    for node, token in enumerate(draft.tokens):
        parent = draft.parent(node)
        found.append((found[parent] if parent >= 0 else ()) + (token,))
    return found


@given(trees(looked_up=False), trees(looked_up=True), st.integers(0, 30))
def test_a_merged_draft_says_what_both_say_and_nothing_else(
    own: Draft, looked_up: Draft, nodes: int
) -> None:
    merged = with_looked_up(own, looked_up, nodes)
    before, after = paths(own), paths(merged)
    assert after[: len(own)] == before
    assert merged.drafted == own.drafted and merged.looked_up == len(merged) - len(own)
    assert len(merged) <= max(nodes, len(own))
    assert set(after[len(own) :]) <= set(paths(looked_up)) - set(before)
    assert len(set(after[len(own) :])) == merged.looked_up
    if nodes >= len(own) + len(looked_up):
        assert set(after) == set(before) | set(paths(looked_up))
    if len(merged):
        check_draft(merged, VOCABULARY)


@given(trees(looked_up=False), trees(looked_up=True), st.data())
def test_nothing_follows_the_leaf_where_the_draft_goes_on(
    own: Draft, looked_up: Draft, data: st.DataObject
) -> None:
    leaves = [node for node in range(-1, len(own)) if not list(own.children(node))]
    open_at = data.draw(st.sampled_from(leaves))
    assert not list(with_looked_up(own, looked_up, 100, open_at).children(open_at))


@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6), trees(looked_up=True))
def test_where_the_robot_resamples_nothing_stands_beside_a_drawn_token(
    tokens: list[int], looked_up: Draft
) -> None:
    own = Draft(tuple(tokens), values=(0.5,) * len(tokens))
    merged = with_looked_up(own, looked_up, 100)
    for node in range(-1, len(own) - 1):
        assert list(merged.children(node)) == [node + 1]
    check_draft(merged, VOCABULARY)


def test_a_chain_stays_a_chain_and_its_rows_are_those_of_its_drawn_tokens() -> None:
    merged = with_looked_up(Draft((1, 2), rows=(ROW, ROW)), Draft((1, 2, 3), looked_up=3), 9)
    assert merged.tokens == (1, 2, 3) and merged.parents is None and merged.looked_up == 1
    assert merged.inner == (-1, 0)
    check_draft(merged, VOCABULARY)
    tree = with_looked_up(Draft((1, 2), rows=(ROW, ROW)), Draft((3, 2), looked_up=2), 9)
    assert tree.tokens == (1, 2, 3, 2) and tree.parents == (-1, 0, -1, 2)
    assert tree.inner == (-1, 0)
    check_draft(tree, VOCABULARY)


@pytest.mark.parametrize(
    ("draft", "complaint"),
    [
        (Draft((1,), looked_up=-1), "of which -1 were looked up"),
        (Draft((1,), looked_up=2), "of which 2 were looked up"),
        (Draft((1, 1), rows=(ROW, ROW), looked_up=1), "needs 1 rows, not 2"),
        (Draft((1, 1), rows=(ROW,), looked_up=2), "needs 0 rows, not 1"),
        (Draft((1, 1), values=(0.5, 0.5), looked_up=1), "1 tokens but 2 probabilities"),
        (Draft((1, 1), (-1, 1), rows=(ROW,), looked_up=1), "parent of node 1"),
        (Draft((1, 1), (1, -1), rows=(ROW,), looked_up=1), "parent of node 0"),
    ],
)
def test_a_draft_that_lies_about_what_it_looked_up_is_refused(draft: Draft, complaint: str) -> None:
    with pytest.raises(BadDraft, match=complaint):
        check_draft(draft, VOCABULARY)


def test_only_drawn_siblings_must_differ() -> None:
    check_distinct(Draft((1, 2, 1), (-1, -1, -1), looked_up=1))
    with pytest.raises(BadDraft, match="proposed twice"):
        check_distinct(Draft((1, 1, 2), (-1, -1, -1), looked_up=1))
