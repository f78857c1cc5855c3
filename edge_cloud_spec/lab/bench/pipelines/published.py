"""The papers' speed-ups in a regime: by their own formulas, and as published."""

from __future__ import annotations

from ...harness.regimes import Regime
from .. import formulas

EDGE_LAYERS = 0.1  # share of the target's on the robot in layer_split (PicoSpec 4.2: 3 of 28)
EDGE_SLOWDOWN = 4.0  # time of a layer there over its time in the cloud; assumed


def formula_speedup(regime: Regime, preset: str) -> float | None:
    """The paper's own formula with these costs, over the target alone."""
    length, draft, verify, rtt = regime.gamma, regime.draft_ms, regime.verify_ms, regime.rtt_ms
    tokens = formulas.expected_tokens(regime.alpha, length)
    if preset == "dsd":
        return tokens * regime.ar_ms / formulas.stop_and_wait_time(length, draft, rtt, verify)
    if preset == "fsd" and regime.exit_hit:
        miss = 1 - regime.exit_hit
        return tokens * regime.ar_ms / formulas.fsd_time(length, draft, rtt, verify, miss)
    if preset == "picospec":
        time = formulas.picospec_time(length, draft, rtt, verify, regime.alpha)
        return tokens * regime.ar_ms / time
    return None


def published_speedup(regime: Regime, preset: str) -> float | None:
    """The paper's measurement, over the target alone."""
    published = regime.published
    found = {
        "dsd": published.get("ar_to_sd", published.get("vanilla")),
        "fsd": published.get("ar_to_fsd"),
        "picospec": published.get("picospec"),
    }
    if preset == "fsd" and found["fsd"] is None and "sd_to_fsd" in published:
        return published["ar_to_sd"] * published["sd_to_fsd"]
    return found.get(preset)


def layer_split_speedup(regime: Regime) -> float:
    """The papers' other baseline by its cost: some layers on the robot, the rest in the cloud."""
    edge = EDGE_SLOWDOWN * regime.ar_ms
    return regime.ar_ms / formulas.layer_split_time(EDGE_LAYERS, edge, regime.ar_ms, regime.rtt_ms)
