"""What was looked at, what is so, and what to do: one record for all that says it.

Of the nodes' ``/diagnostics``, the monitor, a probe of the verifier and ``doctor``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum


class Level(IntEnum):
    """The levels of diagnostic_msgs/DiagnosticStatus, with their numbers."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


SEVERITY = (Level.OK, Level.WARN, Level.STALE, Level.ERROR)  # the worst last


@dataclass(frozen=True)
class Health:
    """One thing that was looked at: ``message`` says what is so, ``advice`` what to do about it.

    ``advice`` is empty where nothing needs doing. ``values`` are for machines and plots. ``check``
    is what was looked at (camera, cloud), where the console tells it. ``parts``: of ``worst_of``.
    """

    level: Level
    message: str
    advice: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    check: str = ""
    parts: tuple[Health, ...] = ()

    def __str__(self) -> str:
        return f"{self.message}: {self.advice}" if self.advice else self.message

    @property
    def severity(self) -> int:
        """0 for OK; more is worse."""
        return SEVERITY.index(self.level)


def worst_of(healths: Iterable[Health]) -> Health:
    """All of these as one: the worst level, what is wrong (the worst first), every value.

    Where nothing is wrong, the first one's message; of nothing at all, OK without a message.
    """
    found = list(healths)
    if not found:
        return Health(Level.OK, "")
    values = {name: value for health in found for name, value in health.values.items()}
    wrong = sorted((h for h in found if h.severity), key=lambda h: -h.severity)
    if not wrong:
        return replace(found[0], values=values, parts=tuple(found))
    message = " | ".join(map(str, wrong))
    return Health(wrong[0].level, message, values=values, parts=tuple(found))
