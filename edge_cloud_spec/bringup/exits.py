"""What follows when a process of the graph ends by itself: it is respawned, or all ends."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..errors import CANNOT_START

DELAY_S = 2.0  # before a process is started again
MAX_RESPAWNS = 5  # of one process, until it has run for SETTLED_S
SETTLED_S = 60.0


class Role(Enum):
    """What the end of a process means for the launch.

    The navigator is NEEDED: it alone knows that an e_stop or ``stop`` holds the robot, and a new
    one could have missed it. So its end is the end of all, and a person starts again. RESPAWNED
    ones keep nothing that would matter for safety. A window that its user closes is OPTIONAL.
    """

    NEEDED = "needed"
    RESPAWNED = "respawned"
    OPTIONAL = "optional"


@dataclass(frozen=True)
class Respawn:
    """Start it again after so many seconds, and say why."""

    delay_s: float
    why: str


@dataclass(frozen=True)
class EndAll:
    """End all processes, with a status that is not 0 and this sentence last."""

    why: str


class ExitRules:
    """Decides what follows each exit; counts the respawns of each process."""

    def __init__(self) -> None:
        self._respawns: Counter[str] = Counter()

    def on_exit(
        self, name: str, role: Role, status: int, lived_s: float, said: Iterable[str]
    ) -> Respawn | EndAll | None:
        """``status``: negative for a signal; ``said``: the lines of its output, newest last.

        A status of 2 says that the process cannot start with what it was given, so that another
        start would not help. A process that is wanted and ends with 0 was ended by somebody.
        """
        text = f"{name} ended ({exit_text(status)})"
        if status >= 0:
            text += f": {last_words(said).removeprefix('error: ')}"
        if role is Role.OPTIONAL:
            return None
        if role is Role.NEEDED or status in (0, CANNOT_START):
            return EndAll(text)
        if lived_s >= SETTLED_S:
            self._respawns[name] = 0
        if self._respawns[name] >= MAX_RESPAWNS:
            return EndAll(f"{text}; it was started again {MAX_RESPAWNS} times")
        self._respawns[name] += 1
        count = f"{self._respawns[name]} of {MAX_RESPAWNS}"
        return Respawn(DELAY_S, f"{text}; it is started again in {DELAY_S:g} s ({count})")


def exit_text(status: int) -> str:
    """``exit status 2`` or ``killed by SIGTERM``.

    After a signal the process's last words are not taken for the cause.
    """
    if status >= 0:
        return f"exit status {status}"
    number = signal.Signals(-status)
    return f"killed by {number.name}" + ", perhaps out of memory" * (number is signal.SIGKILL)


def last_words(lines: Iterable[str]) -> str:
    """The last line that names an error, else the last one."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if "error" in line.lower()]
    return (errors or said or ["no output"])[-1]
