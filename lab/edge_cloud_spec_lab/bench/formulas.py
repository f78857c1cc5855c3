"""The papers' formulas for a round's time and tokens, without a model or a link.

Times are seconds. ``acceptance`` is the probability that a drafted token is accepted if all before
it are, ``length`` the draft length (gamma; L in TSLT), ``draft`` the draft model's time per token,
``verify`` the target's per pass.
"""

from __future__ import annotations

from dataclasses import replace

from edge_cloud_spec.decoding.cost_model import Costs, rate
from edge_cloud_spec.decoding.preset import STOP_AND_WAIT, Preset
from edge_cloud_spec.edge.draft_planner import HINTED, planner_of
from edge_cloud_spec.edge.measures import Measures

# -- tokens of a round


def expected_tokens(acceptance: float, length: int) -> float:
    """Expected tokens of a round: the accepted ones, then the recovered or the bonus token.

    (1 - a^(length + 1)) / (1 - a), summed so that a = 1 needs no special case.

    TSLT eq. 8, PicoSpec eq. 5 (Leviathan et al. 2023, eq. 1). TSLT eq. 28 has length * a + 1
    instead, which would need every drafted token to be judged.
    """
    return sum(acceptance**depth for depth in range(length + 1))


def rejection_probability(acceptance: float, length: int) -> float:
    """1 - a^length: the probability that a token is rejected, so that DSSD sends P (sec. 3.1, table
    1)."""
    return float(1 - acceptance**length)


# -- time of a round, and of a token


def stop_and_wait_time(length: int, draft: float, communication: float, verify: float) -> float:
    """The time of a round of plain speculative decoding, in which nothing overlaps.

    DSSD eqs. 6, 7 and 13, TSLT eqs. 5 and 26, FSD table 4 (SD), PicoSpec eqs. 1 and 6.
    """
    return length * draft + communication + verify


def fsd_time(
    length: int, draft: float, communication: float, verify: float, cache_miss: float
) -> float:
    """The time of a round in which a pre-draft is ready unless the cache missed (FSD table 4)."""
    return cache_miss * length * draft + communication + verify


def picospec_time(length: int, draft: float, rtt: float, verify: float, acceptance: float) -> float:
    """The expected time of a round of parallel drafting (PicoSpec eqs. 8 and 9).

    If all is accepted, with probability a^length, drafting and rtt + verify overlap (eq. 2).
    Otherwise the next draft is discarded and the round is serial.
    """
    hit = 1 - rejection_probability(acceptance, length)
    overlapped = max(length * draft, rtt + verify)
    return hit * overlapped + (1 - hit) * stop_and_wait_time(length, draft, rtt, verify)


# -- our cost model


class KnownCosts(Measures):
    """Measures with given costs instead of a robot's measurements."""

    def __init__(self, costs: Costs) -> None:
        super().__init__()
        self._costs = costs
        self.server_pass.observe(costs.generate)
        self.verified(1, costs.verify(1), None)
        for hints in (False, True):  # measured already: else `auto` plans to measure, no more
            for _ in range(HINTED):
                self.server_yields[hints].observe(1, costs.generate)

    def costs(self) -> Costs:
        return self._costs


def promised(preset: Preset, costs: Costs) -> float:
    """Tokens per second of a preset, with the shape and pipeline that its draft planner picks.

    The cloud's own drafter is assumed to cost what the robot's costs.
    """
    if preset.drafter == "cloud":
        return rate(preset.shape, STOP_AND_WAIT, replace(costs, one_way=0.0))
    plan = planner_of(preset, KnownCosts(costs)).plan(0.0, 0)
    if plan.shape is None or plan.generate:
        return 1 / costs.generate
    return rate(plan.shape, plan.speculation, costs)
