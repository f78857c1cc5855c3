"""A folder with the report: pictures, the figures that they show, and the page around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ....decoding.preset import Preset
from ....errors import UserError
from ....harness.emulated_link import LinkProfile
from ....harness.regimes import Regime
from ....harness.trace import Trace
from ....harness.virtual import VirtualHarness
from ...command import Row, write
from .claims import PublishedClaim
from .curves import Curve, draw_curves
from .lanes import Lanes, lanes_of
from .page import page
from .promise import promised_speedup
from .timeline import draw_timeline

TRACED = 400  # tokens of the answers whose timelines are drawn, at most
STEPS = 26  # of a promised curve


class ReportFolder:
    """What ``bench pipelines --out`` leaves behind; raises UserError where it cannot be written.

    ``weather``: each regime's link, by the regime's name.
    """

    def __init__(
        self,
        folder: Path,
        regimes: Sequence[Regime],
        presets: Sequence[Preset],
        weather: Mapping[str, LinkProfile],
        tokens: int,
        seed: int,
    ) -> None:
        self._folder, self._regimes, self._presets = folder, regimes, presets
        self._weather, self._seed = weather, seed
        self._tokens = min(tokens, TRACED)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "index.html").touch()
        except OSError as error:
            raise UserError(
                f"--out {folder} cannot be written ({error.strerror}); name another folder"
            ) from None

    def write(self, rows: Sequence[Row], sweep: Sequence[Row]) -> Path:
        """Draw everything; returns the page's path. sweep: rows of other round-trip times."""
        for regime in self._regimes:
            first = next(row["rtt_ms"] for row in rows if row["regime"] == regime.name)
            there = regime.with_rtt(first)
            lanes = {preset.name: self._lanes(there, preset) for preset in self._presets}
            draw_timeline(self._folder / f"{regime.name}-timeline.png", there, lanes)
            mine = [row for row in (*rows, *sweep) if row["regime"] == regime.name]
            curves = {preset.name: curve_of(regime, preset, mine) for preset in self._presets}
            draw_curves(self._folder / f"{regime.name}-speedup.png", regime, curves)
        write(self._folder / "rows.json", "pipelines", self._seed, [*rows, *sweep])
        index = self._folder / "index.html"
        index.write_text(page(self._regimes, rows, self._claims(rows)), "utf-8")
        return index

    def _lanes(self, regime: Regime, preset: Preset) -> Lanes:
        """In virtual time, whatever the rows were measured in."""
        link = replace(self._weather[regime.name], delay_ms=regime.one_way_ms)
        trace = Trace()
        with closing(VirtualHarness(regime, link, self._seed, trace=trace)) as there:
            answer = there.robot.decode(preset, self._tokens, self._seed)
        return lanes_of(answer.outcome, trace)

    def _claims(self, rows: Sequence[Row]) -> list[PublishedClaim]:
        """At the papers' own round-trip times."""
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
    """Of rows of this regime; where they were measured in real time, what they were in virtual."""
    mine = [row for row in rows if row["preset"] == preset.name]
    speeds = {row["rtt_ms"]: row.get("virtual_tokens_per_s") or row["tokens_per_s"] for row in mine}
    measured = {rtt: speed * regime.ar_ms / 1e3 for rtt, speed in speeds.items()}
    published = next((row["published"] for row in mine if row["published"]), None)
    span = max(measured) - min(measured)
    times = [min(measured) + span * step / (STEPS - 1) for step in range(STEPS if span else 1)]
    return Curve(
        tuple(sorted(measured.items())),
        tuple((time, promised_speedup(regime.with_rtt(time), preset)) for time in times),
        (regime.rtt_ms, published) if published else None,
    )
