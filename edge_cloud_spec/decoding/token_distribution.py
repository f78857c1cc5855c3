"""A distribution over the vocabulary: the exact numbers that a token is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .noise import Purpose
from .policy import SamplingPolicy, scaled_logits, softmax, truncated
from .random_source import RandomSource


@dataclass(frozen=True, eq=False)
class TokenDistribution:
    """Probabilities [V], or [K] of the ascending token ``ids`` [K] (0 elsewhere).

    The numbers are relative to their float64 sum: float32 probabilities sum to 1 only up to
    rounding, and both sides normalize alike.
    """

    probabilities: NDArray[np.floating]
    ids: NDArray[np.int64] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the probabilities and ids."""
        return self.probabilities.nbytes + (0 if self.ids is None else self.ids.nbytes)

    @cached_property
    def total(self) -> float:
        """The float64 sum of the stored numbers."""
        return float(self.probabilities.sum(dtype=np.float64))

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """The normalized probabilities, float64, of the support's tokens."""
        shares: NDArray[np.float64] = np.divide(self.probabilities, self.total, dtype=np.float64)
        return shares

    def at(self, token: int) -> float:
        """The probability of one token."""
        if self.ids is None:
            return float(self.probabilities[token]) / self.total
        place = int(np.searchsorted(self.ids, token))
        if place == len(self.ids) or self.ids[place] != token:
            return 0.0
        return float(self.probabilities[place]) / self.total

    def over(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probabilities of these tokens."""
        if self.ids is None:
            return self.shares[ids]
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[place] == ids, self.shares[place], 0.0)

    def without(self, token: int) -> TokenDistribution:
        """The distribution without this token, unnormalized; may be empty."""
        kept = self.probabilities.copy()
        place = token if self.ids is None else int(np.searchsorted(self.ids, token))
        kept[place] = 0.0
        return TokenDistribution(kept, self.ids)

    def residual(self, draft: TokenDistribution) -> TokenDistribution:
        """The distribution norm(max(0, P - Q)) of the recovered token (Leviathan et al. 2023).

        ``self`` is P, ``draft`` Q. Returns P if P - Q is nowhere positive (equal up to rounding).
        """
        weights = self.probabilities.astype(np.float64)  # relative to P's total
        if self.ids is None:
            taken = np.multiply(draft.probabilities, self.total / draft.total, dtype=np.float64)
            weights[slice(None) if draft.ids is None else draft.ids] -= taken
        else:
            weights -= self.total * draft.over(self.ids)
        np.maximum(weights, 0.0, out=weights)
        return TokenDistribution(weights, self.ids) if weights.any() else self

    def dense(self) -> TokenDistribution:
        """Returns itself, as a ``TargetRow`` that is computed already."""
        return self

    def draw(
        self, random_source: RandomSource, purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        """Sample a token."""
        place = random_source.draw(self.probabilities, purpose, position, trial)
        return place if self.ids is None else int(self.ids[place])


def distribution_of(
    logits: NDArray[np.float32], policy: SamplingPolicy, top_k: int = 0, top_p: float = 1.0
) -> TokenDistribution:
    """The policy's distribution float32 of logits [V]; sparse if tokens are cut off.

    ``top_k`` and ``top_p`` cut a draft's distribution further, *before* sampling, so that what is
    sent is what was sampled from (TSLT section 3, sparsify then sample).
    """
    scaled = scaled_logits(logits, policy)
    if policy.temperature == 0:
        return TokenDistribution(np.ones(1, np.float32), np.array([int(scaled.argmax())]))
    scaled = truncated(scaled, top_k, top_p)
    inside = scaled > -np.inf
    if inside.all():
        return TokenDistribution(softmax(scaled).astype(np.float32))
    ids = np.flatnonzero(inside)
    return TokenDistribution(softmax(scaled[ids]).astype(np.float32), ids)
