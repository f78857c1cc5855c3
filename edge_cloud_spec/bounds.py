"""Configuration fields with their range and their purpose.

A frozen dataclass of these that is ``Bounded`` checks itself; the ROS nodes declare the same fields
as parameters with the same ranges
(``nodes/runtime/parameters.py``).
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any


def bounded(default: float, low: float, high: float, about: str, fixed: bool = False) -> Any:
    """A number from ``low`` to ``high``; an int default makes it a whole number.

    ``fixed``, here and below: read when a program starts, not changed while it runs.
    """
    metadata = {"range": (low, high), "about": about, "fixed": fixed}
    return field(default=default, metadata=metadata)


def chosen(default: str, choices: tuple[str, ...], about: str, fixed: bool = False) -> Any:
    """One of ``choices``."""
    return field(default=default, metadata={"choices": choices, "about": about, "fixed": fixed})


def described(default: bool | str, about: str, fixed: bool = False) -> Any:
    """A switch or a free text."""
    return field(default=default, metadata={"about": about, "fixed": fixed})


class Bounded:
    """A dataclass that raises ValueError naming its first field that is out of its range."""

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            error = field_error(item.name, getattr(self, item.name), item.metadata)
            if error:
                raise ValueError(error)


def field_error(name: str, value: Any, metadata: Any) -> str:
    """What is wrong with ``value`` for the field ``name``, in one sentence; empty if nothing is."""
    if "range" in metadata:
        low, high = metadata["range"]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and low <= value <= high):
            return f"{name} must be a number from {low:g} to {high:g}, not {value!r}"
    if "choices" in metadata and value not in metadata["choices"]:
        return f"{name} must be one of {', '.join(metadata['choices'])}, not {value!r}"
    return ""
