"""Two scripted models that agree as often as a regime gives; their probabilities are calibrated."""

from __future__ import annotations

import math

import numpy as np

from .model import mix

VOCABULARY = 64
_SCALE = 2.0**64


class CalibratedModel:
    """Logits are a function of the prefix, which a state names (see ``scripted_model``).

    As target: the right token far above all others. As draft model: the right token first at a
    share ``alpha`` of all prefixes, and second at a share ``runner_up`` of the others; its
    probabilities are these shares: they are calibrated.
    """

    def __init__(self, alpha: float = 1.0, runner_up: float = 0.0) -> None:
        self._alpha, self._runner_up = alpha, runner_up
        confidence = min(max(alpha, 0.01), 0.99)
        second = (1 - confidence) * max(runner_up, 0.02)
        rest = max(1 - confidence - second, 1e-3) / (VOCABULARY - 2)
        self._levels = [math.log(level) for level in (confidence, second, rest)]

    def begin(self, seed: int) -> int:
        """The state before the first token of the answer with this seed."""
        return mix(seed, 0)

    def after(self, state: int, token: int) -> int:
        """The state of the prefix with one token more."""
        return mix(state, token + 3)

    def row(self, state: int) -> np.ndarray:
        """Logits float32 [V]."""
        right = mix(state, 1) % VOCABULARY
        wrong = (right + 1 + mix(state, 2) % (VOCABULARY - 1)) % VOCABULARY
        other = (right + 1 + mix(state, 5) % (VOCABULARY - 1)) % VOCABULARY
        if mix(state, 3) / _SCALE < self._alpha:
            first, second = right, wrong
        elif mix(state, 4) / _SCALE < self._runner_up:
            first, second = wrong, right
        else:
            first, second = wrong, other if other != wrong else (wrong + 1) % VOCABULARY
        if second == first:
            second = (first + 1) % VOCABULARY
        row = np.full(VOCABULARY, self._levels[2], np.float32)
        row[second], row[first] = self._levels[1], self._levels[0]
        return row
