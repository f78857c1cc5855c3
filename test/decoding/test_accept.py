"""The acceptance rules by seed: the target's distribution, or its own tokens."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from helpers.exactness import ONE, Model, assert_chi_square, continued, own_tokens, pair, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_cloud_spec.decoding.accept import accept, follow
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.noise import Purpose
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import coupled_token, coupled_token_of
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.split import Split, resample, sparse_residual
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.decoding.token_distribution import TokenDistribution, distribution_of
from edge_cloud_spec.presets import load_preset


class Dice:
    """A chooser of ordinary random numbers, quicker than the seeded one."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def accept(self, probability: float, purpose: Purpose, position: int, trial: int = 0) -> bool:
        return self._random.random() < probability

    def draw(
        self, weights: NDArray[np.floating], purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        cumulative = weights.cumsum()
        return int(cumulative.searchsorted(self._random.random() * cumulative[-1], "right"))


@pytest.mark.parametrize("ids", [None, np.array([1, 4, 7])])
def test_where_p_is_q_a_token_that_rounding_rejects_is_recovered_from_p(
    ids: NDArray[np.int64] | None,
) -> None:
    p = TokenDistribution(np.array([0.5, 0.25, 0.25], np.float32), ids)
    assert p.residual(p).shares.tolist() == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("top_k", [2, 8])
def test_a_million_sparse_resamplings_have_the_residuals_distribution(top_k: int) -> None:
    """Total variation at most 0.003 at a vocabulary of 16, however many trials it takes."""
    p, q = rows_of(Model(2, 16, 1.0), Model(1, 16, 1.0))
    dice = Dice(0)
    told = sparse_residual(p, Split("sparse", top_k, 0), 0, dice)
    runs = 1_000_000
    counts = np.zeros(16)
    for _ in range(runs):
        token = resample(told, q, 0, dice, p)
        assert token is not None
        counts[token] += 1
    assert np.abs(counts / runs - p.residual(q).shares).sum() / 2 < 0.003


@pytest.mark.parametrize("name", ["dsd", "dssd", "dssd_dense", "tslt", "mc_dsd", "best_first"])
def test_many_rounds_by_seed_have_the_targets_distribution(name: str) -> None:
    """The draws of one round are fresh in the next, though positions and seed are the same."""
    models = (Model(3, 3, 1.0), Model(4, 3, 1.0))
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    runs = 700
    for seed in range(runs):
        both = pair(load_preset(name), "rejection", SamplingPolicy(1.0, seed=seed), models)
        while len(both.emitted) < 3:
            both.round()
        counts[both.emitted[:3]] += 1
    assert_chi_square(counts, continued(models[1], ONE, (), 3), runs)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    start=st.integers(0, 50),
    guided=st.booleans(),
    data=st.data(),
)
def test_greedy_and_coupled_emit_the_targets_own_tokens_whatever_is_drafted(
    seed: int, temperature: float, start: int, guided: bool, data: st.DataObject
) -> None:
    policy = SamplingPolicy(temperature, seed=seed)
    target = Model(seed, 4, 1.5)
    own = own_tokens(target, policy, start, 12)
    size = data.draw(st.integers(1, 10))
    parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(size))
    paths: list[tuple[int, ...]] = []
    for node in range(size):
        before = paths[parents[node]] if parents[node] >= 0 else ()
        follows = guided and list(before) == own[: len(before)] and data.draw(st.booleans())
        token = own[len(before)] if follows else data.draw(st.integers(0, 3))
        paths.append((*before, token))
    tokens = tuple(path[-1] for path in paths)
    chain = parents == tuple(range(-1, size - 1)) and data.draw(st.booleans())
    draft = Draft(tokens, None if chain else parents)
    logits = np.stack([target.logits(()), *(target.logits(path) for path in paths)])
    rule = "coupled" if temperature else "greedy"
    taken = accept(rule, draft, LogitRows(logits), policy, start, SeededRandomSource(seed))
    emitted = [*(draft.tokens[node] for node in taken.path), taken.token]
    assert emitted == own[: len(emitted)]
    if len(set(paths)) == len(paths):  # of two equal siblings only the first is followed
        assert len(taken.path) == max(len(p) for p in [(), *paths] if list(p) == own[: len(p)])


def test_coupled_tokens_of_many_seeds_have_the_targets_distribution() -> None:
    target = Model(5, 6, 1.5)
    base = SamplingPolicy(0.8, top_k=5)
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    runs = 2500
    for seed in range(runs):
        policy = SamplingPolicy(0.8, top_k=5, seed=seed)
        counts[tuple(own_tokens(target, policy, 3, 2))] += 1
    assert_chi_square(counts, continued(target, base, (), 2), runs)


def test_coupled_robot_and_cloud_agree_more_often_than_their_draws_would_alone() -> None:
    """Acceptance is at least (1 - TV) / (1 + TV)."""
    draft_model, target = Model(6, 6, 1.0), Model(7, 6, 1.0)
    policies = [SamplingPolicy(1.0, seed=seed) for seed in range(1200)]
    p = target.probabilities((), policies[0])
    q = draft_model.probabilities((), policies[0])
    distance = np.abs(p - q).sum() / 2
    equal = np.mean(
        [
            coupled_token(draft_model.logits(()), policy, 0)
            == coupled_token(target.logits(()), policy, 0)
            for policy in policies
        ]
    )
    assert equal > (1 - distance) / (1 + distance) - 0.05
    assert equal > float(p @ q) + 0.1  # what independent draws would give


def test_the_coupled_token_is_the_same_from_logits_and_from_probabilities() -> None:
    for seed in range(50):
        for policy in (SamplingPolicy(0.7, seed=seed), SamplingPolicy(1.3, 4, 0.9, seed)):
            logits = Model(seed, 40, 2.0).logits(())
            of_row = coupled_token_of(distribution_of(logits, policy), seed, 5)
            assert coupled_token(logits, policy, 5) == of_row


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_draft_that_goes_on_gets_no_bonus(rule: str) -> None:
    target = Model(1, 4, 1.0)
    policy = SamplingPolicy(1.0, seed=3)
    own = own_tokens(target, policy, 0, 2)
    logits = target.along(tuple(own))
    row = distribution_of(logits[0], policy)
    draft = Draft(
        tuple(own), rows=(row, distribution_of(logits[1], policy))
    )  # Q = P: all is accepted
    taken = accept(rule, draft, LogitRows(logits), policy, 0, SeededRandomSource(3), open_at=1)
    assert (taken.path, taken.token, taken.rejected) == ((0, 1), None, None)
    tree = Draft((own[0], 9), (-1, -1))
    assert follow(tree, lambda node: own[node + 1], open_at=0).token is None
    assert follow(tree, lambda node: own[node + 1], open_at=1).token == own[1]
    assert follow(tree, lambda node: 7, open_at=0).token == 7


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
def test_logits_that_are_not_numbers_are_an_error_not_a_token(rule: str) -> None:
    policy = GREEDY if rule == "greedy" else SamplingPolicy(1.0)
    logits = np.zeros((2, 3), np.float32)
    logits[0, 1] = np.nan
    draft = Draft((0,), rows=(TokenDistribution(np.full(3, 1 / 3, np.float32)),))
    with pytest.raises(ValueError, match="not a number"):
        accept(rule, draft, LogitRows(logits), policy, 0, SeededRandomSource(0))
