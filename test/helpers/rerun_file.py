"""What is in a file of Rerun's, read with its own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
from rerun.blueprint.components import PlayState
from rerun.chunk import RrdReader


class Row(NamedTuple):
    at: float | None  # seconds of the run; None: static
    values: dict[str, Any]  # by component; those of one entry are not in a list


def read_rows(path: Path) -> dict[str, list[Row]]:
    """The rows of each entity, in the order of their times."""
    found: dict[str, list[Row]] = {}
    for chunk in RrdReader(str(path)).stream().to_chunks():
        batch = chunk.to_record_batch()
        times: list[float | None] = [None] * batch.num_rows
        if "run" in batch.schema.names:
            times = [ns / 1e9 for ns in batch.column("run").cast(pyarrow.int64()).to_pylist()]
        columns = {n.partition(":")[2]: batch.column(n) for n in batch.schema.names if ":" in n}
        for index, at in enumerate(times):
            values = {name: _only(column[index].as_py()) for name, column in columns.items()}
            known = {name: value for name, value in values.items() if value is not None}
            found.setdefault(str(chunk.entity_path), []).append(Row(at, known))
    for rows in found.values():
        rows.sort(key=lambda row: -1.0 if row.at is None else row.at)
    return found


def play_state(path: Path) -> PlayState:
    """What a viewer that opens the file does with the time, by its blueprint."""
    reader = RrdReader(str(path))
    [blueprint] = reader.blueprints()
    column = "TimePanelBlueprint:play_state"
    batches = [c.to_record_batch() for c in reader.stream(store=blueprint).to_chunks()]
    [said] = [batch.column(column)[0] for batch in batches if column in batch.schema.names]
    return PlayState(_only(said.as_py()))


def lines(rows: list[Row]) -> list[tuple[str, str]]:
    """(level, text) of a log."""
    return [(row.values["level"], row.values["text"]) for row in rows if "text" in row.values]


def states(rows: list[Row]) -> list[tuple[float, str]]:
    """(time, text) of a lane's changes; an empty text is a gap."""
    return [
        (row.at, row.values["state"])
        for row in rows
        if row.at is not None and "state" in row.values
    ]


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value
