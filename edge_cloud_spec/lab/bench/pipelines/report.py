"""The report of ``bench pipelines --out``: plots, their rows, and the page that shows them.

Its words hold the papers' published results against their own formulas and the measurements here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ....decoding.preset import Preset
from ...harness.emulated_link import LinkProfile
from ...harness.regimes import Regime
from ...harness.trace import Trace
from ...harness.virtual import VirtualHarness
from ...reports import write_page
from .. import formulas
from ..command import Row, write
from .speedup_plot import Curve, draw_curves, estimated_speedup
from .timeline import DecodeTimeline, draw_timeline, timeline_of

NEAR = 0.05  # a result this close to its formula agrees with it
# Likely reasons, by paper, preset and whether the result is above the paper's own formula.
REASONS = {
    ("fsd", "fsd", True): ": table 4's formula needs a cache that never misses to give {best:.2f}; "
    "the paper reports {miss:.0%} misses",
    ("fsd", "fsd", False): ": T_r, the synchronizing after a hit, is not printed and counts as 0 "
    "in the formula",
    ("pico", "picospec", True): ", although that counts a bonus token{streamed}",
    ("pico", "picospec", False): ", which counts a bonus token{streamed}",
    ("pico", "dsd", False): ": presumably its vanilla sends whole rows of Q (tables 2 and 3, w/o "
    "Split-rej), which the regime's link does not count",
}
STREAMED = (
    " (eq. 5) that a streamed draft cannot have, since the next draft already stands in its "
    "place; without it: {:.2f}"
)
CLAIMS = {
    "regime": "regime",
    "preset": "preset",
    "speedup": "measured",
    "formula_speedup": "formula",
    "published": "published",
    "published_over_formula": "published / formula",
    "words": "",
}
COLUMNS = {
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
MAX_TRACED = 400  # tokens of the answers whose timelines are drawn
STEPS = 26  # of an estimated curve


def disagrees(claim: Row) -> bool:
    """Whether a paper's result is not what its own formula gives."""
    ratio = claim["published_over_formula"]
    return ratio is not None and abs(ratio - 1) > NEAR


def verdict(regime: Regime, claim: Row) -> str:
    """Whether a published result and the paper's formula agree, and a likely reason if not."""
    ratio = claim["published_over_formula"]
    if ratio is None:
        return "the paper has no formula" if claim["published"] else "nothing published"
    if not disagrees(claim):
        return f"result and formula agree within {NEAR:.0%}"
    times = regime.gamma, regime.draft_ms, regime.rtt_ms, regime.verify_ms
    tokens = formulas.expected_tokens(regime.alpha, regime.gamma)
    streamed = formulas.streamed_tokens(regime.alpha, regime.gamma)
    pushed = formulas.picospec_time(*times, acceptance=regime.alpha)
    never_missed = formulas.fsd_time(*times, cache_miss=0.0)
    paper = regime.name.split("-")[0]
    reason = REASONS.get((paper, claim["preset"], ratio > 1), "").format(
        best=formulas.speedup(tokens, never_missed, regime.ar_ms),
        miss=1 - regime.exit_hit,
        streamed=STREAMED.format(formulas.speedup(streamed, pushed, regime.ar_ms)),
    )
    side = "above" if ratio > 1 else "below"
    return f"the result is {abs(ratio - 1):.0%} {side} its own formula{reason}"


def write_report(
    folder: Path,
    regimes: Sequence[Regime],
    presets: Sequence[Preset],
    links: Mapping[str, LinkProfile],
    tokens: int,
    seed: int,
    rows: Sequence[Row],
    sweep: Sequence[Row],
) -> Path:
    """Draw everything; returns the page's path.

    ``links``: each regime's link, by its name. ``sweep``: rows of other round-trip times.
    """
    claims: list[Row] = []
    for regime in regimes:
        own = [row for row in rows if row["regime"] == regime.name]
        claims += [
            row | {"words": verdict(regime, row)}
            for row in own
            if row["rtt_ms"] == regime.rtt_ms
            and (row.get("formula_speedup") or row.get("published"))
        ]
        first = regime.with_rtt(own[0]["rtt_ms"])
        link = links[regime.name]
        if link.trace is None:
            link = replace(link, delay_ms=first.one_way_ms)
        timelines = {
            preset.name: timeline(first, preset, link, min(tokens, MAX_TRACED), seed)
            for preset in presets
        }
        draw_timeline(folder / f"{regime.name}-timeline.png", first, timelines)
        own += [row for row in sweep if row["regime"] == regime.name]
        curves = {preset.name: curve_of(regime, preset, own) for preset in presets}
        draw_curves(folder / f"{regime.name}-speedup.png", regime, curves)
    write(folder / "rows.json", "pipelines", seed, [*rows, *sweep])
    return write_page(
        folder,
        "pipelines",
        title="Pipelines of edge-cloud speculative decoding",
        regimes=regimes,
        rows=rows,
        columns=COLUMNS,
        claims=claims,
        claimed=CLAIMS,
        judged=[claim for claim in claims if claim["published_over_formula"] is not None],
        differing=list(filter(disagrees, claims)),
    )


def timeline(
    regime: Regime, preset: Preset, link: LinkProfile, tokens: int, seed: int
) -> DecodeTimeline:
    """The timeline of a decode in virtual time, even if the rows were measured in real time."""
    trace, drafts = Trace(), preset.drafter == "cloud"
    with closing(VirtualHarness(regime, link, seed, trace=trace, cloud_drafts=drafts)) as harness:
        answer = harness.robot.decode(preset, tokens, seed)
    return timeline_of(answer.outcome, trace)


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
