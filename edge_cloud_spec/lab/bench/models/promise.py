"""What the cost model promises of each preset, from measured costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....decoding.cost_model import Costs, rate, specedge_depth
from ....decoding.preset import STOP_AND_WAIT, Preset
from ....decoding.shape import BestFirst
from ....edge.draft_planner import candidate_pipelines, candidate_shapes
from ....presets import load_preset, preset_names


@dataclass(frozen=True)
class Promise:
    """Tokens per second, once the answer has begun."""

    preset: str
    tokens_per_s: float


def promises(costs: Costs) -> list[Promise]:
    """Of every preset whose greedy words are the target's, the best first.

    Presets that differ under ``rejection`` only are one: the first by name stands for them. What a
    lookup finds depends on what was said before: no cost model promises it.
    """
    found: dict[object, Promise] = {}
    for name in ("cloud_ar", "cloud_sd", "dsd", *preset_names()):
        preset = load_preset(name)
        if preset.verified and preset.exact and preset.drafter != "lookup":
            key = (
                (preset.drafter, preset.shape, preset.speculation, preset.pacing)
                if (preset.drafter != "none")
                else "none"
            )
            found.setdefault(key, Promise(name, promised(preset, costs)))
    return sorted(found.values(), key=lambda promise: -promise.tokens_per_s)


def promised(preset: Preset, costs: Costs) -> float:
    """Tokens per second of a preset under these costs.

    Early exits are not counted (``bench exits`` measures them). The cloud's own drafter is taken to
    cost there what it costs here.
    """
    if preset.drafter == "none":
        return 1 / costs.alone
    if preset.drafter == "cloud":
        return rate(preset.shape, STOP_AND_WAIT, replace(costs, one_way=0.0))
    if preset.pacing == "auto":
        best = max(
            rate(shape, pipeline, costs)
            for shape in candidate_shapes()
            for pipeline in candidate_pipelines(preset.speculation, shape.depth)
        )
        return max(best, 1 / costs.alone)
    shape = preset.shape
    if preset.pacing == "verify_bound":
        width = shape.width if isinstance(shape, BestFirst) else 1
        verify = costs.verify(shape.max_nodes)
        shape = shape.within(specedge_depth(costs.draft(width), 2 * costs.one_way, verify))
    return rate(shape, preset.speculation, costs)
