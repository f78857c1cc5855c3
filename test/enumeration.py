"""All outcomes of a random computation, each with its probability (float64)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_cloud_spec.decoding.noise import Purpose

Result = TypeVar("Result")


class BranchingChooser:
    """Takes the choices of ``script``, then the first of each; notes what else could have been."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.others: list[list[int]] = []
        self.probability = 1.0

    def accept(self, probability: float, position: int) -> bool:
        return bool(self._branch({1: probability, 0: 1.0 - probability}))

    def draw(self, weights: NDArray[np.float64], purpose: Purpose, position: int) -> int:
        total = float(weights.sum())
        return self._branch({i: float(w) / total for i, w in enumerate(weights)})

    def _branch(self, options: dict[int, float]) -> int:
        possible = [choice for choice, probability in options.items() if probability > 0]
        depth = len(self.taken)
        choice = self.script[depth] if depth < len(self.script) else possible[0]
        self.taken.append(choice)
        self.others.append(possible[1:])
        self.probability *= options[choice]
        return choice


def outcomes(run: Callable[[BranchingChooser], Result]) -> Iterator[tuple[Result, float]]:
    """What ``run`` gives for every sequence of choices, and how probable that sequence is."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        script = scripts.pop()
        chooser = BranchingChooser(script)
        yield run(chooser), chooser.probability
        for depth in range(len(script), len(chooser.taken)):
            for other in chooser.others[depth]:
                scripts.append((*chooser.taken[:depth], other))
