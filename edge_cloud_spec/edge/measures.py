"""What a robot measures of its decodes: shares and times, slowly forgotten; for ``auto``."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.cost_model import Costs
from ..decoding.growth import FinishedDraft

MEMORY = 0.995  # what an observation still counts for, one observation later
RECENT = 0.97  # the same of a time
SLOPE = 0.015  # of the target's pass, for each node beyond those it was seen with; assumed
WIDER = 0.03  # of the draft model's
FLAT = 16  # nodes that a pass is taken to have for the price of those it was seen with
MAX_NODES = 256


class Mean:
    """A mean with a prior, which counts for ``weight`` observations.

    ``total`` and ``count`` are of the observations alone, none of them forgotten.
    """

    def __init__(self, prior: float, weight: float = 0.0, memory: float = MEMORY) -> None:
        self._sum, self._weight = prior * weight, weight
        self._prior, self._memory = prior, memory
        self.total, self.count = 0.0, 0

    def observe(self, value: float) -> None:
        self.total += value
        self.count += 1
        self._sum = self._sum * self._memory + value
        self._weight = self._weight * self._memory + 1

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else self._prior

    @property
    def known(self) -> bool:
        return self._weight > 0


class PassTimes:
    """What a model's pass takes, by the nodes in it."""

    def __init__(self, prior: float, slope: float) -> None:
        """prior: seconds, until any is known. slope: see SLOPE."""
        self._prior, self._slope = prior, slope
        self._seen: dict[int, Mean] = {}

    def observe(self, nodes: int, seconds: float) -> None:
        """A pass over so many nodes."""
        self._seen.setdefault(nodes, Mean(seconds, memory=RECENT)).observe(seconds)

    @property
    def largest(self) -> int:
        """The most nodes that a pass was seen with; 0 where none was."""
        return max(self._seen, default=0)

    def at(self, sizes: NDArray[np.int_]) -> NDArray[np.float64]:
        """Seconds of passes over so many nodes each; more nodes take no less."""
        known = sorted(self._seen)
        if not known:
            return np.full(len(sizes), self._prior)
        rising = np.maximum.accumulate([self._seen[nodes].value for nodes in known])
        beyond = np.maximum(0, sizes - max(known[-1], FLAT))
        times: NDArray[np.float64] = np.interp(sizes, known, rising) * (1 + self._slope * beyond)
        return times


class Measures:
    """Of one draft model, one cloud and the link between; kept from decode to decode."""

    def __init__(self) -> None:
        self.acceptance = Mean(0.7, 6.0)  # of the draft's first choice
        self.runner_up = Mean(0.4, 6.0)  # of its second, where the first was wrong
        self.exits = Mean(0.0, 2.0)  # rounds that an exit predicted
        self.alone = Mean(0.1, memory=RECENT)  # seconds of a pass of the target over none
        self.one_way = Mean(0.02, memory=RECENT)
        self.yields: dict[object, Mean] = {}  # of a plan: what it yields of what it promised
        self.promises: dict[object, dict[Any, float]] = {}  # of plans, by the costs they are for
        self._verify = PassTimes(0.1, SLOPE)
        self._draft = PassTimes(0.02, WIDER)

    @property
    def verify_known(self) -> bool:
        """Whether any pass over a draft was seen."""
        return self._verify.largest > 0

    def drafted(self, nodes: int, seconds: float) -> None:
        """A pass of the draft model over so many nodes."""
        self._draft.observe(nodes, seconds)

    def verified(self, nodes: int, seconds: float, link: float | None) -> None:
        """A pass of the target over so many drafted tokens; waiting that no model's, if known."""
        if link is not None:
            self.one_way.observe(link / 2)
        if not nodes:
            self.alone.observe(seconds)
        self._verify.observe(nodes, seconds)

    def judged(self, draft: FinishedDraft, came: tuple[int, ...]) -> None:
        """After this draft these tokens came: how its first and second choices did."""
        pairs = zip(came, draft.best, strict=False)
        along = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        for _ in range(along):
            self.acceptance.observe(1.0)
        if along < min(len(came), len(draft.best)):
            self.acceptance.observe(0.0)
            if along < len(draft.second_choices):
                self.runner_up.observe(float(came[along] == draft.second_choices[along]))

    def verify_s(self, nodes: int) -> float:
        """A pass of the target over so many drafted tokens, in seconds."""
        return float(self._verify.at(np.array([nodes]))[0])

    def costs(self) -> Costs:
        """As the cost model takes them."""
        sizes = np.arange(MAX_NODES + 1)
        draft, verify = self._draft.at(sizes).tolist(), self._verify.at(sizes).tolist()
        return Costs(
            lambda nodes: draft[min(nodes, MAX_NODES)],
            lambda nodes: verify[min(nodes, MAX_NODES)],
            max(self.alone.value, 1e-4) if self.alone.known else float("inf"),
            self.one_way.value,
            min(0.99, self.acceptance.value),
            self.runner_up.value,
            self.exits.value,
        )
