"""Scripted models whose distributions have a stated tail; no weights.

The target's logits are -s ln(rank), so that P falls as rank^-s (Zipf), with the tokens in another
order after each prefix. The draft model's are the same plus normal noise of standard deviation
``NOISE``, drawn for each token and each prefix alone. At temperature T the exponent is s / T and
the noise NOISE / T.

At temperature 1 and 151,936 tokens:

| tail | s | perplexity | mass outside the likeliest 32 | acceptance |
|---|---|---|---|---|
| sharp | 3 | 2.0 | 0.0004 | 0.85 |
| typical | 2 | 5.1 | 0.019 | 0.74 |
| heavy | 1.25 | 163 | 0.34 | 0.64 |

``heavy`` keeps 0.85 of its mass in 1 % of 32,000 tokens, as TSLT's figure 3 shows it of a real
model. What real pairs have and these have not: rows of several sharpnesses in one answer, and a
draft model that errs alike on like tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .scripted.model import FakeVlm, mix

TAILS = {"sharp": 3.0, "typical": 2.0, "heavy": 1.25}
NOISE = 1.0  # of the draft model
POOL = 8  # rows that are drawn; a prefix has one of them, rolled, so no two are equal in practice


class PowerLaw(FakeVlm):
    """Logits [V] of one tail; those of the same seed and ``noise`` 0 are the target's."""

    def __init__(self, exponent: float, vocabulary: int, seed: int, noise: float = 0.0) -> None:
        self.vocabulary = vocabulary
        rng = np.random.default_rng((seed, vocabulary, 0x7A))
        logits = (-exponent * np.log(np.arange(1, vocabulary + 1))).astype(np.float32)
        self._rows = [rng.permutation(logits) for _ in range(POOL)]
        self._noise = [
            np.float32(noise) * rng.standard_normal(vocabulary, np.float32)
            for _ in range(POOL if noise else 0)
        ]

    def start(self, prompt: int) -> int:
        """The prompt is a number."""
        return mix(prompt, 0)

    def after(self, state: int, token: int) -> int:
        """The state of the prefix with one token more."""
        return mix(state, token + 3)

    def row(self, state: int) -> NDArray[np.float32]:
        """Logits float32 [V] after the prefix with this state."""
        row = _rolled(self._rows, mix(state, 1))
        return row + _rolled(self._noise, mix(state, 2)) if self._noise else row


def _rolled(rows: list[NDArray[np.float32]], state: int) -> NDArray[np.float32]:
    return np.roll(rows[state % len(rows)], (state >> 8) % len(rows[0]))


def power_law_pair(
    tail: str, vocabulary: int, seed: int, noise: float = NOISE
) -> tuple[PowerLaw, PowerLaw]:
    """The draft model, then the target, of the tail with this name."""
    exponent = TAILS[tail]
    return PowerLaw(exponent, vocabulary, seed, noise), PowerLaw(exponent, vocabulary, seed)
