"""What is so, how bad it is, and what to do about it; and what of that a console tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

WARNING_S = 4.0  # a warning that is over sooner is not told: something may still start
ERROR_S = 0.5  # two looks: a publisher may not be discovered yet
WELL_S = 3.0  # what comes and goes faster is one trouble


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


class RecentProblem:
    """The last problem that was reported, until it is ``lifetime`` seconds old or cleared."""

    def __init__(self, lifetime: float) -> None:
        self._lifetime = lifetime
        self._last: tuple[str, float] | None = None  # replaced as one: threads share it

    def report(self, text: str, now: float) -> None:
        """Something failed at ``now`` (steady seconds)."""
        self._last = (text, now)

    def clear(self) -> None:
        """It works again."""
        self._last = None

    def text(self, now: float) -> str:
        """The problem; empty where there is none any more."""
        last = self._last
        return last[0] if last is not None and now - last[1] < self._lifetime else ""


@dataclass
class _Trouble:
    since: float
    last: float  # when it was seen last
    severity: int = 0  # of what was told
    told: set[str] = field(default_factory=set)  # advice


@dataclass
class HealthConsole:
    """What a node's console tells of its health: each trouble once, and when it is over.

    Turns the healths of each second into lines; those without a ``check`` are not told."""

    _troubles: dict[str, _Trouble] = field(default_factory=dict)

    def look(self, healths: Iterable[Health], now: float) -> Iterator[tuple[Level, str]]:
        """The lines of this look, with their levels; ``now`` in steady seconds.

        While a trouble lasts, it is told again where something else is to be done about it, unless
        it is less bad than what was told.
        """
        for health in healths:
            if not (health.check and health.severity):
                continue
            trouble = self._troubles.setdefault(health.check, _Trouble(now, now))
            trouble.last = now
            settles = WARNING_S if health.level == Level.WARN else ERROR_S
            known = health.advice in trouble.told or health.severity < trouble.severity
            if not known and now - trouble.since >= settles:
                trouble.told |= {health.advice, ""}
                trouble.severity = health.severity
                yield health.level, f"{health.check}: {health}"
        for check, trouble in list(self._troubles.items()):
            if now - trouble.last >= WELL_S:
                del self._troubles[check]
                if trouble.told:
                    yield Level.OK, f"{check}: well again"
