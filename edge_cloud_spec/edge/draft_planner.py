"""How long and how wide a robot drafts next, and whether at all: fixed, by a rule, or ``auto``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ..decoding.cost_model import Costs, rate, signature, specedge_depth
from ..decoding.mean import MIN_PASS_S, Mean
from ..decoding.preset import Preset, Speculation
from ..decoding.shape import BestFirst, Shape, chain
from .measures import Measures

# Each constant says what goes wrong without it.
PROBE = 3  # passes of the server by itself that are measured first: else nothing is known to beat
REPLAN = (4, 8, 16, 32)  # rounds until the next plan, the last from then on; the first plans know
# little, and a plan for each round would cost more time than it saves
TRIED = 16  # rounds before a plan's yield is measured: that of fewer is chance
GAIN = 1.03  # more that another plan has to promise: else two that are about as good alternate
PRIOR_WEIGHT = 2.0  # observations that the assumed yield counts for: else the first one decides
MAX_LOOKAHEAD = 8  # drafts beyond the one that is being verified; the cloud keeps few more
REST = 2.0  # s of decodes between two times that all promises are worked out, which takes tens of
# ms: else decodes over a link that changes would do little else
MAX_KEPT = 32  # costs whose promises are remembered: else memory grows with the robot's days
QUIETER = 0.8  # share of a pass's time when drafting was given up, at which it is tried again: else
# a robot that was in a crowd once never drafts again, since it measures no pass over a draft
PROBED = 8  # nodes of the passes by which exits are compared with none
HINTS_PAY, HINTS_STAY = 1.1, 1.03  # times as much as without them: hints cost the robot energy
AWAKE_EVERY = 8  # decodes without drafts, of which one reads the prompt: else it never drafts again
HINTED = 8  # tokens beside hints, before their yield is known
ANSWER = 32.0  # tokens of an answer, before any was heard: a robot that joins at its end wins none
GENERATE_ROUND_TRIPS = 100  # for whose time a server that is asked each time generates


@dataclass(frozen=True)
class DraftPlan:
    """Draft in this shape, or let the server generate ``generate`` tokens by itself.

    With a shape, what is drafted beside a server that generates is sent as hints.
    """

    shape: Shape | None
    speculation: Speculation
    generate: int = 0

    @property
    def leads(self) -> bool:
        """Whether the server is to wait for the robot's drafts."""
        return self.shape is not None and not self.generate


Key = tuple[Shape, Speculation]


class DraftPlanner:
    """Decides before each draft. This one takes the preset's own shape and speculation."""

    def __init__(self, preset: Preset, measures: Measures) -> None:
        self._preset, self._measures = preset, measures

    def begin(self) -> None:
        """A decode begins: every decode is like the others, unless a planner says otherwise."""

    @property
    def rests(self) -> bool:
        """Whether nothing is drafted for now, so that the draft model need not read the prompt."""
        return False

    def plan(
        self, now: float, tokens: int, unasked: bool = False, generated: bool = False
    ) -> DraftPlan:
        """The plan of the next round. ``tokens`` are verified at the time ``now`` (s).

        unasked: the server generates by itself until a draft of the robot's arrives, and takes
        hints. generated: it did so until now.
        """
        preset = self._preset
        return DraftPlan(preset.shape if preset.drafts_on_robot else None, preset.speculation)


class VerifyBoundPlanner(DraftPlanner):
    """Drafting and round trip together take as long as the target's pass (SpecEdge 4.3)."""

    def plan(
        self, now: float, tokens: int, unasked: bool = False, generated: bool = False
    ) -> DraftPlan:
        shape, costs = self._preset.shape, self._measures.costs()
        if self._measures.verify_known:
            width = shape.width if isinstance(shape, BestFirst) else 1
            verify = costs.verify(shape.max_nodes)
            shape = shape.within(specedge_depth(costs.draft(width), 2 * costs.one_way, verify))
        return DraftPlan(shape, self._preset.speculation)


@dataclass(frozen=True)
class Observations:
    """What the best plan follows from. Rates in tokens per second, times in seconds."""

    costs: Costs
    promises: Mapping[Key, float]  # rate of each plan by which the robot leads, by the cost model
    yields: Mapping[Key, float]  # of those that were tried: the share of its promise that it gave
    usual: float  # the same, assumed of the others
    generated: float  # rate of the server by itself
    hinted: float  # the same beside the robot's hints
    hints_known: bool
    using: DraftPlan | None
    unasked: bool  # as in ``DraftPlanner.plan``
    left: float  # tokens of an answer that are left when a robot can join the server


def scored_plans(seen: Observations, idle: Speculation) -> list[tuple[float, DraftPlan]]:
    """Plans with the rates that they are worth: the first of the best is to be taken.

    ``idle``: the speculation of a robot that does not draft.
    """
    using, costs = seen.using, seen.costs

    def worth(key: Key) -> float:
        stays = using is not None and using.leads and key == (using.shape, using.speculation)
        return seen.promises[key] * seen.yields.get(key, seen.usual) * (GAIN if stays else 1.0)

    best = max(seen.promises, key=worth)
    if seen.unasked and not seen.hints_known:  # they are tried first: that costs no time
        return [(math.inf, DraftPlan(*best, generate=HINTED))]
    leading = worth(best)
    if seen.unasked:  # joining, once an answer: the draft crosses a pass, and may be one too late
        waits = 2 * (2 * costs.one_way + best[1].cut * costs.draft(1))
        waits += min(costs.alone, costs.verify(1))
        leading = seen.left / (seen.left / leading + waits)
    is_hinting = using is not None and using.shape is not None and using.generate > 0
    pays = seen.hinted > seen.generated * (HINTS_STAY if is_hinting else HINTS_PAY)
    round_trips = 0 if seen.unasked else GENERATE_ROUND_TRIPS
    tokens = REPLAN[-1] + int(round_trips * 2 * costs.one_way / costs.alone)
    return [
        (seen.generated, DraftPlan(None, idle, tokens)),
        (seen.hinted if seen.unasked and pays else 0.0, DraftPlan(*best, generate=REPLAN[-1])),
        (leading / (1 if using is not None and using.leads else GAIN), DraftPlan(*best)),
    ]


class AutoPlanner(DraftPlanner):
    """The shape and pipeline with the highest rate by the cost model, or the server by itself.

    What a plan in use yields is measured, and corrects the rate that it is promised; what the
    server yields by itself is measured without and with the robot's hints. Lasts from decode to
    decode.
    """

    def __init__(self, preset: Preset, measures: Measures) -> None:
        super().__init__(preset, measures)
        self._plan: DraftPlan | None = None
        self._rounds = 0  # since the plan was made
        self._replans = 0
        self._verify_was_known = False  # when the plan was made
        self._gave_up_at = 0.0  # s, the longest pass of the server while drafting did not pay
        self._last: tuple[float, int] | None = None  # this decode's last round (s), and its tokens
        self._since = (0.0, 0)  # s that rounds took since the plan was made, and their tokens
        self._promises: dict[Key, float] = {}  # tokens per second, when the plan was made
        self._slept = 0  # decodes begun in which the server generated, without hints
        self._answer = Mean(ANSWER, 1.0)  # tokens of one
        self._before = Mean(0.0, 1.0)  # of them, before the robot could join the server
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
        self, now: float, tokens: int, unasked: bool = False, generated: bool = False
    ) -> DraftPlan:
        measures = self._measures
        if unasked and self._last is None:
            self._before.observe(tokens)
        self._count(now, tokens, generated)
        if not (measures.server_pass.known or measures.server_yields[False].count >= PROBE):
            return DraftPlan(None, self._preset.speculation, generate=PROBE)
        learned = measures.verify_known and not self._verify_was_known
        if self._plan is None or self._is_due(self._plan) or learned:
            self._correct()
            # A crowd has left the cloud.
            if measures.server_pass.value < QUIETER * self._gave_up_at:
                measures.forget_verified()
                self._gave_up_at = 0.0
            if learned:
                self._rested = math.inf
            self._plan = self._best(unasked)
            self._verify_was_known = measures.verify_known
            self._replans += not learned
            self._rounds, self._since = 0, (0.0, 0)
        self._rounds += not (generated and self._plan.leads)
        return self._plan

    def _best(self, unasked: bool) -> DraftPlan:
        seen = self.observations(unasked)
        _, plan = max(scored_plans(seen, self._preset.speculation), key=lambda scored: scored[0])
        if not plan.leads and (seen.hints_known or not unasked):
            self._gave_up_at = max(self._gave_up_at, seen.costs.alone)
        return plan

    def observations(self, unasked: bool) -> Observations:
        """What was observed so far, and what is promised from it."""
        measures, costs = self._measures, self._measures.costs()
        without, hinted = (measures.server_yields[hints] for hints in (False, True))
        self._promises = self._promised(costs)
        return Observations(
            costs=costs,
            promises=self._promises,
            yields={key: kept.value for key, kept in measures.yields.items() if key is not None},
            usual=self._usual,
            generated=without.rate if without.count else 1 / costs.alone,
            hinted=hinted.rate,
            hints_known=hinted.count >= HINTED,
            using=self._plan,
            unasked=unasked,
            left=max(1.0, self._answer.value - self._before.value),
        )

    def _count(self, now: float, tokens: int, generated: bool) -> None:
        """Add a round to those of the plan in use; not where it leads and none was led yet."""
        unled = generated and self._plan is not None and self._plan.leads
        if self._last is not None and not unled:
            (seconds, won), (then, before) = self._since, self._last
            self._since = (seconds + now - then, won + tokens - before)
            self._rested += now - then
        self._last = (now, tokens)

    def _is_due(self, plan: DraftPlan) -> bool:
        """Whether to plan anew."""
        if plan.generate:
            return self._since[1] >= plan.generate
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
            base = replace(base, ahead=min(MAX_LOOKAHEAD, max(base.ahead, 1 + math.ceil(trip))))
            kept[known] = {
                (shape, speculation): rate(shape, speculation, costs)
                for shape in candidate_shapes()
                for asked in self._with_and_without_exits(base, costs)
                for speculation in candidate_pipelines(asked, shape.depth)
            }
        return kept[known]

    def _with_and_without_exits(self, base: Speculation, costs: Costs) -> tuple[Speculation, ...]:
        """With exits, and without them where that makes a pass shorter."""
        without = costs.verify_without_exits or costs.verify
        shorter = base.exits and costs.verify(PROBED) > GAIN * without(PROBED)
        return (base, replace(base, exits=False)) if shorter else (base,)


def planner_of(preset: Preset, measures: Measures) -> DraftPlanner:
    """The planner that a preset's ``pacing`` names."""
    if preset.pacing == "auto":
        if preset not in measures.planners:
            measures.planners[preset] = AutoPlanner(preset, measures)
        planner: AutoPlanner = measures.planners[preset]
        planner.begin()
        return planner
    kind = VerifyBoundPlanner if preset.pacing == "verify_bound" else DraftPlanner
    return kind(preset, measures)


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
