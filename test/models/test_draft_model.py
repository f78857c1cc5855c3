"""The draft model on several branches, and what it looks up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.checkpoints import ALL_FAMILIES, prompt_of, vlm
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import FinishedDraft, ProposalConfig, likeliest
from edge_cloud_spec.decoding.shape import BestFirst, Branch, Expansion, Shape, chain
from edge_cloud_spec.lookup import Lookups
from edge_cloud_spec.models.draft_model import MAX_LOOKED_UP, DraftModel
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.wire.messages import Open
from edge_cloud_spec_lab.harness.toy import ToyVlm

PROPOSALS = (
    ProposalConfig("greedy", GREEDY),
    ProposalConfig("coupled", SamplingPolicy(0.9, seed=4)),
    ProposalConfig("rejection", SamplingPolicy(0.9, seed=4), drawn=False),
    ProposalConfig("rejection", SamplingPolicy(0.9, seed=4)),
)
NAMES = ["greedy", "coupled", "the likeliest", "drawn"]
SHAPES = (chain(4), Expansion((2, 2, 1)), BestFirst(7, 3, 4))


def session(family: str = "qwen3_vl") -> Session:
    return vlm(family).open(prompt_of(vlm(family)))


# One family has all pairs of a proposal and a shape, the others all of both in pairs that vary:
# a proposal picks from rows of whatever family.
COURSES = [
    *((ALL_FAMILIES[0], name, shape) for name in NAMES for shape in SHAPES),
    *(
        (family, name, SHAPES[(number + place) % len(SHAPES)])
        for number, family in enumerate(ALL_FAMILIES[1:])
        for place, name in enumerate(NAMES)
    ),
]


@pytest.mark.parametrize(("family", "name", "shape"), COURSES, ids=str)
def test_a_draft_is_what_fresh_sessions_would_have_said(
    family: str, name: str, shape: Shape
) -> None:
    """Round after round on one session, whatever was accepted, beside a new session each time."""
    proposal = PROPOSALS[NAMES.index(name)]
    if isinstance(shape, BestFirst) and proposal.draws:
        shape = Expansion((3, 1))
    drafter = DraftModel(session(family), proposal)
    prefix: tuple[int, ...] = ()
    dice = np.random.default_rng(1)
    for _ in range(4):
        draft = drafter.finished(Branch(prefix, shape)).draft
        fresh = DraftModel(session(family), proposal).finished(Branch(prefix, shape)).draft
        assert (draft.tokens, draft.parents) == (fresh.tokens, fresh.parents)
        path: list[int] = []
        while (under := list(draft.children(path[-1] if path else -1))) and dice.random() < 0.7:
            path.append(int(dice.choice(under)))
        prefix += (*(draft.tokens[node] for node in path), int(dice.integers(3, 90)))


def test_a_tree_takes_one_pass_a_level_and_the_accepted_path_stays_in_the_cache() -> None:
    drafter = DraftModel(session(), PROPOSALS[0])
    drafter.want([Branch((), Expansion((3, 2, 2)))])
    rows = []
    while not drafter.idle:
        (grown,) = drafter.step(12)
        rows.append(drafter.rows)
    assert rows == [0, 3, 6]  # prefill gave the first logits; the last level needs none
    draft = grown.finished.draft
    assert len(draft) == 3 + 6 + 12
    kept = (draft.tokens[1], draft.tokens[next(iter(draft.children(1)))])
    drafter.follow((*kept, 7))
    drafter.want([Branch((*kept, 7), chain(1))])
    drafter.step()
    assert drafter.rows == 1


def test_nothing_follows_an_end_token() -> None:
    best, second = likeliest(np.exp(session().forward(())[0].astype(np.float64)), 2)
    drafter = DraftModel(session(), PROPOSALS[0], (best,))
    assert drafter.finished(Branch((), chain(4))).draft.tokens == (best,)
    tree = drafter.finished(Branch((), Expansion((2, 2)))).draft
    assert tree.tokens[:2] == (best, second)
    assert list(tree.children(0)) == [] and len(list(tree.children(1))) == 2


def test_an_interrupted_pass_changes_nothing_and_is_made_again() -> None:
    branch = Branch((), BestFirst(7, 3, 4))
    drafter = DraftModel(session(), PROPOSALS[0])
    drafter.want([branch])
    drafter.step(8)  # the prompt's prefill has given its rows already

    def stop(layer: int, hidden: object) -> None:
        raise InterruptedError

    while not drafter.idle:
        with pytest.raises(InterruptedError):
            drafter.step(8, stop)
        (grown,) = drafter.step(8)
    expected = DraftModel(session(), PROPOSALS[0]).finished(branch)
    assert content(grown.finished) == content(expected)


def test_what_there_is_of_a_draft_can_be_sent_after_any_pass() -> None:
    drafter = DraftModel(session(), PROPOSALS[0])
    drafter.want([Branch((), chain(4))])
    parts = [drafter.step()[0] for _ in range(4)]
    finished = parts[-1].finished.draft.tokens
    assert [part.finished.draft.tokens for part in parts] == [finished[: n + 1] for n in range(4)]
    assert [part.done for part in parts] == [False, False, False, True]


VOCABULARY = END = 12  # no row has the end token: it is outside the vocabulary
OPENING = Open(1, CLAUSES.request("find the box", b""), GREEDY, "greedy", lookup=True)
LOOKED_UP_SHAPES = (
    chain(1),
    chain(6),
    Expansion((2, 2, 1)),
    BestFirst(7, 4, 3),
    BestFirst(5, 4, 1),
)


class Proposing:
    """Looks up whatever it was given, pass after pass, and keeps the paths that are reported."""

    def __init__(self, proposals: Sequence[Draft]) -> None:
        self._proposals, self._draft = list(proposals), Draft(())
        self.asked: list[tuple[int, ...]] = []
        self.verified_paths: list[tuple[int, ...]] = []

    def draft(self, tokens: Sequence[int], depth: int, rows: int = 1) -> Draft:
        assert rows > 0 and depth == MAX_LOOKED_UP
        self.asked.append(tuple(tokens))
        self._draft = self._proposals.pop() if self._proposals else Draft(())
        return self._draft

    def report(self, end: int, given: int, path: tuple[int, ...], tokens: int) -> None:
        draft = self._draft
        assert (end, given, tokens) == (len(draft), 0, 1 + len(path))
        assert all(draft.parent(b) == a for a, b in zip((-1, *path), path, strict=False))
        self.verified_paths.append(path)


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    """Likely tokens, nonsense and end tokens, in any order."""
    tokens = draw(st.lists(st.integers(0, END), max_size=MAX_LOOKED_UP))
    parents = [draw(st.integers(-1, node - 1)) for node in range(len(tokens))]
    return Draft(tuple(tokens), tuple(parents), looked_up=len(tokens))


class CountedVlm(ToyVlm):
    """Notes the rows of each pass."""

    def __init__(self, seed: int = 3, vocabulary: int = VOCABULARY) -> None:
        super().__init__(seed, vocabulary=vocabulary)
        self.spent: list[int] = []

    def spend(self, rows: int) -> None:
        self.spent.append(rows)


def drafter(of: ToyVlm, proposal: ProposalConfig, lookup: object = None) -> DraftModel:
    session: Any = of.open(None)
    found: Any = lookup
    return DraftModel(session, proposal, (END, 0), lookup=found)


def content(finished: FinishedDraft) -> tuple[object, ...]:
    draft = finished.draft
    rows = [(row.probabilities.tolist(), len(row.probabilities)) for row in draft.rows or ()]
    return (draft.tokens, draft.parents, rows, finished.best, finished.leaf, finished.leaves)


@given(
    st.sampled_from(PROPOSALS),
    st.lists(st.sampled_from(LOOKED_UP_SHAPES), min_size=1, max_size=3),
    st.lists(trees(), max_size=6),
    st.integers(1, 8),
    st.integers(0, 2**20),
)
@settings(max_examples=200, deadline=None)
def test_a_draft_is_the_same_whatever_is_looked_up(
    proposal: ProposalConfig, shapes: list[Shape], proposals: list[Draft], width: int, seed: int
) -> None:
    if proposal.draws:
        shapes = [shape for shape in shapes if isinstance(shape, Expansion)]
    alone = drafter(CountedVlm(seed), proposal)
    beside = drafter(CountedVlm(seed), proposal, Proposing(proposals))
    branches = [Branch((3, 5)[:size], shape) for size, shape in enumerate(shapes)]
    dice, prefix = np.random.default_rng(seed), ()
    for _ in range(3):
        here = [Branch(prefix + branch.prefix, branch.shape) for branch in branches]
        found = []
        for each in (alone, beside):
            each.follow(prefix)
            each.want(here)
            done: dict[Branch, FinishedDraft] = {}
            while not each.idle:
                done |= {grown.branch: grown.finished for grown in each.step(width) if grown.done}
            found.append({branch: content(finished) for branch, finished in done.items()})
        assert found[0] == found[1] and found[0].keys() == set(here)
        prefix += (*dice.integers(1, VOCABULARY, dice.integers(1, 4)).tolist(),)


@pytest.mark.parametrize("proposal", PROPOSALS, ids=NAMES)
def test_what_was_said_before_takes_a_pass_rather_than_one_for_each_token(
    proposal: ProposalConfig,
) -> None:
    lookup = Lookups(4096, MAX_LOOKED_UP, None, lambda rows: 1 + 0.01 * rows).of("", OPENING)
    assert lookup is not None
    for found, tokens, passes in ((None, 13, 12), (lookup, 12, 1)):  # the prompt's row is known
        counted = CountedVlm(vocabulary=5000)
        draft = drafter(counted, proposal, found).finished(Branch((), chain(tokens))).draft
        assert (len(draft), len(counted.spent)) == (tokens, passes)
        lookup.learn(draft.tokens)


def test_rows_are_those_that_the_pass_computed() -> None:
    counted = CountedVlm()
    one = drafter(counted, PROPOSALS[0], Proposing([Draft((1, 2, 2), (-1, 0, -1))]))
    one.want([Branch((), chain(3))])
    one.step()
    assert (one.rows, counted.spent) == (0, [])  # the prompt's row was known
    one.step()
    assert (one.rows, counted.spent) == (4, [4])
    one.follow((7, 8))
    one.want([Branch((7, 8, 9), chain(2))])
    one.step()
    assert (one.rows, counted.spent) == (3, [4, 3])  # of the prefix, too


def test_nothing_is_looked_up_where_no_pass_is_due_nor_beside_a_tree() -> None:
    lookup = Proposing([])
    one = drafter(CountedVlm(), PROPOSALS[0], lookup)
    one.want([Branch((), chain(2))])
    one.step()
    assert lookup.asked == []
    one.step()
    assert len(lookup.asked) == 1
    one.want([Branch((), Expansion((2, 2)))])
    while not one.idle:
        one.step()
    assert len(lookup.asked) == 1


def test_it_is_told_how_far_the_model_says_the_same_and_nothing_of_an_interrupted_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = drafter(CountedVlm(), PROPOSALS[0]).finished(Branch((), chain(4))).draft.tokens
    other = next(token for token in range(1, VOCABULARY) if token not in own)
    looked_up = Draft((other, own[1], own[2], other), (-1, -1, 1, 2))
    lookup, model = Proposing([looked_up, looked_up]), CountedVlm()
    one = drafter(model, PROPOSALS[0], lookup)
    one.want([Branch((), chain(4))])
    one.step()
    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(model, "spend", Mock(side_effect=InterruptedError))
        one.step()
    assert lookup.verified_paths == []
    (grown,) = one.step()
    assert lookup.verified_paths == [(1, 2)]
    assert grown.tokens == own[1:4] and grown.done
