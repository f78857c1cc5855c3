"""What a node's console tells of its health: each trouble once, and when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .health import Health, Level

WARNING_S = 4.0  # a warning that is over sooner is not told: something may still start
ERROR_S = 0.5  # two looks: a publisher may not be discovered yet
WELL_S = 3.0  # what comes and goes faster is one trouble


@dataclass
class _Trouble:
    since: float
    last: float  # when it was seen last
    severity: int = 0  # of what was told
    told: set[str] = field(default_factory=set)  # advice


@dataclass
class HealthConsole:
    """Turns the healths of each second into lines; those without a ``check`` are not told."""

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
