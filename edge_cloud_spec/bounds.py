"""Configuration fields with their range and their purpose.

Each is declared once: the ROS nodes make parameters of them (``nodes/runtime/parameters.py``), the
commands options (``options.py``), the launch file arguments, docs/parameters.md a row. A field
without is for programs alone. A frozen dataclass that is ``Bounded`` checks itself.
"""

from __future__ import annotations

import re
from dataclasses import field, fields
from math import inf
from typing import Any

from .errors import UserError


def bounded(
    default: float, low: float, high: float, about: str, fixed: bool = False, flag: str = ""
) -> Any:
    """A number from ``low`` to ``high``; an int default makes it a whole number.

    ``fixed``, here and below: read when a program starts, not changed while it runs. ``flag``: a
    command's option, where it is not named as the field.
    """
    metadata = {"range": (low, high), "about": about, "fixed": fixed, "flag": flag}
    return field(default=default, metadata=metadata)


def chosen(default: str, choices: tuple[str, ...], about: str, fixed: bool = False) -> Any:
    """One of ``choices``."""
    return field(default=default, metadata={"choices": choices, "about": about, "fixed": fixed})


def described(default: bool | str, about: str, fixed: bool = False, flag: str = "") -> Any:
    """A switch or a free text."""
    return field(default=default, metadata={"about": about, "fixed": fixed, "flag": flag})


class Bounded:
    """A dataclass that raises ValueError naming its first field that is out of its range."""

    def __post_init__(self) -> None:
        bounded_fields = [item for item in fields(self) if item.metadata]  # type: ignore[arg-type]
        for item in bounded_fields:
            value = getattr(self, item.name)
            error = field_error(item.name, item.default, value, item.metadata)
            if error:
                raise ValueError(error)


def field_error(name: str, default: Any, value: Any, metadata: Any) -> str:
    """What is wrong with ``value`` for the field ``name``, in one sentence; empty if nothing is."""
    kinds = (int, float) if type(default) is float else type(default)
    fits = isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool)
    low, high = metadata.get("range", (value, value))
    fits = fits and low <= value <= high and value in metadata.get("choices", (value,))
    return "" if fits else f"{name} must be {wanted(default, metadata)}, not {value!r}"


def wanted(default: Any, metadata: Any) -> str:
    """The values that a field takes, as a phrase."""
    if "choices" in metadata:
        return f"one of {', '.join(metadata['choices'])}"
    kinds = {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}
    return kinds[type(default)] + (f" from {span(metadata)}" if "range" in metadata else "")


def span(metadata: Any) -> str:
    """The range of a field, as a phrase."""
    low, high = metadata["range"]
    return f"{low:.12g} up" if high == inf else f"{low:.12g} to {high:.12g}"


def check_namespace(namespace: str) -> None:
    """Raise UserError where ROS would take no node into this namespace."""
    if not re.fullmatch(r"/?([A-Za-z_]\w*(/[A-Za-z_]\w*)*)?/?", namespace, re.ASCII):
        raise UserError(
            f"namespace must be letters, digits and _ (robot1, fleet/robot1), not {namespace!r}"
        )
