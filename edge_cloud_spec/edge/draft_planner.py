"""How long and how wide a robot drafts next, and whether at all: fixed, by a rule, or ``auto``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache

from ..decoding.cost_model import Costs, rate, signature, specedge_depth
from ..decoding.mean import MIN_PASS_S, Mean
from ..decoding.preset import Preset, Speculation
from ..decoding.shape import BestFirst, Shape, chain
from .measures import Measures

PROBE = 3  # passes of the target alone, to measure what they cost
REPLAN = (4, 8, 16, 32)  # rounds until the next plan; the last one from then on
TRIED = 16  # rounds after which a plan's yield is measured
GAIN = 1.03  # another plan has to promise this many times as much as the one in use
PRIOR_WEIGHT = 2.0  # observations that the assumed yield counts for
MAX_AHEAD = 8  # drafts beyond the one that is being verified
REST = 2.0  # s of decodes, between two times that all promises are worked out
MAX_KEPT = 32  # costs whose promises are remembered
QUIETER = 0.8  # share of a pass's time when drafting was given up, at which it is tried again
PROBED = 8  # nodes of a pass, to compare one with exits and one without
HINTS_PAY, HINTS_STAY = 1.1, 1.03  # times as much as without them, for they cost energy
AWAKE_EVERY = 8  # decodes of the cloud alone; in one of them the draft model tries again
HINTED = 8  # tokens of the cloud alone beside hints, before it is known what those yield
ANSWER = 32.0  # tokens of an answer, before any was heard
ALONE_ROUND_TRIPS = 100  # for whose time the target generates alone, before a new plan


@dataclass(frozen=True)
class DraftPlan:
    """Draft in this shape, or let the cloud go on alone for ``alone`` tokens.

    With a shape, what is drafted beside a cloud that goes on alone is pushed as hints.
    """

    shape: Shape | None
    speculation: Speculation
    alone: int = 0

    @property
    def leads(self) -> bool:
        """Whether the cloud is to wait for the robot's drafts."""
        return self.shape is not None and not self.alone


Key = tuple[Shape, Speculation]


class DraftPlanner(ABC):
    """Decides before each draft; every decode is like the others, unless it says otherwise."""

    def begin(self) -> None:  # noqa: B027 (may be left as it is)
        """A decode begins."""

    @property
    def rests(self) -> bool:
        """Whether nothing is drafted for now, so that the draft model need not read the prompt."""
        return False

    @abstractmethod
    def plan(
        self, now: float, tokens: int, follows: bool = False, alone: bool = False
    ) -> DraftPlan:
        """The plan of the next round. ``tokens`` are verified at the time ``now`` (s).

        follows: the cloud can go on alone until a draft of the robot's arrives, and take hints;
        alone: and was alone until now.
        """


class FixedPlanner(DraftPlanner):
    """The preset's own shape and speculation."""

    def __init__(self, preset: Preset) -> None:
        self._plan = DraftPlan(preset.shape if preset.drafts_on_robot else None, preset.speculation)

    def plan(
        self, now: float, tokens: int, follows: bool = False, alone: bool = False
    ) -> DraftPlan:
        return self._plan


class VerifyBoundPlanner(DraftPlanner):
    """Drafting and round trip together take as long as the target's pass (SpecEdge 4.3)."""

    def __init__(self, preset: Preset, measures: Measures) -> None:
        self._preset, self._measures = preset, measures

    def plan(
        self, now: float, tokens: int, follows: bool = False, alone: bool = False
    ) -> DraftPlan:
        shape, costs = self._preset.shape, self._measures.costs()
        if self._measures.verify_known:
            width = shape.width if isinstance(shape, BestFirst) else 1
            verify = costs.verify(shape.max_nodes)
            shape = shape.within(specedge_depth(costs.draft(width), 2 * costs.one_way, verify))
        return DraftPlan(shape, self._preset.speculation)


class AutoPlanner(DraftPlanner):
    """The shape and pipeline with the highest rate by the cost model, or the cloud alone.

    What a plan in use yields is measured, and corrects the rate that it is promised; what the cloud
    yields alone is measured without and with the robot's hints. Lasts from decode to decode.
    """

    def __init__(self, preset: Preset, measures: Measures) -> None:
        self._preset, self._measures = preset, measures
        self._plan: DraftPlan | None = None
        self._rounds = 0  # since the plan was made
        self._replans = 0
        self._verify_was_known = False  # when the plan was made
        self._gave_up_at = 0.0  # s, the longest pass of the target alone while drafting did not pay
        self._last: tuple[float, int] | None = None  # this decode's last round (s), and its tokens
        self._since = (0.0, 0)  # s that rounds took since the plan was made, and their tokens
        self._promises: dict[Key, float] = {}  # tokens per second, when the plan was made
        self._slept = 0  # decodes begun in which the cloud was alone, without hints
        self._answer = Mean(ANSWER, 1.0)  # tokens of one
        self._said = Mean(0.0, 1.0)  # of them, before the robot could join the cloud
        self._rested = math.inf  # s of decodes since promises were worked out

    def begin(self) -> None:
        """What passes between two decodes is no round."""
        if self._last is not None:
            self._answer.observe(self._last[1])
        self._last = None
        self._slept = self._slept + 1 if self._plan is not None and not self._plan.shape else 0

    @property
    def rests(self) -> bool:
        silent = self._plan is not None and self._plan.shape is None
        return silent and self._slept % AWAKE_EVERY > 0

    def plan(
        self, now: float, tokens: int, follows: bool = False, alone: bool = False
    ) -> DraftPlan:
        measures = self._measures
        if follows and self._last is None:
            self._said.observe(tokens)
        self._count(now, tokens, alone)
        if not (measures.alone.known or measures.alone_yields[False].count >= PROBE):
            return DraftPlan(None, self._preset.speculation, alone=PROBE)
        learned = measures.verify_known and not self._verify_was_known
        if self._plan is None or self._is_due(self._plan) or learned:
            self._correct()
            if measures.alone.value < QUIETER * self._gave_up_at:  # a crowd has left the cloud
                measures.forget_verified()
                self._gave_up_at = 0.0
            if learned:
                self._rested = math.inf
            self._plan = self._best(follows)
            self._verify_was_known = measures.verify_known
            self._replans += not learned
            self._rounds, self._since = 0, (0.0, 0)
        self._rounds += not (alone and self._plan.leads)
        return self._plan

    def _count(self, now: float, tokens: int, alone: bool) -> None:
        """Add a round to those of the plan in use; not where it leads and none was led yet."""
        if self._last is not None and not (alone and self._plan is not None and self._plan.leads):
            (seconds, won), (then, before) = self._since, self._last
            self._since = (seconds + now - then, won + tokens - before)
            self._rested += now - then
        self._last = (now, tokens)

    def _is_due(self, plan: DraftPlan) -> bool:
        """Whether to plan anew."""
        if plan.alone:
            return self._since[1] >= plan.alone
        return self._rounds >= REPLAN[min(self._replans, len(REPLAN) - 1)]

    def _correct(self) -> None:
        """Measure what the plan in use yields, as a share of what it promised."""
        seconds, tokens = self._since
        plan = self._plan
        if plan is None or not plan.leads or self._rounds < TRIED or seconds <= 0:
            return
        assert plan.shape is not None
        key, yields = (plan.shape, plan.speculation), self._measures.yields
        real = tokens / seconds / self._promises[key]
        yields.setdefault(key, Mean(self._usual, PRIOR_WEIGHT)).observe(real)
        yields.setdefault(None, Mean(1.0, PRIOR_WEIGHT)).observe(real)

    @property
    def _usual(self) -> float:
        """The assumed yield of a plan that was not tried: the mean of all plans, at most 1."""
        yields = self._measures.yields
        return min(1.0, yields[None].value) if None in yields else 1.0

    def _promised(self, costs: Costs) -> dict[Key, float]:
        """Tokens per second of each plan; computed once for costs that are about the same.

        That takes tens of ms, in which a robot drafts nothing: costs may have changed a while ago.
        """
        kept, known = self._measures.promises, signature(costs)
        if known not in kept and self._promises and self._rested < REST:
            return self._promises
        if known not in kept:
            self._rested = 0.0
            if len(kept) >= MAX_KEPT:
                del kept[next(iter(kept))]
            trip = 2 * costs.one_way / max(costs.verify(1), MIN_PASS_S)
            base = self._preset.speculation
            base = replace(base, ahead=min(MAX_AHEAD, max(base.ahead, 1 + math.ceil(trip))))
            kept[known] = {
                (shape, speculation): rate(shape, speculation, costs)
                for shape in candidate_shapes()
                for told in self._told(base, costs)
                for speculation in candidate_pipelines(told, shape.depth)
            }
        return kept[known]

    def _told(self, base: Speculation, costs: Costs) -> tuple[Speculation, ...]:
        """With exits, and without them where that makes a pass shorter."""
        without = costs.verify_without_exits or costs.verify
        shorter = base.exits and costs.verify(PROBED) > GAIN * without(PROBED)
        return (base, replace(base, exits=False)) if shorter else (base,)

    def _best(self, follows: bool = False) -> DraftPlan:
        costs, using, alone = self._measures.costs(), self._plan, self._measures.alone_yields
        by_itself = alone[False].rate if alone[False].count else 1 / costs.alone
        is_hinting = using is not None and using.shape is not None and using.alone > 0
        least = HINTS_STAY if is_hinting else HINTS_PAY
        hints = follows and alone[True].rate > by_itself * least
        led = max(by_itself, alone[True].rate) if hints else by_itself
        self._promises = self._promised(costs)
        yields = self._measures.yields

        def worth(key: Key) -> float:
            stays = using is not None and using.leads and key == (using.shape, using.speculation)
            kept = yields[key].value if key in yields else self._usual
            return self._promises[key] * kept * (GAIN if stays else 1.0)

        best = max(self._promises, key=worth)
        leads = worth(best)
        if follows:  # joining, once an answer: the draft crosses a pass, and may be one too late
            waits = 2 * (2 * costs.one_way + best[1].cut * costs.draft(1))
            waits += min(costs.alone, costs.verify(1))
            tokens = max(1.0, self._answer.value - self._said.value)
            leads = tokens / (tokens / leads + waits)
        if follows and alone[True].count < HINTED:  # they are tried first: that costs no time
            return DraftPlan(*best, alone=HINTED)
        if leads > (1 if using is not None and using.leads else GAIN) * led:
            return DraftPlan(*best)
        self._gave_up_at = max(self._gave_up_at, costs.alone)
        if hints:
            return DraftPlan(*best, alone=REPLAN[-1])
        round_trips = 0 if follows else ALONE_ROUND_TRIPS
        tokens = REPLAN[-1] + int(round_trips * 2 * costs.one_way / costs.alone)
        return DraftPlan(None, self._preset.speculation, tokens)


def planner_of(preset: Preset, measures: Measures) -> DraftPlanner:
    """The planner that a preset's ``pacing`` names."""
    if preset.pacing == "auto":
        if preset not in measures.planners:
            measures.planners[preset] = AutoPlanner(preset, measures)
        planner: AutoPlanner = measures.planners[preset]
        planner.begin()
        return planner
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
