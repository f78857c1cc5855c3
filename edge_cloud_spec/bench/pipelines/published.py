"""What the papers say of a regime: their formulas' speed-up, and the one that they published."""

from __future__ import annotations

from ...harness.regimes import Regime
from .. import formulas

EDGE_LAYERS = 0.1  # of the target's are on the robot in layer_split (PicoSpec 4.2: 3 of 28)
EDGE_SLOWER = 4.0  # a layer there takes so many times as long; assumed


def formula_speedup(regime: Regime, preset: str) -> float | None:
    """What the paper's own formula gives for these costs, over the target alone."""
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
    """What the paper measured, over the target alone."""
    said = regime.published
    found = {
        "dsd": said.get("ar_to_sd", said.get("vanilla")),
        "fsd": said.get("ar_to_fsd"),
        "picospec": said.get("picospec"),
    }
    if preset == "fsd" and found["fsd"] is None and "sd_to_fsd" in said:
        return said["ar_to_sd"] * said["sd_to_fsd"]
    return found.get(preset)


def layer_split_speedup(regime: Regime) -> float:
    """The papers' other baseline, from its cost: some layers on the robot, the rest elsewhere."""
    edge = EDGE_SLOWER * regime.ar_ms
    return regime.ar_ms / formulas.layer_split_time(EDGE_LAYERS, edge, regime.ar_ms, regime.rtt_ms)
