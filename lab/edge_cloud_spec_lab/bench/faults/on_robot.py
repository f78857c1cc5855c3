"""Faults on the robot: of its sensors and clocks, its programs, and other ROS nodes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
from geometry_msgs.msg import Twist
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.time import Time
from std_msgs.msg import Bool

from edge_cloud_spec.msg import Verdict as VerdictMessage
from edge_cloud_spec.msg import VerifiedTokens
from edge_cloud_spec.nav.budget import COMMAND_PERIOD_S
from edge_cloud_spec.nav.status import NavCode
from edge_cloud_spec.nodes.runtime.qos import DECODE, RELIABLE
from edge_cloud_spec.wire.codec import encode_server
from edge_cloud_spec.wire.messages import Opened, Verdict

from ...sim.camera import encode_jpeg
from ..judge import Instructed, OnWire, Reported
from ..live import FOREIGN, stamp_of
from .rig import Change, InjectedFault, Rig, gone

BLOCKS = 200  # of 512 bytes: as large as the recorder's file may become
RECORDER_TIMEOUT = 60.0  # s


def _disk_full(rig: Rig) -> None:
    """Record all topics into a file of at most 100 kB, and note what the recorder reports at its
    end.

    (A process limit instead of a full disk: it gives the same errors without a separate file
    system.)
    """
    bag = rig.folder / f"bag{next(rig.numbers)}"
    record = [sys.executable, "-m", "edge_cloud_spec.cli", "record", "--out", str(bag)]
    limited = ["sh", "-c", f'ulimit -f {BLOCKS}; exec "$@"', "sh", *record]
    rig.start_other("recorder", limited, bag.exists)
    end = time.monotonic() + RECORDER_TIMEOUT
    while not (report := rig.ended("recorder")) and time.monotonic() < end:
        time.sleep(0.1)
    rig.watch.note(Reported(time.time(), "record", report))


WHEN_KILLED = {
    "drafter": "stops; a new drafter waits for an instruction",
    "cloud_bridge": "stops",
    "navigator": "is stopped by the guard",
    "simulator": "is gone; the navigator gives its step up: odometry is missing",
}
WHEN_HUNG = {
    "drafter": "stops",
    "cloud_bridge": "stops; gives the decision up after `reply_timeout`",
    "navigator": "is stopped by the guard, and does not take its step up again",
    "simulator": "stands still itself; the navigator gives its step up",
}

NODE_FAULTS: tuple[InjectedFault, ...] = (
    InjectedFault(
        "drafter_exception",
        "every pass of the draft model raises an error",
        "stops",
        lambda rig: rig.poison("drafter", "error"),
        lambda rig: rig.poison("drafter", ""),
        reads="a decision failed",
    ),
    InjectedFault(
        "disk_full",
        "a recorder's file may not grow beyond 100 kB",
        "goes on; the recorder ends with a readable bag",
        _disk_full,
        lasts=0.5,
        stops=False,
        reads="can be read",
    ),
    *(
        InjectedFault(
            f"{name}_killed",
            f"the {name} gets SIGKILL, and is started again",
            robot,
            partial(Rig.kill, name=name),
            partial(Rig.restart, name=name),
            instructed_again=name == "drafter",
        )
        for name, robot in WHEN_KILLED.items()
    ),
    *(
        InjectedFault(
            f"{name}_hung",
            f"the {name} gets SIGSTOP, and goes on at the end",
            robot,
            partial(Rig.hang, name=name),
            partial(Rig.unhang, name=name),
            lasts=4.5,
            reads="" if name == "simulator" else f"/{name} has said nothing",
        )
        for name, robot in WHEN_HUNG.items()
    ),
)


REPORT = 1.0  # s
REPEATED_WORDS_S = 8.0  # s in which words come again


def _intruder(rig: Rig, kind: type[Any], topic: str, qos: QoSProfile) -> Publisher:
    """A second publisher on one of our topics, until the fault's end."""
    publisher = rig.node.create_publisher(kind, topic, qos)
    rig.endings.callback(rig.node.destroy_publisher, publisher)
    rig.forged_at = time.time()
    return publisher


def _twists(rig: Rig) -> None:
    """A second publisher of cmd_vel with slow turns, which the judge knows as the bench's."""
    publisher = _intruder(rig, Twist, "cmd_vel", RELIABLE)
    twist = Twist()
    twist.angular.z, twist.linear.z = 0.1, FOREIGN
    for _ in range(20):
        publisher.publish(twist)
        time.sleep(0.05)


def _forged_verdict(rig: Rig) -> None:
    """Publish verdicts for the current decode that accept nothing and give another token."""
    publisher = _intruder(rig, VerdictMessage, "verdict", DECODE)
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        opened = [
            (event.request, event.message.base)
            for event in rig.watch.events
            if isinstance(event, OnWire) and isinstance(event.message, Opened)
        ]
        if opened:
            request, base = opened[-1]
            verdict = Verdict(base, (), 5, leads_to=base.extend((5,)).short)
            rig.forged.append(verdict)
            message = VerdictMessage(
                request_id=request,
                base_length=base.length,
                base_hash=base.hash,
                payload=encode_server(verdict).data,
            )
            publisher.publish(message)
        time.sleep(0.1)


def _forged_words(rig: Rig) -> None:
    """Publish unverified words, marked as verified."""
    publisher = _intruder(rig, VerifiedTokens, "verified_tokens", DECODE)
    time.sleep(0.5)
    publisher.publish(rig.watch.answer("forged", "action: turn left small;"))
    time.sleep(0.5)


def _words_again(rig: Rig) -> None:
    """Publish all verified words again, up to a second late, in random order."""
    random, published = Random(rig.seed), set[tuple[str, int]]()
    waiting: list[tuple[float, VerifiedTokens]] = []

    def on_words(message: VerifiedTokens) -> None:
        place = (message.request_id, message.position)
        if place not in published:  # else it is our own
            published.add(place)
            waiting.append((time.monotonic() + random.random(), message))

    rig.endings.callback(
        rig.node.destroy_subscription,
        rig.node.create_subscription(VerifiedTokens, "verified_tokens", on_words, DECODE),
    )
    publisher = _intruder(rig, VerifiedTokens, "verified_tokens", DECODE)
    end = time.monotonic() + REPEATED_WORDS_S
    while time.monotonic() < end:
        for due in [each for each in waiting if each[0] <= time.monotonic()]:
            waiting.remove(due)
            publisher.publish(due[1])
        time.sleep(0.02)


def _press(rig: Rig) -> None:
    rig.watch.note(Instructed(time.time(), "stop"))  # nothing of before may move it again
    rig.e_stop.publish(Bool(data=True))


def _release(rig: Rig) -> None:
    rig.e_stop.publish(Bool(data=False))
    rig.wait_for(lambda: not rig.watch.nav_status.e_stopped, "e_stop is released")


def _leave(rig: Rig) -> None:
    """An instruction from before the navigator sees that the other has left counts for nothing."""
    rig.endings.close()
    left = NavCode.OTHER_PUBLISHER
    rig.wait_for(lambda: rig.watch.nav_status.code is not left, "the other publisher has left")


NEIGHBOUR_FAULTS: tuple[InjectedFault, ...] = (
    InjectedFault(
        "second_cmd_vel",
        "another node publishes on `cmd_vel`",
        "its navigator holds, and waits for a newer instruction; the base obeys the other",
        _twists,
        _leave,
        lasts=1.5,
        reads="bystander publishes on .*cmd_vel",
        instructed_again=True,
    ),
    InjectedFault(
        "forged_verdict",
        "another node publishes verdicts for the decode under way",
        "believes the first verdict on its prefix; reported",
        _forged_verdict,
        lambda rig: rig.endings.close(),
        lasts=1.0,
        stops=False,
        reads="bystander publishes on .*verdict",
        reported_s=REPORT,
    ),
    InjectedFault(
        "forged_words",
        "another node publishes `verified_tokens` with an action",
        "moves by it; reported",
        _forged_words,
        lambda rig: rig.endings.close(),
        lasts=1.0,
        stops=False,
        reads="bystander publishes on .*verified_tokens",
        reported_s=REPORT,
    ),
    InjectedFault(
        "words_again",
        "another node publishes all verified words again, up to 1 s late and in any order",
        "goes on: no word counts twice; reported",
        _words_again,
        lambda rig: rig.endings.close(),
        lasts=1.0,
        stops=False,
        reads="bystander publishes on .*verified_tokens",
    ),
    InjectedFault(
        "e_stop",
        "`e_stop` is pressed, and released when the robot has stood for 2 s",
        "stops at once; waits for an instruction from after the release",
        _press,
        _release,
        reads="e_stop is on",
        instructed_again=True,
    ),
)


BLACK_PICTURE_PX = 128
SKEW = 30.0  # s
ODOMETRY_JUMP_M = 5.0


def _on(
    sensors: tuple[str, ...], change: Callable[[], Change | None] = lambda: None
) -> Callable[[Rig], None]:
    """Apply ``change`` to these sensors' messages; None: publish them unchanged."""

    def inject(rig: Rig) -> None:
        changed = change()
        for sensor in sensors:
            getattr(rig, sensor).change = changed

    return inject


_camera, _odometry = partial(_on, ("camera",)), partial(_on, ("odometry",))
_both = partial(_on, ("camera", "odometry"))
SOUND_CAMERA, SOUND_ODOMETRY, SOUND = _camera(), _odometry(), _both()


def _shifted(seconds: float, message: Any) -> Any:
    """Shift a clock by so many seconds (negative: back)."""
    stamp = Time(nanoseconds=stamp_of(message) + round(seconds * 1e9))
    message.header.stamp = stamp.to_msg()
    return message


def _frozen(first: list[Any], stamps: bool, message: Any) -> Any:
    """Repeat the first message; ``stamps``: with stamps that advance."""
    if not first:
        first.append(message)
    if stamps:
        first[0].header.stamp = message.header.stamp
    return first[0]


def _black(message: Any) -> Any:
    message.data = encode_jpeg(np.zeros((BLACK_PICTURE_PX, BLACK_PICTURE_PX, 3), np.uint8))
    return message


def _damaged(message: Any) -> Any:
    message.data = message.data[: len(message.data) // 3]
    return message


def _jumping(random: Random, message: Any) -> Any:
    if random.random() < COMMAND_PERIOD_S:
        message.pose.pose.position.x += ODOMETRY_JUMP_M
    return message


def _not_numbers(message: Any) -> Any:
    message.pose.pose.position.x = float("nan")
    return message


SENSOR_FAULTS: tuple[InjectedFault, ...] = (
    InjectedFault(
        "camera_gone",
        "no picture comes",
        "stops after one more decision on the last frame",
        _camera(lambda: gone),
        SOUND_CAMERA,
        lasts=4.5,
        reads="no picture",
    ),
    InjectedFault(
        "camera_frozen",
        "the same message comes again and again",
        "stops once the frame is too old or the robot has left its place",
        _camera(lambda: partial(_frozen, [], False)),
        SOUND_CAMERA,
        lasts=4.5,
        reads="frozen",
    ),
    InjectedFault(
        "camera_repeats",
        "the same picture comes again and again, with new stamps",
        "stops after 2 s of motion without a new picture",
        _camera(lambda: partial(_frozen, [], True)),
        SOUND_CAMERA,
        lasts=10.0,
        reads="stay the same",
    ),
    InjectedFault(
        "camera_black",
        "every picture is black",
        "goes on: the target sees no object and searches",
        _camera(lambda: _black),
        SOUND_CAMERA,
        lasts=5.0,
        stops=False,
        reads="black",
    ),
    InjectedFault(
        "picture_damaged",
        "every JPEG ends after a third",
        "stops",
        _camera(lambda: _damaged),
        SOUND_CAMERA,
        lasts=3.0,
        reads="cannot be read|damaged",
    ),
    InjectedFault(
        "odometry_gone",
        "no odometry comes",
        "waits after 80 ms, gives the step up after 0.5 s and stops",
        _odometry(lambda: gone),
        SOUND_ODOMETRY,
        reads="odometry is missing",
    ),
    InjectedFault(
        "odometry_frozen",
        "the same odometry comes again and again",
        "gives the step up after 0.5 s and stops",
        _odometry(lambda: partial(_frozen, [], False)),
        SOUND_ODOMETRY,
        reads="odometry is missing",
        quick=True,
    ),
    InjectedFault(
        "odometry_jumps",
        "one message in twenty says 5 m further ahead",
        "gives up each step under which it comes",
        _odometry(lambda: partial(_jumping, Random(1))),
        SOUND_ODOMETRY,
        lasts=5.0,
        stops=False,
    ),
    InjectedFault(
        "odometry_not_numbers",
        "the position is not a number",
        "drops it, as if none came",
        _odometry(lambda: _not_numbers),
        SOUND_ODOMETRY,
        reads="odometry",
    ),
    InjectedFault(
        "clock_ahead",
        "the stamps of camera and odometry jump 30 s ahead",
        "stops: the clock is too far off",
        _both(lambda: partial(_shifted, SKEW)),
        SOUND,
        lasts=4.0,
        reads="clock",
    ),
    InjectedFault(
        "clock_behind",
        "the stamps of camera and odometry jump 30 s back",
        "stops: the clock is too far off",
        _both(lambda: partial(_shifted, -SKEW)),
        SOUND,
        lasts=4.0,
        reads="clock|stamps",
    ),
    InjectedFault(
        "clock_skew",
        "the stamps of camera and odometry are 2 s ahead",
        "goes on: the offset is measured and allowed for",
        _both(lambda: partial(_shifted, 2.0)),
        SOUND,
        lasts=6.0,
        stops=False,
    ),
    InjectedFault(
        "camera_clock",
        "the camera's stamps are 0.3 s ahead of odometry's",
        "goes on: tolerated",
        _camera(lambda: partial(_shifted, 0.3)),
        SOUND_CAMERA,
        lasts=4.0,
        stops=False,
    ),
)

FAULTS_ON_ROBOT = (*SENSOR_FAULTS, *NODE_FAULTS, *NEIGHBOUR_FAULTS)
