"""What a robot measures of its decodes, for its planners: shares and times, as decaying means."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.cost_model import Costs
from ..decoding.growth import FinishedDraft

DECAY = 0.995  # weight of an observation, one observation later
TIME_DECAY = 0.97  # the same, of a time
VERIFY_SLOPE = 0.015  # of the target's time, for each node beyond the measured ones; assumed
DRAFT_SLOPE = 0.03  # the same, of the draft model's
FLAT_NODES = 16  # nodes up to which a pass is assumed to take as long as the largest measured one
MAX_PASS_NODES = 256  # of a pass; more are taken to cost the same
MIN_PASS_S = 1e-4  # of the target


class Mean:
    """A mean with a prior, which counts for ``weight`` observations.

    ``total`` and ``count`` are of the observations alone, without decay.
    """

    def __init__(self, prior: float, weight: float = 0.0, decay: float = DECAY) -> None:
        self._sum, self._weight = prior * weight, weight
        self._prior, self._decay = prior, decay
        self.total, self.count = 0.0, 0

    def observe(self, value: float) -> None:
        """Add an observation."""
        self.total += value
        self.count += 1
        self._sum = self._sum * self._decay + value
        self._weight = self._weight * self._decay + 1

    @property
    def value(self) -> float:
        """The mean; the prior where there is no weight."""
        return self._sum / self._weight if self._weight else self._prior

    @property
    def known(self) -> bool:
        """Whether it has an observation, or a prior with a weight."""
        return self._weight > 0


class PassTimes:
    """How long a model's pass takes, by the nodes in it."""

    def __init__(self, prior: float, slope: float) -> None:
        """prior: seconds, before any observation. slope: see VERIFY_SLOPE."""
        self._prior, self._slope = prior, slope
        self._seen: dict[int, Mean] = {}

    def observe(self, nodes: int, seconds: float) -> None:
        """Add the time of a pass over this many nodes."""
        self._seen.setdefault(nodes, Mean(seconds, decay=TIME_DECAY)).observe(seconds)

    @property
    def largest(self) -> int:
        """The most nodes of any measured pass; 0 where there is none."""
        return max(self._seen, default=0)

    def at(self, sizes: NDArray[np.int_]) -> NDArray[np.float64]:
        """Seconds [n] of passes over these numbers of nodes [n]; more nodes take no less."""
        known = sorted(self._seen)
        if not known:
            return np.full(len(sizes), self._prior)
        rising = np.maximum.accumulate([self._seen[nodes].value for nodes in known])
        beyond = np.maximum(0, sizes - max(known[-1], FLAT_NODES))
        times: NDArray[np.float64] = np.interp(sizes, known, rising) * (1 + self._slope * beyond)
        return times


class Measures:
    """Measures of one draft model, one cloud and the link between; kept from decode to decode."""

    def __init__(self) -> None:
        self.acceptance = Mean(0.7, 6.0)  # of the draft's first choice
        self.runner_up = Mean(0.4, 6.0)  # of its second, where the first was wrong
        self.exits = Mean(0.0, 2.0)  # share of rounds that an exit predicted
        self.alone = Mean(0.1, decay=TIME_DECAY)  # s, of a pass of the target without a draft
        self.one_way = Mean(0.02, decay=TIME_DECAY)  # s, of the link
        self.yields: dict[object, Mean] = {}  # by plan: measured over promised tokens per second
        self.promises: dict[object, dict[Any, float]] = {}  # of plans, by the costs they are for
        self._verify = PassTimes(0.1, VERIFY_SLOPE)
        self._draft = PassTimes(0.02, DRAFT_SLOPE)

    @property
    def verify_known(self) -> bool:
        """Whether any pass over a draft was measured."""
        return self._verify.largest > 0

    def drafted(self, nodes: int, seconds: float) -> None:
        """Add a pass of the draft model over this many nodes."""
        self._draft.observe(nodes, seconds)

    def verified(self, nodes: int, seconds: float, link: float | None) -> None:
        """Add a pass of the target over this many drafted tokens.

        ``link``: the round trip, if it is known; in seconds, as the pass.
        """
        if link is not None:
            self.one_way.observe(link / 2)
        if not nodes:
            self.alone.observe(seconds)
        self._verify.observe(nodes, seconds)

    def judged(self, draft: FinishedDraft, tokens: tuple[int, ...]) -> None:
        """A verdict settled these tokens: which of the draft's choices were right."""
        pairs = zip(tokens, draft.best, strict=False)
        along = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        for _ in range(along):
            self.acceptance.observe(1.0)
        if along < min(len(tokens), len(draft.best)):
            self.acceptance.observe(0.0)
            if along < len(draft.second_choices):
                self.runner_up.observe(float(tokens[along] == draft.second_choices[along]))

    def verify_s(self, nodes: int) -> float:
        """Seconds of a pass of the target over this many drafted tokens."""
        return float(self._verify.at(np.array([nodes]))[0])

    def costs(self) -> Costs:
        """The measures as the cost model takes them."""
        sizes = np.arange(MAX_PASS_NODES + 1)
        draft, verify = self._draft.at(sizes).tolist(), self._verify.at(sizes).tolist()
        return Costs(
            lambda nodes: draft[min(nodes, MAX_PASS_NODES)],
            lambda nodes: verify[min(nodes, MAX_PASS_NODES)],
            max(self.alone.value, MIN_PASS_S) if self.alone.known else float("inf"),
            self.one_way.value,
            min(0.99, self.acceptance.value),
            self.runner_up.value,
            self.exits.value,
        )
