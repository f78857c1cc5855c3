"""How long and how wide a robot drafts next, and whether at all: fixed, by a rule, or ``auto``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from ..decoding.cost_model import Costs, rate, signature, specedge_depth
from ..decoding.preset import Preset
from ..decoding.shape import BestFirst, Shape, chain
from ..decoding.speculation import Speculation
from .measures import MIN_PASS_S, Mean, Measures

PROBE = 3  # passes of the target alone, to measure what they cost
REPLAN = (4, 8, 16, 32)  # rounds until the next plan; the last one from then on
TRIED = 16  # rounds after which a plan's yield is measured
GAIN = 1.03  # another plan has to promise this many times as much as the one in use
PRIOR_WEIGHT = 2.0  # observations that the assumed yield counts for
MAX_AHEAD = 8  # drafts beyond the one that is being verified
MAX_KEPT = 32  # costs whose promises are remembered
ALONE_ROUND_TRIPS = 100  # for whose time the target generates alone, before a new plan


@dataclass(frozen=True)
class DraftPlan:
    """Draft in this shape, or let the cloud generate alone for ``alone`` passes (shape None)."""

    shape: Shape | None
    speculation: Speculation
    alone: int = 0


Key = tuple[Shape, Speculation]


class DraftPlanner(Protocol):
    """Decides before each draft."""

    def plan(self, now: float, tokens: int) -> DraftPlan:
        """The plan of the next round. ``tokens`` are verified at the time ``now`` (s)."""


class FixedPlanner:
    """The preset's own shape and speculation."""

    def __init__(self, preset: Preset) -> None:
        self._plan = DraftPlan(preset.shape if preset.drafts_on_robot else None, preset.speculation)

    def plan(self, now: float, tokens: int) -> DraftPlan:
        return self._plan


class VerifyBoundPlanner:
    """Drafting and round trip together take as long as the target's pass (SpecEdge 4.3)."""

    def __init__(self, preset: Preset, measures: Measures) -> None:
        self._preset, self._measures = preset, measures

    def plan(self, now: float, tokens: int) -> DraftPlan:
        shape, costs = self._preset.shape, self._measures.costs()
        if self._measures.verify_known:
            width = shape.width if isinstance(shape, BestFirst) else 1
            verify = costs.verify(shape.max_nodes)
            shape = shape.within(specedge_depth(costs.draft(width), 2 * costs.one_way, verify))
        return DraftPlan(shape, self._preset.speculation)


class AutoPlanner:
    """The shape and pipeline with the highest rate by the cost model, or the target alone.

    What a plan in use yields is measured, and corrects the rate that it is promised.
    """

    def __init__(self, preset: Preset, measures: Measures) -> None:
        self._preset, self._measures = preset, measures
        self._plan: DraftPlan | None = None
        self._rounds = 0  # since the plan was made
        self._replans = 0
        self._verify_was_known = False  # when the plan was made
        self._since = (0.0, 0)  # when the plan was made (s), and the tokens then
        self._promises: dict[Key, float] = {}  # tokens per second, when the plan was made

    def plan(self, now: float, tokens: int) -> DraftPlan:
        measures = self._measures
        if not measures.alone.known:
            return DraftPlan(None, self._preset.speculation, alone=PROBE)
        learned = measures.verify_known and not self._verify_was_known
        enough = self._rounds >= REPLAN[min(self._replans, len(REPLAN) - 1)]
        if self._plan is None or self._plan.shape is None or enough or learned:
            self._correct(now, tokens)
            self._plan = self._best()
            self._verify_was_known = measures.verify_known
            self._replans += not learned
            self._rounds, self._since = 0, (now, tokens)
        self._rounds += 1
        return self._plan

    def _correct(self, now: float, tokens: int) -> None:
        """Measure what the plan in use yields, as a share of what it promised."""
        since, before = self._since
        plan = self._plan
        if plan is None or plan.shape is None or self._rounds < TRIED or now <= since:
            return
        key, yields = (plan.shape, plan.speculation), self._measures.yields
        real = (tokens - before) / (now - since) / self._promises[key]
        yields.setdefault(key, Mean(self._usual, PRIOR_WEIGHT)).observe(real)
        yields.setdefault(None, Mean(1.0, PRIOR_WEIGHT)).observe(real)

    @property
    def _usual(self) -> float:
        """The assumed yield of a plan that was not tried: the mean of all plans, at most 1."""
        yields = self._measures.yields
        return min(1.0, yields[None].value) if None in yields else 1.0

    def _promised(self, costs: Costs) -> dict[Key, float]:
        """Tokens per second of each plan; computed once for costs that are about the same."""
        kept, known = self._measures.promises, signature(costs)
        if known not in kept:
            if len(kept) >= MAX_KEPT:
                del kept[next(iter(kept))]
            trip = 2 * costs.one_way / max(costs.verify(1), MIN_PASS_S)
            base = self._preset.speculation
            base = replace(base, ahead=min(MAX_AHEAD, max(base.ahead, 1 + math.ceil(trip))))
            kept[known] = {
                (shape, speculation): rate(shape, speculation, costs)
                for shape in candidate_shapes()
                for speculation in candidate_pipelines(base, shape.depth)
            }
        return kept[known]

    def _best(self) -> DraftPlan:
        costs, base, using = self._measures.costs(), self._preset.speculation, self._plan
        self._promises = self._promised(costs)
        yields = self._measures.yields

        def worth(key: Key) -> float:
            stays = using is not None and key == (using.shape, using.speculation)
            kept = yields[key].value if key in yields else self._usual
            return self._promises[key] * kept * (GAIN if stays else 1.0)

        best = max(self._promises, key=worth)
        drafting = using is not None and using.shape is not None
        if worth(best) > (1 if drafting else GAIN) / costs.alone:
            return DraftPlan(*best)
        round_trip = 2 * costs.one_way
        passes = REPLAN[-1] + int(ALONE_ROUND_TRIPS * round_trip / costs.alone)
        return DraftPlan(None, base, passes)


def planner_of(preset: Preset, measures: Measures) -> DraftPlanner:
    """The planner that a preset's ``pacing`` names."""
    if preset.pacing == "auto":
        return AutoPlanner(preset, measures)
    return (
        VerifyBoundPlanner(preset, measures)
        if preset.pacing == "verify_bound"
        else FixedPlanner(preset)
    )


@lru_cache(maxsize=1)
def candidate_shapes() -> tuple[Shape, ...]:
    """The shapes that ``auto`` chooses from."""
    trees = [BestFirst(16, depth, width) for depth in (2, 4, 8) for width in (2, 3, 4)]
    return (*map(chain, (1, 2, 4, 8)), *trees)


@lru_cache(maxsize=64)
def candidate_pipelines(base: Speculation, depth: int) -> tuple[Speculation, ...]:
    """The pipelines that ``auto`` chooses from."""
    return tuple(
        replace(base, width=width, cut=cut)
        for width in (4, 16)
        for cut in (1, 2, 3, 4, 6)
        if cut <= depth
    )
