"""One fault: how it is put into the running system and taken out, and what is promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .rig import Rig


@dataclass(frozen=True)
class InjectedFault:
    """``inject`` and ``clear`` change the rig, and return at once or when that is done.

    ``injected``, ``robot`` and ``reads`` are the row of ``docs/faults.md``: what is put in, what
    the robot does, and a pattern of the sentence that the owner reads (on ``/diagnostics``,
    ``link_state``, ``instruction_status`` or ``nav_status``), which must be published while the
    fault lasts. ``stops``: the robot stands until it is cleared, so it must come to stand and stay
    so for ``lasts`` seconds; otherwise the fault is cleared after that time, whatever the robot
    does. ``reported_s``: the promise is a report within so many seconds, not that nothing moves.
    ``instructed_again``: the operator's next instruction ends it. ``soak``: of those that the soak
    draws from. ``quick``: of those that ``make test`` runs.
    """

    name: str
    injected: str
    robot: str
    inject: Callable[[Rig], None]
    clear: Callable[[Rig], None]
    lasts: float = 2.0
    stops: bool = True
    reads: str = ""
    reported_s: float | None = None
    instructed_again: bool = False
    soak: bool = True
    quick: bool = False
