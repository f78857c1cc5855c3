"""The target's logits on the device that computed them: numpy views on a CPU, tensors elsewhere.

Only ids, single probabilities and the few logits that decide are copied to the host. A whole
distribution is copied at most once per verdict: for a residual, a draw, or top-k and top-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.noise import GOLDEN, LOG_2_31, MIXERS, Purpose, coupled_key
from ...decoding.policy import SamplingPolicy, check_top
from ...decoding.processors import Adjustment, AdjustmentAfter
from ...decoding.random_source import RandomSource
from ...decoding.target_rows import (
    MAX_INVERSE_TEMPERATURE,
    SCORE_MARGIN,
    TargetRow,
    scores_of,
    screened_distribution,
    screened_token,
)
from ...decoding.token_distribution import TokenDistribution

DeviceRows = NDArray[np.float32] | Tensor  # float32 [..., V]; numpy on a CPU


def on_device(rows: Tensor) -> DeviceRows:
    """Logits of a pass: a numpy view if they are in host memory, else the tensor."""
    return rows.numpy() if rows.device.type == "cpu" else rows


def on_host(rows: DeviceRows) -> NDArray[np.float32]:
    """Logits in host memory, as a numpy array."""
    return rows.cpu().numpy() if isinstance(rows, Tensor) else rows


def stacked(rows: Sequence[DeviceRows]) -> DeviceRows:
    """Stack logits [V] to [n, V], on the device of the last."""
    if isinstance(rows[-1], Tensor):
        return torch.stack([torch.as_tensor(row, device=rows[-1].device) for row in rows])
    return np.stack([on_host(row) for row in rows])


def adjusted_row(row: Tensor, adjustment: Adjustment) -> Tensor:
    """``Adjustment.of`` for logits [V] on any device."""
    if adjustment.seen is not None:
        seen, penalty = torch.from_numpy(adjustment.seen).to(row.device), adjustment.penalty
        few = row[seen]
        row = row.index_copy(0, seen, torch.where(few < 0, few * penalty, few / penalty))
    if adjustment.allowed is None:
        return row
    return row.masked_fill(~torch.from_numpy(adjustment.allowed).to(row.device), -torch.inf)


class TensorRows:
    """``TargetRows`` over logits [1 + n, V] on any device; equals ``LogitRows``."""

    def __init__(self, logits: Tensor, adjusted: AdjustmentAfter | None = None) -> None:
        self._logits = logits.float()
        self._adjusted = adjusted

    @cached_property
    def _tops(self) -> tuple[list[float], list[int]]:
        """The largest logit of each row (NaN if there is one), and its first index."""
        with torch.inference_mode():
            best = self._logits.argmax(-1)
            tops = self._logits.gather(-1, best[:, None])[:, 0]
            return tops.tolist(), best.tolist()

    def token(self, node: int, policy: SamplingPolicy, position: int) -> int:
        """The target's token after this node, as sampled at this position of the answer."""
        row, top, best = self._row(node)
        check_top(np.array(top))
        if policy.temperature == 0:
            return int(best)
        if policy.truncates:
            return screened_token(on_host(row), policy, position)
        with torch.inference_mode():
            return _coupled_token(row, top, policy, position)

    def row(self, node: int, policy: SamplingPolicy) -> TargetRow:
        """The target's distribution P after this node."""
        row, top, _ = self._row(node)
        check_top(np.array(top))
        whole = policy.temperature == 0 or policy.truncates
        if whole or policy.temperature * MAX_INVERSE_TEMPERATURE < 1 or not row.min().isfinite():
            return screened_distribution(on_host(row), policy)
        with torch.inference_mode():
            return TensorRow(torch.softmax((row - top) * (1 / policy.temperature), -1))

    def log_prob(self, node: int, token: int) -> float:
        """The log probability of a token after this node, by the raw logits."""
        check_top(np.array(self._tops[0][node + 1]))
        return float(self._logits[node + 1, token]) - self._totals[node + 1]

    @cached_property
    def _totals(self) -> list[float]:
        """log sum exp of each row."""
        with torch.inference_mode():
            return torch.logsumexp(self._logits, -1).tolist()

    def _row(self, node: int) -> tuple[Tensor, float, int]:
        """The logits after a node, the largest, and its first index."""
        if self._adjusted is None:
            return self._logits[node + 1], self._tops[0][node + 1], self._tops[1][node + 1]
        with torch.inference_mode():
            row = adjusted_row(self._logits[node + 1], self._adjusted(node))
            best = row.argmax()
            return row, float(row[best]), int(best)


def _coupled_token(row: Tensor, top: float, policy: SamplingPolicy, position: int) -> int:
    """``coupled_token``, with the screening and margin of ``decoding.target_rows``."""
    scores = (row - top) * min(1 / policy.temperature, MAX_INVERSE_TEMPERATURE)
    scores -= _logs(policy.seed, position, row)
    scores.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    ids = scores.argmax()[None]
    # The token with the largest bound; a winner's score reaches its score.
    least = float(_scores(row, ids, top, policy, position)[0]) - SCORE_MARGIN - LOG_2_31
    ids = (scores >= least).nonzero()[:, 0]
    return int(ids[int(_scores(row, ids, top, policy, position).argmax())])


def _scores(
    row: Tensor, ids: Tensor, top: float, policy: SamplingPolicy, position: int
) -> NDArray[np.float64]:
    few = row[ids].cpu().numpy()
    return scores_of(few, np.float32(top), ids.cpu().numpy(), policy, position)


def _logs(seed: int, position: int, row: Tensor) -> Tensor:
    """log c of all tokens, float32 [V]; see ``GumbelBounds``."""
    x = torch.arange(len(row), device=row.device)
    x = (x + _signed(coupled_key(seed, position))) * _signed(GOLDEN) + _signed(GOLDEN)
    for shift, mixer in MIXERS:
        x ^= (x >> shift) & (1 << 64 - shift) - 1  # clears the sign bits of an arithmetic shift
        x *= _signed(mixer)
    c = (1 << 31) - 1 - ((x >> 33) & (1 << 31) - 1)
    return c.float().log_()


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return word - (1 << 64) if word >> 63 else word


class TensorRow:
    """P after one node, float32 [V] on any device; copied to the host at its first residual."""

    def __init__(self, probabilities: Tensor) -> None:
        self._probabilities = probabilities

    @cached_property
    def _total(self) -> float:
        return float(self._probabilities.sum(dtype=torch.float64))

    @cached_property
    def _whole(self) -> TokenDistribution:
        return TokenDistribution(on_host(self._probabilities))

    def at(self, token: int) -> float:
        """The probability of one token."""
        return float(self._probabilities[token]) / self._total

    def residual(self, draft: TokenDistribution) -> TargetRow:
        """The distribution norm(max(0, P - Q)) of the recovered token."""
        return self._whole.residual(draft)

    def draw(
        self, random_source: RandomSource, purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        """Sample a token from P."""
        return self._whole.draw(random_source, purpose, position, trial)

    def dense(self) -> TokenDistribution:
        """P in host memory [V], as split resampling sends it to the robot."""
        return self._whole
