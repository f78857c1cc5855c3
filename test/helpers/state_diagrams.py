"""The state diagrams of docs/architecture.md, from the tables in the code (``make diagrams``)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from edge_cloud_spec.cloud.session import session
from edge_cloud_spec.decoding.transitions import Transitions
from edge_cloud_spec.edge import rounds

TABLES: dict[str, Transitions[Any, Any]] = {
    "edge/rounds.py": rounds.TRANSITIONS,
    "cloud/session/session.py": session.TRANSITIONS,
}


def diagram(table: Transitions[Any, Any]) -> str:
    """A table as mermaid draws it; it begins in the first state."""
    first = next(iter(table)).name
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    for state, row in table.items():
        for then in dict.fromkeys(row.values()):
            triggers = [each.name for each, leads_to in row.items() if leads_to is then]
            words = ", ".join(triggers).lower().replace("_", " ")
            lines.append(f"    {state.name} --> {then.name}: {words}")
    return "\n".join(lines)


def with_diagrams(page: str) -> str:
    """The page with each diagram as its table is now; ValueError: it has no place for one."""
    for path, table in TABLES.items():
        place = rf"(<!-- from {re.escape(path)} -->\n```mermaid\n).*?(\n```)"
        page, found = re.subn(place, rf"\g<1>{diagram(table)}\g<2>", page, flags=re.DOTALL)
        if found != 1:
            raise ValueError(f"{found} diagrams of {path}")
    return page


if __name__ == "__main__":
    there = Path(sys.argv[1])
    there.write_text(with_diagrams(there.read_text("utf-8")), "utf-8")
