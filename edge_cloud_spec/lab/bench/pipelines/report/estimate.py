"""The cost model's estimate of a preset's speed-up in a regime: the lines in the plots."""

from __future__ import annotations

from dataclasses import replace

from .....decoding.cost_model import Costs, rate
from .....decoding.preset import Preset
from .....decoding.speculation import STOP_AND_WAIT
from .....edge.draft_planner import planner_of
from .....edge.measures import Measures
from ....harness.regimes import Regime
from ....harness.robot import with_regime_length


class RegimeMeasures(Measures):
    """A regime's costs, in place of what a robot would measure."""

    def __init__(self, regime: Regime) -> None:
        super().__init__()
        self._costs = costs_of(regime)
        self.server_pass.observe(self._costs.alone)
        self.verified(1, self._costs.verify(1), None)

    def costs(self) -> Costs:
        return self._costs


def costs_of(regime: Regime) -> Costs:
    """A regime's times in seconds, as the cost model takes them."""
    return Costs(
        lambda nodes: regime.draft_pass_ms(nodes) / 1e3,
        lambda nodes: regime.verify_pass_ms(nodes) / 1e3,
        regime.ar_ms / 1e3,
        regime.one_way_ms / 1e3,
        regime.alpha,
        regime.runner_up,
        regime.exit_hit,
    )


def estimated_speedup(regime: Regime, preset: Preset) -> float:
    """Over the target alone, with the shape and pipeline that the preset's draft planner picks."""
    measures, preset = RegimeMeasures(regime), with_regime_length(preset, regime)
    if preset.drafter == "cloud":  # stop and wait without a link
        local = replace(measures.costs(), one_way=0.0)
        return rate(preset.shape, STOP_AND_WAIT, local) * regime.ar_ms / 1e3
    plan = planner_of(preset, measures).plan(0.0, 0)
    if plan.shape is None:
        return 1.0
    return rate(plan.shape, plan.speculation, measures.costs()) * regime.ar_ms / 1e3
