"""Decides the shape of the next draft, or that the server generates: by preset, rule or
``auto``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ..decoding.cost_model import Costs, rate, signature, specedge_depth
from ..decoding.mean import MIN_PASS_S, Mean, PassYield
from ..decoding.preset import STOP_AND_WAIT, Preset, Speculation
from ..decoding.shape import BestFirst, Shape, chain
from ..options import Bounded, bounded
from .measures import Measures

# Each comment says what would go wrong without the constant.
PROBE = 3  # passes of server generation measured first; otherwise there is no baseline to beat
# Rounds until the next plan, then the last value. Early plans are based on few measurements;
# planning every round would cost more than it gains.
REPLAN = (4, 8, 16, 32)
TRIED = 16  # rounds before a plan's yield is measured; over fewer it is chance
PLAN_GAIN = 1.03  # gain that another plan must promise; otherwise two similar plans alternate
PRIOR_WEIGHT = 2.0  # observations that the assumed yield counts as; otherwise the first one decides
MAX_LOOKAHEAD = 8  # drafts beyond the one being verified; the cloud stores few more
# The robot leads for so many times the cost of measuring server generation again; otherwise nobody
# notices that lookup has made that faster.
RECHECK = 100.0
# Seconds of decodes between two computations of all promises, which take tens of ms; otherwise
# over a changing link there would be time for little else.
PROMISES_REST_S = 2.0
MAX_KEPT_PROMISES = 32  # costs whose promises are cached; otherwise memory grows over days
# Share of the pass time at which drafting was given up, below which it is tried again; otherwise
# it never would be, as passes over drafts are not measured meanwhile.
QUIETER = 0.8
PROBED_NODES = 8  # nodes of the passes by which pass times with and without exits are compared
HINTS_STAY = 1.03  # hints continue only if generation is this many times faster with them
# Of so many decodes without drafts one reads the prompt; otherwise the robot never drafts again.
AWAKE_EVERY = 8
HINTED = 8  # tokens with hints before their yield counts as known
ANSWER = 32.0  # assumed tokens of an answer before the first one ends


@dataclass(frozen=True)
class PlannerSettings(Bounded):
    """The user's options of ``auto``."""

    hints_pay: float = bounded(
        1.1,
        HINTS_STAY,
        100.0,
        "it drafts beside a server that generates once that is so many times as fast as without: "
        "drafting costs energy",
    )


DEFAULTS = PlannerSettings()


@dataclass(frozen=True)
class DraftPlan:
    """Draft in this shape, or let the server generate ``generate`` tokens by itself.

    With both, the drafts are sent as hints to the generating server.
    """

    shape: Shape | None
    speculation: Speculation
    generate: int = 0

    @property
    def leads(self) -> bool:
        """Whether the server should wait for the robot's drafts."""
        return self.shape is not None and not self.generate


Key = tuple[Shape, Speculation]


class DraftPlanner:
    """Decides before each draft. This base class takes the preset's shape and speculation."""

    def __init__(self, preset: Preset, measures: Measures) -> None:
        self._preset, self._measures = preset, measures

    def begin(self) -> None:
        """Called at the start of each decode; does nothing here."""

    @property
    def rests(self) -> bool:
        """Whether nothing is drafted for now, so that the draft model need not read the prompt."""
        return False

    def plan(self, now: float, tokens: int, generated: bool = False) -> DraftPlan:
        """The plan of the next round. ``tokens``: how many are verified at time ``now`` (s).

        generated: whether the server has been generating.
        """
        preset = self._preset
        return DraftPlan(preset.shape if preset.drafts_on_robot else None, preset.speculation)


class DraftsNothing(DraftPlanner):
    """The planner after the draft model has failed: the server generates to the decode's end."""

    def plan(self, now: float, tokens: int, generated: bool = False) -> DraftPlan:
        return DraftPlan(None, STOP_AND_WAIT, REPLAN[-1])


class VerifyBoundPlanner(DraftPlanner):
    """Chooses the depth at which drafting and round trip take as long as the target's pass
    (SpecEdge 4.3)."""

    def plan(self, now: float, tokens: int, generated: bool = False) -> DraftPlan:
        shape, costs = self._preset.shape, self._measures.costs()
        if self._measures.verify_known:
            width = shape.width if isinstance(shape, BestFirst) else 1
            verify = costs.verify(shape.max_nodes)
            shape = shape.within(specedge_depth(costs.draft(width), 2 * costs.one_way, verify))
        return DraftPlan(shape, self._preset.speculation)


@dataclass(frozen=True)
class Observations:
    """The inputs of ``scored_plans``: measured costs and rates. Rates in tokens per second, times
    in s."""

    costs: Costs
    promises: Mapping[Key, float]  # the cost model's rate of each plan that the robot leads
    yields: Mapping[Key, float]  # measured over promised rate of each plan that was tried
    usual: float  # the same, assumed for the other plans
    generated: float  # rate of server generation
    hinted: float  # the same with the robot's hints
    using: DraftPlan | None
    left: float  # tokens left in an answer when the robot can take the lead


def scored_plans(
    seen: Observations, idle: Speculation, settings: PlannerSettings = DEFAULTS
) -> list[tuple[float, DraftPlan]]:
    """Candidate plans with their expected rates (tokens per second); of equal ones take the first.

    ``idle``: the speculation for plans in which the robot does not draft.
    """
    using, costs = seen.using, seen.costs

    def worth(key: Key) -> float:
        stays = using is not None and using.leads and key == (using.shape, using.speculation)
        return seen.promises[key] * seen.yields.get(key, seen.usual) * (PLAN_GAIN if stays else 1.0)

    best = max(seen.promises, key=worth)
    leading = seen.left / (seen.left / worth(best) + joining_s(costs, best[1]))  # once an answer
    is_hinting = using is not None and using.shape is not None and using.generate > 0
    pays = seen.hinted > seen.generated * (HINTS_STAY if is_hinting else settings.hints_pay)
    return [
        (seen.generated, DraftPlan(None, idle, REPLAN[-1])),
        (seen.hinted if pays else 0.0, DraftPlan(*best, generate=REPLAN[-1])),
        (leading / (1 if using is not None and using.leads else PLAN_GAIN), DraftPlan(*best)),
    ]


def joining_s(costs: Costs, speculation: Speculation) -> float:
    """Seconds from a hint until a generating server waits for the robot's drafts.

    A hint arrives during a pass, and may miss the next one, too.
    """
    waits = 2 * (2 * costs.one_way + speculation.cut * costs.draft(1))
    return waits + min(costs.generate, costs.verify(1))


class AutoPlanner(DraftPlanner):
    """Chooses the shape and pipeline with the highest rate by the cost model, or server generation.

    The measured rate of the plan in use corrects the model's; server generation is measured with
    and without the robot's hints. Measurements last from decode to decode.
    """

    def __init__(self, preset: Preset, measures: Measures) -> None:
        super().__init__(preset, measures)
        self.settings = DEFAULTS
        self._plan: DraftPlan | None = None
        self._rounds = 0  # since the last plan
        self._replans = 0
        self._verify_was_known = False  # at the last plan
        self._gave_up_at = 0.0  # s; the server's longest pass at which drafting did not pay
        # Time (s) of the decode's last round, and its tokens.
        self._last: tuple[float, int] | None = None
        self._since = (0.0, 0)  # seconds and tokens of the rounds since the last plan
        self._promises: dict[Key, float] = {}  # tokens per second, computed at the last plan
        self._slept = 0  # consecutive decodes with server generation and no hints
        self._answer = Mean(ANSWER, 1.0)  # tokens of an answer
        self._before = Mean(0.0, 1.0)  # of these, the tokens before the robot could take the lead
        self._rested = math.inf  # s of decodes since promises were computed
        self._led = 0.0  # s of rounds that the robot led since server generation was measured

    def begin(self) -> None:
        """Start a decode; the time since the last one is not measured."""
        if self._last is not None:
            self._answer.observe(self._last[1])
        self._last = None
        self._slept = self._slept + 1 if self._plan is not None and not self._plan.shape else 0

    @property
    def rests(self) -> bool:
        silent = self._plan is not None and self._plan.shape is None
        return silent and self._slept % AWAKE_EVERY > 0

    def plan(self, now: float, tokens: int, generated: bool = False) -> DraftPlan:
        measures = self._measures
        if self._last is None:
            self._before.observe(tokens)
        self._count(now, tokens, generated)
        if not (measures.server_pass.known or measures.server_yields[False].count >= PROBE):
            return DraftPlan(None, self._preset.speculation, generate=PROBE)
        learned = measures.verify_known and not self._verify_was_known
        if self._plan is None or self._is_due(self._plan) or learned:
            self._correct()
            # Other robots have left the cloud.
            if measures.server_pass.value < QUIETER * self._gave_up_at:
                measures.forget_verified()
                self._gave_up_at = 0.0
            if learned:
                self._rested = math.inf
            self._plan = self._best()
            self._verify_was_known = measures.verify_known
            self._replans += not learned
            self._rounds, self._since = 0, (0.0, 0)
        self._rounds += not (generated and self._plan.leads)
        return self._plan

    def _best(self) -> DraftPlan:
        idle = self._preset.speculation
        # Hints are tried first, as that costs no time.
        if self._measures.server_yields[True].count < HINTED:
            return DraftPlan(self._preset.shape, idle, generate=HINTED)
        seen = self.observations()
        worth, plan = max(scored_plans(seen, idle, self.settings), key=lambda scored: scored[0])
        if not plan.leads:
            self._gave_up_at = max(self._gave_up_at, seen.costs.generate)
        else:
            assert plan.shape is not None
            # At worst each pass is over looked-up drafts, of which none is right.
            alone = max(1 / seen.generated, self._measures.verify_s(plan.shape.max_nodes))
            slower = REPLAN[-1] * (alone - 1 / worth)
            if self._led > RECHECK * (joining_s(seen.costs, plan.speculation) + slower):
                plan = DraftPlan(None, idle, REPLAN[-1])
                self._measures.server_yields[False] = PassYield()
        if plan.shape is None:
            self._led = 0.0
        return plan

    def observations(self) -> Observations:
        """The measurements so far, and the rates that the cost model derives from them."""
        measures, costs = self._measures, self._measures.costs()
        without, hinted = (measures.server_yields[hints] for hints in (False, True))
        # An answer that is longer already than the usual one goes on for an unknown while.
        length = max(self._answer.value, self._last[1] if self._last else 0)
        self._promises = self._promised(costs)
        return Observations(
            costs=costs,
            promises=self._promises,
            yields={key: kept.value for key, kept in measures.yields.items() if key is not None},
            usual=self._usual,
            # A server that speculates adds 1 to n tokens a pass. What few passes have shown of that
            # may be too little; to lead, the robot must be faster than it may be.
            generated=without.upper_rate if without.count else 1 / costs.generate,
            hinted=hinted.rate,
            using=self._plan,
            left=max(1.0, length - self._before.value),
        )

    def _count(self, now: float, tokens: int, generated: bool) -> None:
        """Add a round to the current plan's; skip it if the plan leads but no round was led yet."""
        unled = generated and self._plan is not None and self._plan.leads
        if self._last is not None and not unled:
            (seconds, won), (then, before) = self._since, self._last
            self._since = (seconds + now - then, won + tokens - before)
            self._rested += now - then
            self._led += (now - then) * (self._plan is not None and self._plan.leads)
        self._last = (now, tokens)

    def _is_due(self, plan: DraftPlan) -> bool:
        """Whether it is time for a new plan."""
        if plan.generate:
            return self._since[1] >= plan.generate
        return self._rounds >= REPLAN[min(self._replans, len(REPLAN) - 1)]

    def _correct(self) -> None:
        """Measure the current plan's yield relative to the promised rate."""
        seconds, tokens = self._since
        plan = self._plan
        if plan is None or not plan.leads or self._rounds < TRIED or seconds <= 0:
            return
        assert plan.shape is not None
        key, yields = (plan.shape, plan.speculation), self._measures.yields
        # Promised by what is measured by now: a run of bad luck has lowered the acceptance already,
        # and would count twice.
        real = tokens / seconds / rate(*key, self._measures.costs())
        yields.setdefault(key, Mean(self._usual, PRIOR_WEIGHT)).observe(real)
        yields.setdefault(None, Mean(1.0, PRIOR_WEIGHT)).observe(real)

    @property
    def _usual(self) -> float:
        """The assumed relative yield of an untried plan: the mean of all plans, at most 1."""
        yields = self._measures.yields
        return min(1.0, yields[None].value) if None in yields else 1.0

    def _promised(self, costs: Costs) -> dict[Key, float]:
        """The cost model's tokens per second of each plan; cached for similar costs.

        The computation takes tens of ms, in which a robot cannot draft, so it may lag behind the
        costs.
        """
        kept, known = self._measures.promises, (self._preset.speculation, signature(costs))
        if known not in kept and self._promises and self._rested < PROMISES_REST_S:
            return self._promises
        if known not in kept:
            self._rested = 0.0
            if len(kept) >= MAX_KEPT_PROMISES:
                del kept[next(iter(kept))]
            trip = 2 * costs.one_way / max(costs.verify(1), MIN_PASS_S)
            base = self._preset.speculation
            base = replace(base, ahead=min(MAX_LOOKAHEAD, max(base.ahead, 1 + math.ceil(trip))))
            kept[known] = {
                (shape, speculation): rate(shape, speculation, costs)
                for shape in candidate_shapes(self._preset.shape.is_chain)
                for asked in self._with_and_without_exits(base, costs)
                for speculation in candidate_pipelines(asked, shape.depth)
            }
        return kept[known]

    def _with_and_without_exits(self, base: Speculation, costs: Costs) -> tuple[Speculation, ...]:
        """The speculation as given, and without exits if that makes a pass shorter."""
        without = costs.verify_without_exits or costs.verify
        shorter = base.exits and costs.verify(PROBED_NODES) > PLAN_GAIN * without(PROBED_NODES)
        return (base, replace(base, exits=False)) if shorter else (base,)


def planner_of(
    preset: Preset, measures: Measures, settings: PlannerSettings = DEFAULTS
) -> DraftPlanner:
    """The planner that a preset's ``pacing`` names."""
    if preset.pacing == "auto":
        if preset not in measures.planners:
            measures.planners[preset] = AutoPlanner(preset, measures)
        planner: AutoPlanner = measures.planners[preset]
        planner.settings = settings
        planner.begin()
        return planner
    kind = VerifyBoundPlanner if preset.pacing == "verify_bound" else DraftPlanner
    return kind(preset, measures)


@lru_cache(maxsize=2)
def candidate_shapes(chains: bool = False) -> tuple[Shape, ...]:
    """The shapes that ``auto`` chooses from; ``chains``: only chains."""
    trees = [BestFirst(16, depth, width) for depth in (2, 4, 8) for width in (2, 3, 4)]
    return (*map(chain, (1, 2, 4, 8)), *(() if chains else trees))


@lru_cache(maxsize=64)
def candidate_pipelines(base: Speculation, depth: int) -> tuple[Speculation, ...]:
    """The speculations (pass width, cut) that ``auto`` chooses from for a draft of this depth."""
    return tuple(
        replace(base, width=width, cut=cut)
        for width in (4, 16)
        for cut in (1, 2, 3, 4, 6)
        if cut <= depth
    )
