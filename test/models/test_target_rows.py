"""Rows that stay in a tensor answer the acceptance rules as numpy's do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edge_cloud_spec.decoding.accept import accept
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.processors import (
    LogitsProcessing,
    LogitsProcessors,
    adjustment_after,
)
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.target_rows import LogitRows, TargetRows
from edge_cloud_spec.decoding.token_distribution import distribution_of
from edge_cloud_spec.models.pass_request import target_rows
from edge_cloud_spec.models.passes.target_rows import TensorRows
from edge_cloud_spec_lab.harness.toy import ToyGrammar

SCALES = (0.0, 1e-7, 0.1, 1.0, 5.0, 100.0, 1e34)
KEPT = (SamplingPolicy(1.0, 5), SamplingPolicy(0.7, 0, 0.9), SamplingPolicy(1.0, 50, 0.5))


def logits_of(seed: int, size: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((3, size)) * SCALES[seed % len(SCALES)]
    if seed % 3 == 1:
        rows = np.round(rows)
    if seed % 4 == 1:
        rows[:, 1::2] = -np.inf
    return rows.astype(np.float32)


@pytest.mark.parametrize("size", [2, 50, 9000])
def test_tokens_are_those_of_float64(size: int) -> None:
    for seed in range(60):
        logits = logits_of(seed, size)
        rows = TensorRows(torch.from_numpy(logits))
        for temperature in (0.0, 1e-300, 1e-6, 0.7, 1.0, 100.0):
            policy = SamplingPolicy(temperature, seed=seed << 40)
            for node in (-1, 0, 1):
                expected = coupled_token(logits[node + 1], policy, seed)
                assert rows.token(node, policy, seed) == expected
        for policy in KEPT:
            assert rows.token(1, policy, 3) == coupled_token(logits[2], policy, 3)


def test_tokens_of_bfloat16_logits_and_of_a_real_vocabulary() -> None:
    for seed in (3, 4, 5, 9):
        logits = torch.from_numpy(logits_of(seed, 151_936)).bfloat16()
        exact = logits.float().numpy()
        for policy in (GREEDY, SamplingPolicy(0.8, seed=seed)):
            assert TensorRows(logits).token(-1, policy, 6) == coupled_token(exact[0], policy, 6)


def rows_over(kind: str, logits: np.ndarray) -> TargetRows:
    return LogitRows(logits) if kind == "numpy" else TensorRows(torch.from_numpy(logits))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("size", [100, 9000])
@pytest.mark.parametrize(
    ("where", "what"), [(7, np.nan), (7, np.inf), (slice(None), -np.inf)], ids=str
)
@pytest.mark.parametrize("policy", [GREEDY, SamplingPolicy(1.0), KEPT[0]])
def test_a_row_that_holds_no_numbers_is_an_error_and_the_others_are_not(
    kind: str, size: int, where: int | slice, what: float, policy: SamplingPolicy
) -> None:
    logits = logits_of(3, size)
    logits[1, where] = what
    rows = rows_over(kind, logits)
    with pytest.raises(ValueError, match="not a number"):
        rows.token(0, policy, 0)
    with pytest.raises(ValueError, match="not a number"):
        rows.row(0, policy)
    assert rows.token(1, policy, 0) >= 0


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("size", [100, 9000])
def test_log_probabilities_are_of_the_raw_logits(kind: str, size: int) -> None:
    own = LogitsProcessing(repetition_penalty=1.3)
    processors = LogitsProcessors(size, ToyGrammar("some", size), own, range(0, size, 3))
    logits = 9 * logits_of(3, size)
    wrapped = logits if kind == "numpy" else torch.from_numpy(logits)
    rows = target_rows(wrapped, adjustment_after(processors, (1,), Draft((3, 4))))
    expected = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    for node, token in ((-1, 5), (0, 3), (1, size - 1), (0, 4)):
        assert rows.log_prob(node, token) == pytest.approx(expected[node + 1, token], abs=1e-5)
        assert rows.log_prob(node, token) <= 0
    logits[2, 7] = np.nan
    rows = target_rows(logits if kind == "numpy" else torch.from_numpy(logits))
    with pytest.raises(ValueError, match="not a number"):
        rows.log_prob(1, 3)


def test_rejection_decides_as_over_numpys_rows() -> None:
    same = 0
    for seed in range(150):
        random = np.random.default_rng(seed)
        policy = (*KEPT, SamplingPolicy(1.0), SamplingPolicy(0.6))[seed % 5]
        logits = random.standard_normal((5, 40)).astype(np.float32)
        qs = random.standard_normal((5, 40)).astype(np.float32)
        parents = (None, (-1, -1, 0, 0))[seed % 2]
        looked_up = seed // 2 % 3
        inner = Draft((0,) * 4, parents, looked_up=looked_up).inner
        rows = tuple(distribution_of(qs[node + 1], SamplingPolicy(1.0)) for node in inner)
        draft = Draft(tuple(random.integers(0, 40, 4).tolist()), parents, rows, None, looked_up)
        if seed % 3 == 0 and parents is None:
            values = (0.3, 0.1, 0.2, 0.01)[: draft.drafted]
            draft = Draft(draft.tokens, values=values, looked_up=looked_up)
        takes = [
            accept("rejection", draft, rows_over(kind, logits), policy, 4, SeededRandomSource(seed))
            for kind in ("numpy", "torch")
        ]
        assert takes[0].path == takes[1].path and takes[0].token == takes[1].token
        if takes[0].rejected is not None and takes[1].rejected is not None:
            assert takes[0].rejected.at(3) == pytest.approx(takes[1].rejected.at(3), abs=1e-6)
            same += 1
    assert same > 5


@pytest.mark.parametrize("size", [50, 9000])
def test_processors_change_tensors_as_numpy_rows(size: int) -> None:
    own = LogitsProcessing(repetition_penalty=1.3)
    processors = LogitsProcessors(size, ToyGrammar("some", size), own, range(0, size, 3))
    adjusted = adjustment_after(processors, (1,), Draft((3, 4)))
    for seed in range(3):
        logits = np.random.default_rng(seed).standard_normal((3, size)).astype(np.float32)
        tensors, rows = (target_rows(each, adjusted) for each in (torch.from_numpy(logits), logits))
        assert isinstance(tensors, TensorRows)
        for policy in (GREEDY, SamplingPolicy(0.8, seed=seed), *KEPT):
            for node in (-1, 0, 1):
                assert tensors.token(node, policy, 2) == rows.token(node, policy, 2)
                there, here = (each.row(node, policy).dense() for each in (tensors, rows))
                ids = np.arange(size)
                assert there.over(ids) == pytest.approx(here.over(ids), abs=1e-6)
