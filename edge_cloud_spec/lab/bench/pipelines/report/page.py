"""The report's page: plain HTML; its plots are files in the same folder."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .....document import document, table
from ....harness.regimes import Regime
from ...command import Row
from .claims import PublishedClaim


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
