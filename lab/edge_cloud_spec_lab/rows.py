"""Figures as flat rows: command line options, table, and JSON."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_cloud_spec.errors import installed_version, write_json

Row = dict[str, Any]
Options = dict[str, dict[str, Any]]  # each flag with what add_argument takes


def add_options(parser: argparse.ArgumentParser, options: Options) -> None:
    """Declare these options."""
    for flag, given in options.items():
        parser.add_argument(flag, **given)


def seed(text: str) -> int:
    """Parse a seed; raises ArgumentTypeError."""
    if not (text.isdecimal() and int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {2**31 - 1}")
    return int(text)


def print_table(rows: Sequence[Row], columns: Mapping[str, str] | None = None) -> None:
    """Print rows as a table; columns: the headings of the fields to print."""
    present = {name: name for row in rows for name in row}
    columns = {name: columns[name] for name in columns if name in present} if columns else present
    body = ([_text(row.get(name, "")) for name in columns] for row in rows)
    table = [list(columns.values()), *body]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write(path: Path, suite: str, seed: int, rows: Sequence[Row]) -> None:
    """Write rows as JSON with suite, seed and versions; raises UserError."""
    write_json(path, {"suite": suite, "seed": seed, "versions": _versions(), "rows": rows})


def _versions() -> dict[str, str]:
    names = ("edge-cloud-spec", "torch", "transformers", "grpcio", "mujoco")
    found = {name: installed_version(name) or "missing" for name in names}
    return {"python": platform.python_version(), **found}
