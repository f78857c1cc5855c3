"""An answer in virtual time with the trace of all that happened in it."""

from __future__ import annotations

from edge_cloud_spec.lab.harness.emulated_link import LinkProfile
from edge_cloud_spec.lab.harness.regimes import Regime
from edge_cloud_spec.lab.harness.trace import Trace
from edge_cloud_spec.lab.harness.virtual import DecodedAnswer, VirtualHarness
from edge_cloud_spec.presets import load_preset


def decode(
    regime: Regime, preset: str, tokens: int, seed: int, **weather: float
) -> tuple[DecodedAnswer, Trace]:
    """An answer in virtual time, and all that happened in it."""
    trace = Trace()
    link = LinkProfile(regime.one_way_ms, **weather)
    loaded = load_preset(preset)
    drafts = loaded.drafter == "cloud"
    there = VirtualHarness(regime, link, seed, trace=trace, cloud_drafts=drafts)
    return there.robot.decode(loaded, tokens, seed), trace
