"""A finding: what was checked, its state, and what to do.

Used by the nodes' ``/diagnostics``, the monitor, the probe of the verifier and ``doctor``.
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
    """One finding: ``message`` says what is the case, ``advice`` what to do about it.

    ``advice`` is empty if nothing needs doing. ``values`` are for machines and plots. ``check``
    names what was checked (camera, cloud); consoles print only findings with one. ``parts``: the
    findings combined by ``worst_of``.
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
    """Combine findings: the worst level, the problems (worst first), all values.

    Without problems, the first finding's message; of no findings, OK without a message.
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
