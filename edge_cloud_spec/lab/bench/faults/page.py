"""The table of ``docs/faults.md``: what each fault declares, and what its rows measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ....errors import UserError
from ..command import Row
from .fault import InjectedFault

LONGEST = 100  # characters of what the owner reads
BEGIN, END = "<!-- table of bench faults -->", "<!-- end of the table -->"
HEAD = (
    "| fault | what is injected | what the robot does | what the owner reads "
    "| stop command, s | stands, s | goes on, s |\n|---|---|---|---|---|---|---|"
)


def write_page(path: Path, faults: Mapping[str, InjectedFault], rows: Iterable[Row]) -> None:
    """Put the table between the page's two marks; raises UserError where they are missing."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the page {path} cannot be read: {error.strerror}") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"the page {path} has no {BEGIN} and {END}, between which the table goes")
    path.write_text(f"{before}{BEGIN}\n{table(faults, rows)}\n{END}{after}", encoding="utf-8")


def table(faults: Mapping[str, InjectedFault], rows: Iterable[Row]) -> str:
    """A line a fault, with a dash for what was not measured."""
    measured = {row["fault"]: row for row in rows}
    lines = [_line(fault, measured.get(fault.name, {})) for fault in faults.values()]
    return "\n".join([HEAD, *lines])


def _line(fault: InjectedFault, row: Row) -> str:
    said = str(row.get("said", "") if fault.reads else "").replace("|", "/").replace("`", "'")
    times = [
        _seconds(row.get(name))
        for name in ("standstill_s_max", "base_stands_s_max", "recovery_s_max")
    ]
    reads = f"`{_shortened(said)}`" if said else "-"
    return f"| {fault.name} | {fault.injected} | {fault.robot} | {reads} | " + (
        " | ".join(times) + " |"
    )


def _shortened(said: str) -> str:
    """Without the instruction, and as much as tells one sentence from another."""
    said = re.sub(r"following (.+?): no decision on '\1': ", "", said)
    return said if len(said) <= LONGEST else f"{said[:LONGEST].rpartition(' ')[0]} ..."


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
