"""Writes the report's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ....harness.regimes import Regime
from ...command import Row, write
from ..rows import Results
from ..variant import Variant
from .mission_plot import draw_missions
from .page import page
from .shown_mission import shown_missions
from .times_plot import draw_times

BEGINNING_S = 9.0


def write_report(
    folder: Path,
    seed: int,
    regime: Regime,
    results: Results,
    rows: Sequence[Row],
    columns: Mapping[str, str],
    renderer: str,
) -> Path:
    """Draw everything; returns the page's path. The first and the last variant are compared."""
    variants = list(results)
    compared = list(dict.fromkeys([variants[0], variants[-1]]))
    rooms = [room.room for room in results[variants[0]]]
    instruction, shown = shown_missions(compared, regime, rooms, renderer)
    draw_missions(folder / "mission.png", shown)
    draw_missions(folder / "beginning.png", shown, BEGINNING_S)
    draw_times(folder / "times.png", {_name(v, variants): each for v, each in results.items()})
    for number, decision in enumerate(shown[-1].record.decisions):
        (folder / f"frame-{number:02d}.jpg").write_bytes(decision.jpeg)
    write(folder / "rows.json", "mission", seed, list(rows))
    index = folder / "index.html"
    index.write_text(page(regime.name, instruction, shown, rows, columns), "utf-8")
    return index


def _name(variant: Variant, variants: Sequence[Variant]) -> str:
    several = len({each.link for each in variants}) > 1
    return f"{variant.label}, {variant.rtt_ms:g} ms" if several else variant.label
