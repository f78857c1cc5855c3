"""Writes the report's folder: plots, their rows, and the page that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from .....decoding.preset import Preset
from ....harness.emulated_link import LinkProfile
from ....harness.regimes import Regime
from ....harness.trace import Trace
from ....harness.virtual import VirtualHarness
from ...command import Row, make_report_folder, write
from .claims import PublishedClaim
from .estimate import estimated_speedup
from .page import page
from .speedup_plot import Curve, draw_curves
from .timeline import DecodeTimeline, timeline_of
from .timeline_plot import draw_timeline

MAX_TRACED = 400  # tokens of the answers whose timelines are drawn
STEPS = 26  # of an estimated curve


class ReportFolder:
    """What ``bench pipelines --out`` writes; raises UserError where it cannot be written.

    ``links``: each regime's link, by the regime's name.
    """

    def __init__(
        self,
        folder: Path,
        regimes: Sequence[Regime],
        presets: Sequence[Preset],
        links: Mapping[str, LinkProfile],
        tokens: int,
        seed: int,
    ) -> None:
        self._folder, self._regimes, self._presets = folder, regimes, presets
        self._links, self._seed = links, seed
        self._tokens = min(tokens, MAX_TRACED)
        make_report_folder(folder)

    def write(self, rows: Sequence[Row], sweep: Sequence[Row]) -> Path:
        """Draw everything; returns the page's path. sweep: rows of other round-trip times."""
        for regime in self._regimes:
            first = next(row["rtt_ms"] for row in rows if row["regime"] == regime.name)
            first_rtt = regime.with_rtt(first)
            timelines = {preset.name: self._timeline(first_rtt, preset) for preset in self._presets}
            draw_timeline(self._folder / f"{regime.name}-timeline.png", first_rtt, timelines)
            of_regime = [row for row in (*rows, *sweep) if row["regime"] == regime.name]
            curves = {preset.name: curve_of(regime, preset, of_regime) for preset in self._presets}
            draw_curves(self._folder / f"{regime.name}-speedup.png", regime, curves)
        write(self._folder / "rows.json", "pipelines", self._seed, [*rows, *sweep])
        index = self._folder / "index.html"
        index.write_text(page(self._regimes, rows, self._claims(rows)), "utf-8")
        return index

    def _timeline(self, regime: Regime, preset: Preset) -> DecodeTimeline:
        """Of a decode in virtual time, also where the rows were measured in real time."""
        link = replace(self._links[regime.name], delay_ms=regime.one_way_ms)
        trace, drafts = Trace(), preset.drafter == "cloud"
        there = VirtualHarness(regime, link, self._seed, trace=trace, cloud_drafts=drafts)
        with closing(there) as harness:
            answer = harness.robot.decode(preset, self._tokens, self._seed)
        return timeline_of(answer.outcome, trace)

    def _claims(self, rows: Sequence[Row]) -> list[PublishedClaim]:
        """The rows at the papers' own round-trip times."""
        regimes = {regime.name: regime for regime in self._regimes}
        return [
            PublishedClaim(
                regime, row["preset"], row["speedup"], row["formula_speedup"], row["published"]
            )
            for row in rows
            if (regime := regimes[row["regime"]]).rtt_ms == row["rtt_ms"]
            and (row.get("formula_speedup") or row.get("published"))
        ]


def curve_of(regime: Regime, preset: Preset, rows: Sequence[Row]) -> Curve:
    """A preset's curve from a regime's rows, in virtual time also where rows are in real time."""
    of_preset = [row for row in rows if row["preset"] == preset.name]
    speeds = {
        row["rtt_ms"]: row.get("virtual_tokens_per_s") or row["tokens_per_s"] for row in of_preset
    }
    measured = {rtt: speed * regime.ar_ms / 1e3 for rtt, speed in speeds.items()}
    published = next((row["published"] for row in of_preset if row["published"]), None)
    width = max(measured) - min(measured)
    times = [min(measured) + width * step / (STEPS - 1) for step in range(STEPS if width else 1)]
    return Curve(
        tuple(sorted(measured.items())),
        tuple((time, estimated_speedup(regime.with_rtt(time), preset)) for time in times),
        (regime.rtt_ms, published) if published else None,
    )
