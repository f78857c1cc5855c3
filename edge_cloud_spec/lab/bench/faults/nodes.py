"""Faults of the robot's own programs: killed, hung, or failing inside."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from .events import Reported
from .fault import InjectedFault
from .rig import Rig

BLOCKS = 200  # of 512 bytes: as large as the recorder's file may become
RECORDER_TIMEOUT = 60.0  # s


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


def _disk_full(rig: Rig) -> None:
    """Record all topics where a file may have 100 kB, and note what the recorder says at its end.

    (A limit of the process, not a full disk: the same errors without a file system of its own.)
    """
    bag = rig.folder / f"bag{next(rig.numbers)}"
    record = [sys.executable, "-m", "edge_cloud_spec.cli", "record", "--out", str(bag)]
    limited = ["sh", "-c", f'ulimit -f {BLOCKS}; exec "$@"', "sh", *record]
    rig.start_other("recorder", limited, bag.exists)
    end = time.monotonic() + RECORDER_TIMEOUT
    while not (said := rig.ros.ended("recorder")) and time.monotonic() < end:
        rig.ros.spin(0.1)
    rig.watch.note(Reported(time.time(), "record", said))


def _nothing(rig: Rig) -> None:
    """The recorder has ended; nothing else was changed."""


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
    InjectedFault(
        "drafter_exception",
        "every pass of the draft model raises an error",
        "ends its step and stands",
        _fail,
        _sound,
        reads="a decision failed",
    ),
    InjectedFault(
        "disk_full",
        "a recorder's file may not grow beyond 100 kB",
        "goes on; the recorder ends its bag so that it can be read, and says so",
        _disk_full,
        _nothing,
        lasts=0.5,
        stops=False,
        reads="can be read",
        soak=False,
    ),
    *(
        InjectedFault(
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
        InjectedFault(
            f"{name}_hung",
            f"the {name} gets SIGSTOP, and goes on at the end",
            robot,
            _hang(name),
            _unhang(name),
            lasts=4.5,
            reads="" if name == "simulator" else f"/{name} has said nothing",
        )
        for name, robot in HUNG.items()
    ),
)
