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
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.target_rows import (
    screened_distribution,
    screened_token,
)
from edge_cloud_spec.decoding.token_distribution import distribution_of

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
def test_a_draw_falls_where_the_cumulative_sum_does(kind: str) -> None:
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
