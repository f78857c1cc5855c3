"""The target's rows: the few tokens that count, and what rejections leave of a long row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_cloud_spec.decoding.noise import GUMBEL_MAX, LOG_2_31, GumbelBounds, Purpose, gumbel
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.decoding.random_source import BLOCK, SeededRandomSource
from edge_cloud_spec.decoding.target_rows import (
    DEEP,
    LongResidual,
    LongRow,
    screened_distribution,
    screened_token,
)
from edge_cloud_spec.decoding.token_distribution import TokenDistribution, distribution_of

KINDS = ("normal", "equal", "rounded", "nearly equal", "cut off", "tiny", "one huge", "huge")
policies = st.builds(
    SamplingPolicy,
    st.sampled_from([0.0, 1e-300, 1e-44, 1e-20, 1e-6, 0.1, 0.7, 1.0, 2.0, 100.0]),
    st.sampled_from([0, 0, 1, 2, 50, 10**6]),
    st.sampled_from([1.0, 1.0, 0.9, 0.5, 1e-3, 0.999999]),
    st.integers(0, 2**64 - 1),
)


def row(kind: str, size: int, seed: int) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    logits = random.standard_normal(size) * random.choice([1e-7, 0.1, 1, 5, 100])
    if kind == "equal":
        logits[:] = random.standard_normal()
    elif kind == "rounded":
        logits = np.round(logits)
    elif kind == "nearly equal":
        logits = 1 + 1e-7 * random.integers(0, 3, size)
    elif kind == "cut off":
        logits[random.random(size) < 0.5] = -np.inf
        logits[random.integers(size)] = 1.0
    elif kind == "tiny":
        logits *= 1e-44
    elif kind == "one huge":
        logits[random.integers(size)] = 3e38
    elif kind == "huge":
        logits *= 1e34
    return logits.astype(np.float32)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    size=st.sampled_from([2, 3, 10, 300, 8192, 8193, 20_000]),
    seed=st.integers(0, 10**6),
    policy=policies,
    position=st.integers(0, 10**4),
)
def test_the_screen_finds_what_float64_decides(
    kind: str, size: int, seed: int, policy: SamplingPolicy, position: int
) -> None:
    logits = row(kind, size, seed)
    assert screened_token(logits, policy, position) == coupled_token(logits, policy, position)
    full, screened = distribution_of(logits, policy), screened_distribution(logits, policy)
    assert (full.ids is None) == (screened.ids is None)
    if full.ids is None:
        assert np.abs(full.shares - screened.shares).max() < 1e-6
    else:
        assert np.array_equal(full.ids, screened.ids)
        assert np.array_equal(full.probabilities, screened.probabilities)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_at_a_real_vocabulary_the_tokens_are_the_same_for_many_positions(
    temperature: float,
) -> None:
    for seed, kind in enumerate(KINDS):
        logits = row(kind, 151_936, seed)
        for policy in (
            SamplingPolicy(temperature, seed=seed),
            SamplingPolicy(temperature, 50, 0.95, seed),
        ):
            assert screened_token(logits, policy, 7) == coupled_token(logits, policy, 7)


def test_bounds_are_above_the_noise_and_close_where_it_is_loud() -> None:
    for position in range(20):
        noise = gumbel(3, position, np.arange(20_000))
        bounds = LOG_2_31 - np.concatenate(_parts(GumbelBounds(3, position, 8192), 20_000))
        assert (bounds - noise).min() > -1e-5 and noise.max() < GUMBEL_MAX
        assert (bounds - noise)[noise > 5].max() < 0.01


def _parts(bounds: GumbelBounds, size: int) -> list[NDArray[np.float32]]:
    with np.errstate(all="ignore"):
        return [
            bounds.logs(start, min(8192, size - start)).copy() for start in range(0, size, 8192)
        ]


@pytest.mark.parametrize("kind", ["normal", "equal", "nearly equal", "one huge"])
def test_a_draw_from_blocks_falls_where_the_cumulative_sum_does(kind: str) -> None:
    weights = np.exp(row(kind, 5000, 3).astype(np.float64).clip(-50, 50))
    weights[::3] = 0
    for seed in range(200):
        source = SeededRandomSource(seed)
        place = source.draw(weights, Purpose.RESIDUAL, 5)
        share = SeededRandomSource(seed)
        assert weights[place] > 0
        below = weights[:place].sum() / weights.sum()
        assert not share.accept(below - 1e-12, Purpose.RESIDUAL, 5)
        assert share.accept(below + weights[place] / weights.sum() + 1e-12, Purpose.RESIDUAL, 5)


ONE = SamplingPolicy(1.0)
ROW_KINDS = ("far", "near", "ties", "one above", "sparse", "one token each")


def logits_of(kind: str, size: int) -> NDArray[np.float32]:
    logits = np.random.default_rng(size).standard_normal(size).astype(np.float32) * 3
    return np.round(logits) if kind == "ties" else logits


def drafts_of(kind: str, p: TokenDistribution) -> list[TokenDistribution]:
    """The Qs of candidates that were rejected one after the other; Q1 twice."""
    size = len(p.probabilities)
    random = np.random.default_rng(size + 1)
    if kind == "one above":  # everywhere else Q is above P
        numbers = p.probabilities * np.float32(1.5)
        numbers[size - 1] = 0.0
        return [TokenDistribution(numbers)] * 2 + [TokenDistribution(numbers.copy())]
    if kind == "one token each":
        likely = np.argsort(-p.probabilities)[: DEEP + 2]
        return [TokenDistribution(np.ones(1), likely[i : i + 1]) for i in range(DEEP + 2)]
    if kind == "sparse":
        ids = [np.sort(random.choice(size, 99, replace=False)) for _ in range(2)]
        sparse = [TokenDistribution(random.random(99).astype(np.float32), each) for each in ids]
        return [sparse[0], sparse[0], sparse[1]]
    amount = {"far": 1.0, "near": 1e-4, "ties": 0.0}[kind]
    logits = np.log(p.probabilities)
    if kind == "ties":  # each as likely as in P, or off by a whole step
        logits = logits + random.integers(-1, 2, size).astype(np.float32)
    noise = amount * random.standard_normal((2, size)).astype(np.float32)
    first, second = (distribution_of(logits + each, ONE) for each in noise)
    return [first, first, second]


@pytest.mark.parametrize("kind", ROW_KINDS)
@pytest.mark.parametrize("size", [5000, 32 * BLOCK, 40_000, 151_936])
def test_the_same_tokens_and_numbers_are_left_as_of_float64_rows(kind: str, size: int) -> None:
    p = screened_distribution(logits_of(kind, size), ONE)
    assert isinstance(p, LongRow)
    ours: LongRow | LongResidual | TokenDistribution = p
    full = TokenDistribution(p.probabilities)
    for drafted in drafts_of(kind, p):
        ours, full = ours.residual(drafted), full.residual(drafted)
        assert np.abs(ours.dense().shares - full.shares).max() < 1e-9
        for seed in range(5):
            token = ours.draw(SeededRandomSource(seed), Purpose.RESIDUAL, 3)
            assert token == full.draw(SeededRandomSource(seed), Purpose.RESIDUAL, 3)
            assert ours.at(token) == pytest.approx(full.at(token), rel=1e-6)
            if kind == "one above":
                assert token == size - 1
    if kind == "far":  # what is left of a wrong Q is not that
        assert np.abs(p.residual(drafts_of(kind, p)[2]).dense().shares - full.shares).max() > 1e-6


def test_of_equal_p_and_q_p_is_left_and_of_a_row_that_is_cut_off_only_its_support() -> None:
    p = screened_distribution(logits_of("far", 9000), ONE)
    assert p.residual(TokenDistribution(p.probabilities.copy())) is p
    logits = logits_of("far", 9000)
    logits[::2] = -np.inf
    cut = screened_distribution(logits, ONE)
    left = cut.residual(distribution_of(np.zeros(9000, np.float32), ONE))
    for seed in range(20):
        assert left.draw(SeededRandomSource(seed), Purpose.RESIDUAL, 0) % 2 == 1
