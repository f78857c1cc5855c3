"""All outcomes of a random computation, each with its probability (float64)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_cloud_spec.decoding.noise import Purpose

Result = TypeVar("Result")


class Unfinished(Exception):
    """A loop that may go on for ever has been left."""


class BranchingChooser:
    """Takes the choices of ``script``, then the first of each; notes what else could have been.

    A trial beyond ``trials`` is not made: Unfinished.
    """

    def __init__(self, script: tuple[int, ...], trials: int | None = None) -> None:
        self.script, self.trials = script, trials
        self.taken: list[int] = []
        self.others: list[list[int]] = []
        self.probability = 1.0
        self._made: dict[tuple[Purpose, int, int], int] = {}

    def accept(self, probability: float, purpose: Purpose, position: int, trial: int = 0) -> bool:
        options = {1: probability, 0: 1.0 - probability}
        return bool(self._branch((purpose, position, trial), options))

    def draw(
        self, weights: NDArray[np.floating], purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        shares = weights.astype(np.float64) / weights.sum(dtype=np.float64)
        return self._branch((purpose, position, trial), dict(enumerate(shares.tolist())))

    def _branch(self, key: tuple[Purpose, int, int], options: dict[int, float]) -> int:
        if key in self._made:  # the same choice again
            assert options[self._made[key]] > 0
            return self._made[key]
        if key[0] is Purpose.RESIDUAL and key[2] == self.trials:
            raise Unfinished
        possible = [choice for choice, probability in options.items() if probability > 0]
        depth = len(self.taken)
        choice = self.script[depth] if depth < len(self.script) else possible[0]
        self.taken.append(choice)
        self.others.append(possible[1:])
        self.probability *= options[choice]
        self._made[key] = choice
        return choice


def outcomes(
    run: Callable[[BranchingChooser], Result], trials: int | None = None
) -> Iterator[tuple[Result | None, float]]:
    """What ``run`` gives for every sequence of choices, and how probable that sequence is.

    None is what a sequence gives that would need more than this many ``trials``.
    """
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        script = scripts.pop()
        random_source = BranchingChooser(script, trials)
        try:
            result = run(random_source)
        except Unfinished:
            result = None
        yield result, random_source.probability
        for depth in range(len(script), len(random_source.taken)):
            for other in random_source.others[depth]:
                scripts.append((*random_source.taken[:depth], other))
