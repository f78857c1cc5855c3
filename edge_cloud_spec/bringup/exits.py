"""Decides what follows when a process of the graph ends by itself: a respawn, or the end of all."""

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

    The navigator is NEEDED: it alone knows that an e_stop or ``stop`` holds the robot, and a
    restarted one could have missed it. So its end ends all, and a person starts again. RESPAWNED
    processes keep no safety-relevant state. A window that its user closes is OPTIONAL.
    """

    NEEDED = "needed"
    RESPAWNED = "respawned"
    OPTIONAL = "optional"


@dataclass(frozen=True)
class Respawn:
    """Start the process again after ``DELAY_S``, and log why."""

    why: str


@dataclass(frozen=True)
class EndAll:
    """End all processes with a non-zero status, and log this sentence last."""

    why: str


class ExitRules:
    """Decides what follows each exit; counts the respawns of each process."""

    def __init__(self) -> None:
        self._respawns: Counter[str] = Counter()

    def on_exit(
        self, name: str, role: Role, status: int, lived_s: float, output: Iterable[str]
    ) -> Respawn | EndAll | None:
        """What follows an exit; None: nothing. ``output``: the process's output, newest line last.

        ``status``: negative for a signal; 2 means that the process cannot start with its settings,
        so it is not restarted. A status of 0 means that somebody ended the process.
        """
        text = f"{name} ended ({exit_text(status)})"
        if status >= 0:
            text += f": {last_words(output).removeprefix('error: ')}"
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
        return Respawn(f"{text}; it is started again in {DELAY_S:g} s ({count})")


def exit_text(status: int) -> str:
    """``exit status 2`` or ``killed by SIGTERM``."""
    if status >= 0:
        return f"exit status {status}"
    number = signal.Signals(-status)
    return f"killed by {number.name}" + ", perhaps out of memory" * (number is signal.SIGKILL)


def last_words(lines: Iterable[str]) -> str:
    """The last line that mentions an error, else the last line."""
    output = [line.strip() for line in lines if line.strip()]
    errors = [line for line in output if "error" in line.lower()]
    return (errors or output or ["no output"])[-1]
