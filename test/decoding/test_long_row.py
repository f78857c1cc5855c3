"""What rejections leave of a long row, of which no row is kept, is what float64 rows leave."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.enumeration import outcomes
from numpy.typing import NDArray

from edge_cloud_spec.decoding import target_rows
from edge_cloud_spec.decoding.accept import accept
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.noise import Purpose
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.random_source import BLOCK, SeededRandomSource
from edge_cloud_spec.decoding.target_rows import (
    DEEP,
    LogitRows,
    LongResidual,
    LongRow,
    screened_distribution,
)
from edge_cloud_spec.decoding.token_distribution import TokenDistribution, distribution_of

ONE = SamplingPolicy(1.0)
KINDS = ("far", "near", "ties", "one above", "sparse", "one token each")


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [5000, 32 * BLOCK, 40_000, 151_936])
def test_the_same_tokens_and_numbers_are_left_as_of_float64_rows(kind: str, size: int) -> None:
    p = screened_distribution(logits_of(kind, size), ONE)
    assert isinstance(p, LongRow)
    ours: LongRow | LongResidual | TokenDistribution = p
    full = TokenDistribution(p.probabilities)
    for drafted in drafts_of(kind, p):
        ours, full = ours.residual(drafted), full.residual(drafted)
        assert np.abs(ours.told().shares - full.shares).max() < 1e-9
        for seed in range(5):
            token = ours.draw(SeededRandomSource(seed), Purpose.RESIDUAL, 3)
            assert token == full.draw(SeededRandomSource(seed), Purpose.RESIDUAL, 3)
            assert ours.at(token) == pytest.approx(full.at(token), rel=1e-6)
            if kind == "one above":
                assert token == size - 1
    if kind == "far":  # what is left of a wrong Q is not that
        assert np.abs(p.residual(drafts_of(kind, p)[2]).told().shares - full.shares).max() > 1e-6


def test_of_equal_p_and_q_p_is_left_and_of_a_row_that_is_cut_off_only_its_support() -> None:
    p = screened_distribution(logits_of("far", 9000), ONE)
    assert p.residual(TokenDistribution(p.probabilities.copy())) is p
    logits = logits_of("far", 9000)
    logits[::2] = -np.inf
    cut = screened_distribution(logits, ONE)
    left = cut.residual(distribution_of(np.zeros(9000, np.float32), ONE))
    for seed in range(20):
        assert left.draw(SeededRandomSource(seed), Purpose.RESIDUAL, 0) % 2 == 1


@pytest.mark.parametrize("replacement", [True, False])
def test_candidates_with_and_without_replacement_emit_p_by_enumeration(
    monkeypatch: pytest.MonkeyPatch, replacement: bool
) -> None:
    """Every outcome with its probability, of a draft of three siblings."""
    monkeypatch.setattr(target_rows, "SMALL", 0)
    random = np.random.default_rng(4)
    logits = random.standard_normal((4, 5)).astype(np.float32)
    q = distribution_of(2 * random.standard_normal(5).astype(np.float32), ONE)
    p = screened_distribution(logits[0], ONE)
    emitted = np.zeros(5)
    for drafted in np.ndindex(5, 5, 5):
        if not replacement and len(set(drafted)) < 3:
            continue
        chance, drawn = 1.0, q
        for token in drafted:
            chance *= drawn.at(token)
            drawn = drawn if replacement else drawn.without(token)
        draft = Draft(drafted, (-1, -1, -1), rows=(q,))
        for taken, probability in outcomes(
            lambda source, draft=draft: accept(
                "rejection", draft, LogitRows(logits), ONE, 0, source, replacement=replacement
            )
        ):
            token = drafted[taken.path[0]] if taken.path else taken.token
            emitted[token] += chance * probability
    assert np.abs(emitted - p.shares).max() < 1e-12
