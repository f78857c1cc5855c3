"""The draft's side of each acceptance rule: which token it proposes from its own logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .choose import Chooser
from .noise import Purpose, gumbel
from .policy import SamplingPolicy, distribution, scaled_logits


def coupled_token(logits: NDArray[np.float32], policy: SamplingPolicy, position: int) -> int:
    """argmax(log Q + G), the Gumbel-max token of logits [V]; at temperature 0 their argmax.

    Robot and cloud share the noise G, keyed by (seed, position, token), so that equal
    distributions give equal tokens (Daliri, Musco and Suresh 2024, drafter-invariant sampling).
    """
    scaled = scaled_logits(logits, policy)
    if policy.temperature == 0:
        return int(scaled.argmax())
    support = np.flatnonzero(scaled > -np.inf)
    return int(support[(scaled[support] + gumbel(policy.seed, position, support)).argmax()])


def sampled_token(
    logits: NDArray[np.float32], policy: SamplingPolicy, position: int, chooser: Chooser
) -> tuple[int, NDArray[np.float32]]:
    """A token x ~ Q and the row Q [V] float32 that it was drawn from."""
    row = distribution(logits, policy)
    return chooser.draw(row.astype(np.float64), Purpose.DRAFT, position), row
