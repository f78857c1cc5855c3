"""How long and how wide a robot drafts next, and whether at all: fixed, by a rule, or ``auto``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from ..decoding.cost import specedge_depth
from ..decoding.plan import Costs, rate
from ..decoding.preset import Preset
from ..decoding.shape import BestFirst, Shape, chain
from ..decoding.speculation import Speculation
from .measures import Mean, Measures

PROBE = 3  # passes of the target alone, to learn what they cost
REPLAN = 16  # rounds
GAIN = 1.02  # another plan has to promise so much more than the one in use
PATIENCE = 4.0  # measurements that a promise counts for


@dataclass(frozen=True)
class Plan:
    """What to do next: draft in this shape, or let the cloud go on alone for ``alone`` passes."""

    shape: Shape | None
    speculation: Speculation
    alone: int = 0


class Pacing(Protocol):
    """Decides before each draft."""

    def plan(self, now: float, tokens: int) -> Plan:
        """For the next round; so many tokens are verified at this time, in seconds."""


class Fixed:
    """What the preset says."""

    def __init__(self, preset: Preset) -> None:
        self._plan = Plan(preset.shape if preset.drafts_on_robot else None, preset.speculation)

    def plan(self, now: float, tokens: int) -> Plan:
        return self._plan


class VerifyBound:
    """Drafting and round trip together take as long as the target's pass (SpecEdge 4.3)."""

    def __init__(self, preset: Preset, measures: Measures) -> None:
        self._preset, self._measures = preset, measures

    def plan(self, now: float, tokens: int) -> Plan:
        shape, costs = self._preset.shape, self._measures.costs()
        if self._measures.verify.known:
            width = shape.width if isinstance(shape, BestFirst) else 1
            verify = costs.verify(shape.most)
            shape = shape.within(specedge_depth(costs.draft(width), 2 * costs.one_way, verify))
        return Plan(shape, self._preset.speculation)


class Auto:
    """The shape and pipeline that the cost model promises most of, or the target alone.

    What a plan in use really yields is measured, and its promise corrected by it: of plans that
    promise about the same, the best is found by trying.
    """

    def __init__(self, preset: Preset, measures: Measures) -> None:
        self._preset, self._measures = preset, measures
        self._rounds = 0
        self._knew = False  # what the target's pass costs, when the plan was made
        self._plan: Plan | None = None
        self._promised = 0.0  # tokens per second
        self._since = (0.0, 0)  # when the plan was taken, and the tokens then

    def plan(self, now: float, tokens: int) -> Plan:
        measures = self._measures
        if not measures.alone.known:
            return Plan(None, self._preset.speculation, alone=PROBE)
        learned = measures.verify.known and not self._knew
        if self._plan is None or self._rounds % REPLAN == 0 or learned:
            self._knew = measures.verify.known
            self._correct(now, tokens)
            self._plan = self._best()
            self._since = (now, tokens)
        self._rounds += 1
        return self._plan

    def _correct(self, now: float, tokens: int) -> None:
        """Learn what the plan in use yields of what it promised."""
        since, before = self._since
        plan = self._plan
        if plan is not None and plan.shape is not None and tokens > before and now > since:
            real = (tokens - before) / (now - since)
            key = (plan.shape, plan.speculation)
            kept = self._measures.yields.setdefault(key, Mean(1.0, PATIENCE))
            kept.observe(real / self._promised)

    def _best(self) -> Plan:
        costs, told = self._measures.costs(), self._preset.speculation
        yields = self._measures.yields
        best, promised = Plan(None, told, self._passes(costs)), 1 / costs.alone
        most = promised
        for shape in menu():
            for speculation in pipelines(told):
                expected = rate(shape, speculation, costs)
                corrected = (
                    expected * yields[key].value
                    if (key := (shape, speculation)) in yields
                    else expected
                )
                if self._plan is not None and key == (self._plan.shape, self._plan.speculation):
                    corrected *= GAIN
                if corrected > most:
                    most, promised, best = corrected, expected, Plan(shape, speculation)
        self._promised = promised
        return best

    def _passes(self, costs: Costs) -> int:
        """Of the target alone, before it is asked again: not to wait for the answer."""
        return REPLAN + int(4 * costs.one_way / costs.alone)


def pacing_of(preset: Preset, measures: Measures) -> Pacing:
    """The pacing that a preset asks for."""
    if preset.pacing == "auto":
        return Auto(preset, measures)
    return VerifyBound(preset, measures) if preset.pacing == "verify_bound" else Fixed(preset)


@lru_cache(maxsize=1)
def menu() -> tuple[Shape, ...]:
    """The shapes that ``auto`` chooses from."""
    trees = [
        BestFirst(nodes, depth, width)
        for depth in range(1, 7)
        for width in (2, 3, 4, 8)
        for nodes in (2, 3, 4, 6, 8, 12, 16)
        if depth < nodes <= depth * width
    ]
    return (*map(chain, range(1, 9)), *trees)


@lru_cache(maxsize=8)
def pipelines(told: Speculation) -> tuple[Speculation, ...]:
    """The pipelines that ``auto`` chooses from."""
    return tuple(replace(told, width=width) for width in (1, 4, 8, 16))
