"""Faults of the robot's own programs: killed, hung, or failing inside."""

from __future__ import annotations

from collections.abc import Callable

from .fault import Fault
from .rig import Rig


def _kill(name: str) -> Callable[[Rig], None]:
    return lambda rig: rig.kill(name)


def _start(name: str) -> Callable[[Rig], None]:
    return lambda rig: rig.restart(name)


def _hang(name: str) -> Callable[[Rig], None]:
    return lambda rig: rig.hang(name)


def _unhang(name: str) -> Callable[[Rig], None]:
    return lambda rig: rig.unhang(name)


def _fail(rig: Rig) -> None:
    rig.switch("drafter").write_text("error")


def _sound(rig: Rig) -> None:
    rig.switch("drafter").write_text("")


KILLED = {
    "drafter": "ends its step and stands; a new drafter waits for an instruction",
    "cloud_bridge": "ends its step and stands",
    "navigator": "stands by the base's own timeout",
    "simulator": "is gone; the navigator gives its step up, since odometry is missing",
}
HUNG = {
    "drafter": "ends its step and stands",
    "cloud_bridge": "ends its step and stands; the decision is given up after `patience`",
    "navigator": "stands by the base's own timeout, and does not take its step up again",
    "simulator": "stands still itself; the navigator gives its step up",
}

FAULTS = (
    Fault(
        "drafter_exception",
        "every pass of the draft model raises an error",
        "ends its step and stands",
        _fail,
        _sound,
    ),
    *(
        Fault(
            f"{name}_killed",
            f"the {name} gets SIGKILL, and is started again",
            robot,
            _kill(name),
            _start(name),
            instructed_again=name == "drafter",
            soak=False,
        )
        for name, robot in KILLED.items()
    ),
    *(
        Fault(
            f"{name}_hung",
            f"the {name} gets SIGSTOP, and goes on at the end",
            robot,
            _hang(name),
            _unhang(name),
        )
        for name, robot in HUNG.items()
    ),
)
