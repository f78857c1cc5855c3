"""The report of ``bench pipelines --out``: plots, their rows, and the page that shows them.

Its words hold the papers' published results against their own formulas and the measurements here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from ....decoding.preset import Preset
from ...document import document, table
from ...harness.emulated_link import LinkProfile
from ...harness.regimes import Regime
from ...harness.trace import Trace
from ...harness.virtual import VirtualHarness
from .. import formulas
from ..command import Row, make_report_folder, write
from .speedup_plot import Curve, draw_curves, estimated_speedup
from .timeline import DecodeTimeline, draw_timeline, timeline_of

NEAR = 0.05  # a result this close to its formula agrees with it


@dataclass(frozen=True)
class PublishedClaim:
    """Speed-ups over the target alone of a preset on a paper's own figures."""

    regime: Regime
    preset: str
    measured: float
    formula: float | None
    published: float | None

    @property
    def ratio(self) -> float | None:
        """The published result over the paper's own formula."""
        if self.formula is None or self.published is None:
            return None
        return self.published / self.formula

    @property
    def disagrees(self) -> bool:
        return self.ratio is not None and abs(self.ratio - 1) > NEAR

    @property
    def words(self) -> str:
        """Whether a result and its formula agree, and a likely reason if not."""
        if self.ratio is None:
            return "nothing published" if self.published is None else "the paper has no formula"
        if not self.disagrees:
            return f"result and formula agree within {NEAR:.0%}"
        side = "above" if self.ratio > 1 else "below"
        return f"the result is {abs(self.ratio - 1):.0%} {side} its own formula{self._why()}"

    def _why(self) -> str:
        paper = self.regime.name.split("-")[0]
        assert self.ratio is not None
        why = _WHY.get((paper, self.preset, self.ratio > 1))
        return why(self.regime) if why else ""


def _fsd_above(regime: Regime) -> str:
    best = _speedup(regime, formulas.fsd_time(*_times(regime), cache_miss=0.0))
    return (
        f": table 4's formula needs a cache that never misses to give {best:.2f}; "
        f"the paper reports {1 - regime.exit_hit:.0%} misses"
    )


def _fsd_below(_: Regime) -> str:
    return ": T_r, the synchronizing after a hit, is not printed and counts as 0 in the formula"


def _pico_above(regime: Regime) -> str:
    return f", although that counts a bonus token{_without_bonus(regime)}"


def _pico_below(regime: Regime) -> str:
    return f", which counts a bonus token{_without_bonus(regime)}"


def _without_bonus(regime: Regime) -> str:
    tokens = formulas.streamed_tokens(regime.alpha, regime.gamma)
    time = formulas.picospec_time(*_times(regime), acceptance=regime.alpha)
    return (
        " (eq. 5) that a streamed draft cannot have, since the next draft already stands in its "
        f"place; without it: {tokens * regime.ar_ms / time:.2f}"
    )


def _vanilla_below(_: Regime) -> str:
    return (
        ": presumably its vanilla sends whole rows of Q (tables 2 and 3, w/o Split-rej), which "
        "the regime's link does not count"
    )


_WHY: dict[tuple[str, str, bool], Callable[[Regime], str]] = {
    ("fsd", "fsd", True): _fsd_above,
    ("fsd", "fsd", False): _fsd_below,
    ("pico", "picospec", True): _pico_above,
    ("pico", "picospec", False): _pico_below,
    ("pico", "dsd", False): _vanilla_below,
}


def _times(regime: Regime) -> tuple[int, float, float, float]:
    return regime.gamma, regime.draft_ms, regime.rtt_ms, regime.verify_ms


def _speedup(regime: Regime, time: float) -> float:
    return formulas.speedup(
        formulas.expected_tokens(regime.alpha, regime.gamma), time, regime.ar_ms
    )


def page(regimes: Sequence[Regime], rows: Sequence[Row], claims: Sequence[PublishedClaim]) -> str:
    """The published results first, then each regime's plots, then all rows."""
    return document(
        "Pipelines of edge-cloud speculative decoding",
        f"""<p>Costs, acceptance and links are those that the papers published, where no others were
asked for; robot, cloud and codec are this package's own. Speeds are over the target alone in the
cloud. {_clock(rows)}</p>
{_published(claims)}
{"".join(_pictures(regime) for regime in regimes)}
<h2>All rows</h2>
{_rows(rows)}
<p><a href="rows.json">rows.json</a> has every column, and the points over the round-trip time.</p>
""",
    )


def _clock(rows: Sequence[Row]) -> str:
    if any(row["harness"] == "grpc" for row in rows):
        return (
            "The rows were measured in real time, over gRPC; timelines and curves show the same in "
            "virtual time."
        )
    return "All of it ran in virtual time."


def _published(claims: Sequence[PublishedClaim]) -> str:
    if not claims:
        return "<p>Nothing was published for these presets on these links.</p>"
    off = [claim for claim in claims if claim.disagrees]
    judged = [claim for claim in claims if claim.ratio is not None]
    if judged:
        summary = (
            f"{len(off)} of {len(judged)} published results differ from their own paper's formula "
            "by more than 5 %. The target's own time in the regimes of FSD is derived from its "
            "result for dsd, so that dsd agrees there by construction."
        )
    else:
        summary = "Nothing was published for these costs; the formulas are the papers' own."
    heads = ("regime", "preset", "measured", "formula", "published", "published / formula", "")
    cells = [
        (
            claim.regime.name,
            claim.preset,
            claim.measured,
            claim.formula,
            claim.published,
            claim.ratio,
            claim.words,
        )
        for claim in claims
    ]
    return f"""<h2>Beside what was published</h2>
<p>{summary}</p>
{table(heads, cells)}"""


def _pictures(regime: Regime) -> str:
    name = escape(regime.name)
    exits = "" if regime.exit_hit else " This regime has no exits, so fsd is dsd here."
    return f"""<h2>{name}</h2>
<p>What runs and what waits, in the part that is most like the whole answer. A block is a pass of a
model, slanted lines are messages.{exits}</p>
<img src="{name}-timeline.png" alt="timeline of robot, link and cloud under {name}">
<p></p>
<img src="{name}-speedup.png" alt="speed-up over the round-trip time under {name}">
"""


def _rows(rows: Sequence[Row]) -> str:
    columns = {
        "regime": "regime",
        "preset": "preset",
        "rtt_ms": "rtt ms",
        "harness": "measured in",
        "tokens_per_s": "tokens/s",
        "speedup": "speed-up",
        "tokens_per_round": "tokens a round",
        "cache_miss": "miss",
        "robot_idle": "robot waits",
        "cloud_idle": "cloud waits",
        "up_bytes_mean": "bytes up a round",
        "down_bytes_mean": "down",
    }
    cells = [[row.get(name) for name in columns] for row in rows]
    return table(list(columns.values()), cells)


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
