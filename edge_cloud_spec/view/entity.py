"""One thing to show at one time."""

from __future__ import annotations

from typing import Any, NamedTuple


class Entity(NamedTuple):
    """A Rerun archetype at a path. ``at``: seconds since the run began; None: at all times."""

    path: str
    shown: Any
    at: float | None
