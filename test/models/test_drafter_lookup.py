"""What is looked up changes how many passes a draft takes, and nothing of the draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.draft import Draft, parents_or_none
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import FinishedDraft, ProposalConfig
from edge_cloud_spec.decoding.shape import BestFirst, Branch, Expansion, Shape, chain
from edge_cloud_spec.lab.harness.scripted.model import PassCost, ScriptedModel
from edge_cloud_spec.lookup import Lookups
from edge_cloud_spec.models.draft_model import MAX_LOOKED_UP, DraftModel
from edge_cloud_spec.wire.messages import Open

VOCABULARY = END = 12  # no row has the end token: it is outside the vocabulary
OPENING = Open(1, "find the box", b"", "action first", GREEDY, "greedy", lookup=True)
PROPOSALS = (
    ProposalConfig("greedy", GREEDY),
    ProposalConfig("coupled", SamplingPolicy(0.9, seed=4)),
    ProposalConfig("rejection", SamplingPolicy(0.9, seed=4), drawn=False),
    ProposalConfig("rejection", SamplingPolicy(0.9, seed=4)),
)
SHAPES = (chain(1), chain(6), Expansion((2, 2, 1)), BestFirst(7, 4, 3), BestFirst(5, 4, 1))


class Proposing:
    """Looks up whatever it was given, pass after pass; what it is told goes into ``judged``."""

    def __init__(self, proposals: Sequence[Draft]) -> None:
        self._proposals = list(proposals)
        self.asked: list[tuple[int, ...]] = []
        self.judged_paths: list[tuple[int, ...]] = []

    def draft(self, tokens: Sequence[int], depth: int, rows: int = 1) -> Draft:
        assert rows > 0 and depth == MAX_LOOKED_UP
        self.asked.append(tuple(tokens))
        return self._proposals.pop() if self._proposals else Draft(())

    def judged(self, draft: Draft, given: int, path: tuple[int, ...], tokens: int) -> None:
        assert given == 0 and tokens == 1 + len(path)
        assert all(draft.parent(b) == a for a, b in zip((-1, *path), path, strict=False))
        self.judged_paths.append(path)


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    """Likely tokens, nonsense and end tokens, in any order."""
    tokens = draw(st.lists(st.integers(0, END), max_size=MAX_LOOKED_UP))
    parents = [draw(st.integers(-1, node - 1)) for node in range(len(tokens))]
    return Draft(tuple(tokens), parents_or_none(parents), looked_up=len(tokens))


def model(seed: int = 3, vocabulary: int = VOCABULARY) -> ScriptedModel:
    return ScriptedModel(vocabulary, seed, cost=PassCost(fixed=1.0, per_row=0.01))


def drafter(of: ScriptedModel, proposal: ProposalConfig, lookup: object = None) -> DraftModel:
    session: Any = of.open()
    found: Any = lookup
    return DraftModel(session, proposal, (END, 0), lookup=found)


def content(finished: FinishedDraft) -> tuple[object, ...]:
    draft = finished.draft
    rows = [(row.probabilities.tolist(), len(row.probabilities)) for row in draft.rows or ()]
    return (draft.tokens, draft.parents, rows, finished.best, finished.leaf, finished.leaves)


@given(
    st.sampled_from(PROPOSALS),
    st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3),
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
    plain, looking = model(seed), model(seed)
    alone, beside = drafter(plain, proposal), drafter(looking, proposal, Proposing(proposals))
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


def known(of: ScriptedModel, proposal: ProposalConfig, tokens: int) -> Any:
    """A lookup that has learned what the model says."""
    said = drafter(of, proposal).finished(Branch((), chain(tokens))).draft.tokens
    lookup = Lookups(4096, MAX_LOOKED_UP, None, lambda rows: 1 + 0.01 * rows).of("", OPENING)
    assert lookup is not None
    lookup.learn(said)
    return lookup


@pytest.mark.parametrize("proposal", PROPOSALS, ids=lambda proposal: proposal.rule)
def test_what_was_said_before_takes_a_pass_rather_than_one_for_each_token(
    proposal: ProposalConfig,
) -> None:
    lookup = known(model(vocabulary=5000), proposal, 13)
    passes = {}
    for name, looked_up in (("without", None), ("with", lookup)):
        counted = model(vocabulary=5000)
        one = drafter(counted, proposal, looked_up)
        draft = one.finished(Branch((), chain(12))).draft
        passes[name] = counted.passes
    assert len(draft) == 12
    assert (passes["without"], passes["with"]) == (11, 1)  # the prompt's row was known


def test_rows_are_those_that_the_pass_computed() -> None:
    counted = model()
    one = drafter(counted, PROPOSALS[0], Proposing([Draft((1, 2, 2), (-1, 0, -1))]))
    one.want([Branch((), chain(3))])
    one.step()
    assert (one.rows, counted.passes) == (0, 0)  # the prompt's row was known
    one.step()
    assert one.rows == 4 and counted.seconds == pytest.approx(1.04)
    one.follow((7, 8))
    one.want([Branch((7, 8, 9), chain(2))])
    one.step()
    assert one.rows == 3  # of the prefix, too
    assert counted.seconds == pytest.approx(1.04 + 1.03)


def test_nothing_is_looked_up_where_no_pass_is_due_nor_beside_a_tree() -> None:
    lookup = Proposing([])
    one = drafter(model(), PROPOSALS[0], lookup)
    one.want([Branch((), chain(2))])
    one.step()
    assert lookup.asked == []
    one.step()
    assert len(lookup.asked) == 1
    one.want([Branch((), Expansion((2, 2)))])
    while not one.idle:
        one.step()
    assert len(lookup.asked) == 1


def test_it_is_told_how_far_the_model_says_the_same() -> None:
    own = drafter(model(), PROPOSALS[0]).finished(Branch((), chain(4))).draft.tokens
    other = next(token for token in range(1, VOCABULARY) if token not in own)
    lookup = Proposing([Draft((other, own[1], own[2], other), (-1, -1, 1, 2))])
    one = drafter(model(), PROPOSALS[0], lookup)
    one.want([Branch((), chain(4))])
    one.step()
    (grown,) = one.step()
    assert lookup.judged_paths == [(1, 2)]
    assert grown.tokens == own[1:4] and grown.done


def test_an_interrupted_pass_tells_nothing() -> None:
    class Interrupted(ScriptedModel):
        def spend(self, rows: int) -> None:
            raise InterruptedError

    lookup = Proposing([Draft((1,)), Draft((1,))])
    one = drafter(Interrupted(VOCABULARY, 3), PROPOSALS[0], lookup)
    one.want([Branch((), chain(4))])
    one.step()
    with pytest.raises(InterruptedError):
        one.step()
    assert lookup.judged_paths == []
