"""The drafter on real sessions: one pass a level, and caches that keep the accepted path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import FAMILIES, prompt_of, vlm

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import Growth, ProposalConfig, likeliest
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.shape import BestFirst, Branch, Expansion, Shape, chain
from edge_cloud_spec.models.draft_model import DraftModel
from edge_cloud_spec.models.session import Session

RECIPES = (
    ProposalConfig("greedy", GREEDY),
    ProposalConfig("coupled", SamplingPolicy(0.9, seed=4)),
    ProposalConfig("rejection", SamplingPolicy(0.9, seed=4)),
)
SHAPES = (chain(4), Expansion((2, 2, 1)), BestFirst(7, 3, 4))


class Counted:
    """A session that counts its passes and the rows in them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.passes: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def forward(self, tokens: tuple[int, ...], *rest: Any) -> np.ndarray:
        self.passes.append(len(tokens))
        return self._session.forward(tokens, *rest)

    def grow(self, tokens: tuple[int, ...], *rest: Any) -> np.ndarray:
        self.passes.append(len(tokens))
        return self._session.grow(tokens, *rest)


def session(family: str = "qwen3_vl") -> Session:
    return vlm(family).open(prompt_of(vlm(family)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("proposal", RECIPES, ids=lambda proposal: proposal.rule)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_draft_is_what_fresh_sessions_would_have_said(
    family: str, proposal: ProposalConfig, shape: Shape
) -> None:
    """Round after round on one session, whatever was accepted, beside a new session each time."""
    if isinstance(shape, BestFirst) and proposal.rule == "rejection":
        proposal = ProposalConfig("rejection", proposal.policy, drawn=False)
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
    counted = Counted(session())
    drafter = DraftModel(counted, RECIPES[0])  # type: ignore[arg-type]
    draft = drafter.finished(Branch((), Expansion((3, 2, 2)))).draft
    assert counted.passes == [3, 6]  # prefill gave the first logits; the last level needs none
    assert len(draft) == 3 + 6 + 12
    path = [1, next(iter(draft.children(1)))]
    kept = tuple(draft.tokens[node] for node in path)
    computed = counted._session._computed
    drafter.follow((*kept, 7))
    assert counted.tokens == (*kept, 7)
    assert counted._session._computed == computed + 2


def test_nothing_follows_an_end_token() -> None:
    logits = vlm().open(prompt_of(vlm())).forward(())[0]
    best, second = likeliest(np.exp(logits.astype(np.float64)), 2)
    drafter = DraftModel(session(), RECIPES[0], (best,))
    assert drafter.finished(Branch((), chain(4))).draft.tokens == (best,)
    tree = drafter.finished(Branch((), Expansion((2, 2)))).draft
    assert tree.tokens[:2] == (best, second)
    assert list(tree.children(0)) == [] and len(list(tree.children(1))) == 2


def test_a_best_first_tree_keeps_the_likeliest_paths_within_its_budget() -> None:
    rows = {(): [0.6, 0.3, 0.1], (0,): [0.9, 0.05, 0.05], (1,): [0.4, 0.3, 0.3]}
    growth = Growth(
        BestFirst(3, 2, 3), ProposalConfig("greedy", GREEDY), 0, (), SeededRandomSource(0)
    )
    first = growth.grow(np.log([rows[()]]).astype(np.float32))
    assert (first, growth.frontier) == ((0, 1, 2), [(0,), (1,), (2,)])
    growth.grow(np.log([rows[(0,)], rows[(1,)], [0.5, 0.25, 0.25]]).astype(np.float32))
    assert growth.done
    draft = growth.finished().draft  # .6, .6 * .9 and .3
    assert (draft.tokens, draft.parents) == ((0, 1, 0), (-1, -1, 0))


def test_siblings_are_drawn_with_or_without_replacement() -> None:
    row = np.log([[0.9, 0.1]]).astype(np.float32)
    policy = SamplingPolicy(1.0, seed=1)
    for replacement, tokens in ((True, {0}), (False, {0, 1})):
        proposal = ProposalConfig("rejection", policy, replacement=replacement)
        growth = Growth(Expansion((3,)), proposal, 0, (), SeededRandomSource(1))
        drawn = growth.grow(row)
        assert set(drawn) == tokens
        assert len(drawn) == (3 if replacement else 2)
        assert len(growth.finished().draft.rows or ()) == 1


def test_an_interrupted_pass_changes_nothing_and_is_made_again() -> None:
    drafter, fresh = DraftModel(session(), RECIPES[0]), DraftModel(session(), RECIPES[0])
    branch = Branch((), BestFirst(7, 3, 4))
    drafter.want([branch])
    drafter.step(8)  # the prompt's prefill has given its rows already

    def stop(layer: int, hidden: object) -> None:
        raise InterruptedError

    finished = None
    while finished is None:
        with pytest.raises(InterruptedError):
            drafter.step(8, stop)
        (grown,) = drafter.step(8)
        finished = grown.finished if grown.done else None
    expected = fresh.finished(branch)
    assert (finished.draft.tokens, finished.draft.parents) == (
        expected.draft.tokens,
        expected.draft.parents,
    )


def test_what_there_is_of_a_draft_can_be_sent_after_any_pass() -> None:
    drafter = DraftModel(session(), RECIPES[0])
    drafter.want([Branch((), chain(4))])
    parts = [drafter.step()[0] for _ in range(4)]
    finished = parts[-1].finished.draft.tokens
    assert [part.finished.draft.tokens for part in parts] == [finished[: n + 1] for n in range(4)]
    assert [part.done for part in parts] == [False, False, False, True]
