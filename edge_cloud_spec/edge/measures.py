"""What a robot measures of its decodes: shares and times, slowly forgotten; for ``auto``."""

from __future__ import annotations

from itertools import takewhile

import numpy as np

from ..decoding.plan import Costs
from ..decoding.shape import Whole

MEMORY = 0.995  # what an observation still counts for, one observation later
SLOPE = 0.015  # of the target's pass, for each drafted token above FLAT; assumed
FLAT = 16
WIDER = 0.03  # of the draft model's pass, for each node beyond those it was seen with; assumed
MOST_NODES = 256


class Mean:
    """A mean with a prior, which counts for ``weight`` observations.

    ``total`` and ``count`` are of the observations alone, none of them forgotten.
    """

    def __init__(self, prior: float, weight: float = 0.0) -> None:
        self._sum, self._weight = prior * weight, weight
        self._prior = prior
        self.total, self.count = 0.0, 0

    def observe(self, value: float) -> None:
        self.total += value
        self.count += 1
        self._sum = self._sum * MEMORY + value
        self._weight = self._weight * MEMORY + 1

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else self._prior

    @property
    def known(self) -> bool:
        return self._weight > 0


class Measures:
    """Of one draft model, one cloud and the link between; kept from decode to decode."""

    def __init__(self) -> None:
        self.acceptance = Mean(0.7, 6.0)  # of the draft's first choice
        self.runner_up = Mean(0.4, 6.0)  # of its second, where the first was wrong
        self.exits = Mean(0.0, 2.0)  # rounds that an exit predicted
        self.verify = Mean(0.1)  # seconds of a pass over up to FLAT drafted tokens
        self.alone = Mean(0.1)  # seconds of a pass over none
        self.one_way = Mean(0.02)
        self.yields: dict[object, Mean] = {}  # of a plan: what it yields of what it promised
        self._draft: dict[int, Mean] = {}  # seconds of a pass, by its nodes

    def drafted(self, nodes: int, seconds: float) -> None:
        """A pass of the draft model over so many nodes."""
        self._draft.setdefault(nodes, Mean(seconds)).observe(seconds)

    def verified(self, nodes: int, seconds: float, link: float | None) -> None:
        """A pass of the target over so many drafted tokens; waiting that no model's, if known."""
        if link is not None:
            self.one_way.observe(link / 2)
        if nodes:
            self.verify.observe(seconds / _growth(nodes))
        else:
            self.alone.observe(seconds)

    def judged(self, draft: Whole, came: tuple[int, ...]) -> None:
        """After this draft these tokens came: how its first and second choices did."""
        pairs = zip(came, draft.best, strict=False)
        along = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        for _ in range(along):
            self.acceptance.observe(1.0)
        if along < min(len(came), len(draft.best)):
            self.acceptance.observe(0.0)
            if along < len(draft.seconds):
                self.runner_up.observe(float(came[along] == draft.seconds[along]))

    def verify_s(self, nodes: int) -> float:
        """A pass of the target over so many drafted tokens, in seconds."""
        # it costs about what one over nothing does, until it is known
        mean = self.verify if self.verify.known else self.alone
        return mean.value * _growth(nodes)

    def costs(self) -> Costs:
        """As the cost model takes them."""
        known = sorted(self._draft) or [1]
        times = [self._draft[n].value for n in known] if self._draft else [0.02]
        # a pass over more nodes takes no less, whatever the noise says
        rising = np.maximum.accumulate(times)

        sizes = np.arange(MOST_NODES + 1)
        beyond = np.maximum(0, sizes - max(known[-1], FLAT))
        table = (np.interp(sizes, known, rising) * (1 + WIDER * beyond)).tolist()
        return Costs(
            lambda nodes: table[min(nodes, MOST_NODES)],
            self.verify_s,
            max(self.alone.value, 1e-4) if self.alone.known else float("inf"),
            self.one_way.value,
            min(0.99, self.acceptance.value),
            self.runner_up.value,
            self.exits.value,
        )


def _growth(nodes: int) -> float:
    return 1 + SLOPE * max(0, nodes - FLAT)
