"""Faults of camera, odometry and their clocks: what the relays make of the messages."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random
from typing import Any

from ....nav.motion import PERIOD
from .fault import InjectedFault
from .relay import Frozen, gone, shifted
from .rig import Rig

Change = Callable[[Any], Any]
SIDE = 128  # pixels of the black picture
SKEW = 30.0  # s
JUMP = 5.0  # m


def _camera(change: Callable[[], Change | None]) -> Callable[[Rig], None]:
    def inject(rig: Rig) -> None:
        rig.watch.camera.change = change()

    return inject


def _odometry(change: Callable[[], Change | None]) -> Callable[[Rig], None]:
    def inject(rig: Rig) -> None:
        rig.watch.odometry.change = change()

    return inject


def _both(change: Callable[[], Change | None]) -> Callable[[Rig], None]:
    def inject(rig: Rig) -> None:
        rig.watch.camera.change = rig.watch.odometry.change = change()

    return inject


def _nothing() -> None:
    return None


def _black() -> Change:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE)).save(file, "JPEG")

    def change(message: Any) -> Any:
        message.data = file.getvalue()
        return message

    return change


def _no_picture() -> Change:
    def change(message: Any) -> Any:
        message.data = message.data[: len(message.data) // 3]
        return message

    return change


def _jumping() -> Change:
    random = Random(1)

    def change(message: Any) -> Any:
        if random.random() < PERIOD:
            message.pose.pose.position.x += JUMP
        return message

    return change


def _not_numbers() -> Change:
    def change(message: Any) -> Any:
        message.pose.pose.position.x = float("nan")
        return message

    return change


SOUND_CAMERA, SOUND_ODOMETRY = _camera(_nothing), _odometry(_nothing)
SOUND = _both(_nothing)

FAULTS = (
    InjectedFault(
        "camera_gone",
        "no picture comes",
        "ends its step, and one decision on the last frame; then stands",
        _camera(lambda: gone),
        SOUND_CAMERA,
        lasts=4.5,
        quick=True,
        reads="no picture",
    ),
    InjectedFault(
        "camera_frozen",
        "the same message comes again and again, with its stamp",
        "ends its step and stands once the frame is too old or the robot has left its place",
        _camera(lambda: Frozen(stamps=False)),
        SOUND_CAMERA,
        lasts=4.5,
        reads="frozen",
    ),
    InjectedFault(
        "camera_repeats",
        "the same picture comes again and again, under stamps that go on",
        "goes on: verified by the target on the pictures that it gets",
        _camera(lambda: Frozen(stamps=True)),
        SOUND_CAMERA,
        lasts=10.0,
        stops=False,
        reads="frozen",
    ),
    InjectedFault(
        "camera_black",
        "every picture is black",
        "goes on as the target decides, which sees no object and searches",
        _camera(_black),
        SOUND_CAMERA,
        lasts=5.0,
        stops=False,
        reads="black",
    ),
    InjectedFault(
        "picture_damaged",
        "every JPEG ends after a third, on which the drafter raises an error",
        "ends its step and stands",
        _camera(_no_picture),
        SOUND_CAMERA,
        lasts=3.0,
        reads="cannot be read|damaged",
    ),
    InjectedFault(
        "odometry_gone",
        "no odometry comes",
        "waits after 80 ms, gives the step up after 0.5 s and stands",
        _odometry(lambda: gone),
        SOUND_ODOMETRY,
        reads="odometry is missing",
    ),
    InjectedFault(
        "odometry_frozen",
        "the same odometry comes again and again, with its stamp",
        "gives the step up after 0.5 s and stands",
        _odometry(lambda: Frozen(stamps=False)),
        SOUND_ODOMETRY,
        reads="odometry is missing",
        quick=True,
    ),
    InjectedFault(
        "odometry_jumps",
        "one message in twenty says 5 m further ahead",
        "gives up each step under which it comes",
        _odometry(_jumping),
        SOUND_ODOMETRY,
        lasts=5.0,
        stops=False,
    ),
    InjectedFault(
        "odometry_not_numbers",
        "the position is not a number",
        "drops it; as if none came",
        _odometry(_not_numbers),
        SOUND_ODOMETRY,
        reads="odometry",
    ),
    InjectedFault(
        "clock_ahead",
        "the stamps of camera and odometry jump 30 s ahead",
        "ends its step and stands: no clock that is so far off is allowed for",
        _both(lambda: shifted(SKEW)),
        SOUND,
        lasts=4.0,
        reads="clock",
    ),
    InjectedFault(
        "clock_behind",
        "the stamps of camera and odometry jump 30 s back",
        "ends its step and stands: no clock that is so far off is allowed for",
        _both(lambda: shifted(-SKEW)),
        SOUND,
        lasts=4.0,
        reads="clock|stamps",
    ),
    InjectedFault(
        "clock_skew",
        "the stamps of camera and odometry are 2 s ahead",
        "goes on: the offset is measured, said and allowed for",
        _both(lambda: shifted(2.0)),
        SOUND,
        lasts=6.0,
        stops=False,
    ),
    InjectedFault(
        "camera_clock",
        "the camera's stamps are 0.3 s ahead of odometry's",
        "goes on: within what is tolerated",
        _camera(lambda: shifted(0.3)),
        SOUND_CAMERA,
        lasts=4.0,
        stops=False,
    ),
)
