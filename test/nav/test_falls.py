"""A base that has fallen is held until somebody has seen to it; one that walks is not."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.drill import FORWARD, Drill, reports
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.e_stop import E_STOP_ON
from edge_cloud_spec.nav.events import EStop, Halt, Hold, Instruction, Tilt
from edge_cloud_spec.nav.pose import pose_of, tilt_of
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import OTHER_HOLD, NavCode

HOME = "find the red box"


def quaternion(roll: float, pitch: float, yaw: float, length: float = 1.0) -> SimpleNamespace:
    """Of rotations about z, then y, then x, in degrees."""
    (a, b, c), (d, e, f) = (
        [function(math.radians(angle) / 2) for angle in (roll, pitch, yaw)]
        for function in (math.cos, math.sin)
    )
    parts = (
        d * b * c - a * e * f,
        a * e * c + d * b * f,
        a * b * f - d * e * c,
        a * b * c + d * e * f,
    )
    return SimpleNamespace(**dict(zip("xyzw", (length * part for part in parts), strict=True)))


def moving() -> Drill:
    drill = Drill()
    drill.on(Instruction(HOME))
    drill.on(drill.current(FORWARD, "r1"))
    drill.run(0.3)
    assert drill.navigator.moving
    return drill


@given(
    roll=st.floats(-180, 180),
    pitch=st.floats(-89, 89),
    yaw=st.floats(-180, 180),
    length=st.sampled_from([1.0, 0.97, 1.04, -1.0]),
)
def test_the_lean_is_that_of_roll_and_pitch_whatever_the_yaw(
    roll: float, pitch: float, yaw: float, length: float
) -> None:
    upright = math.cos(math.radians(roll)) * math.cos(math.radians(pitch))
    lean = tilt_of(quaternion(roll, pitch, yaw, length))
    assert math.cos(lean) == pytest.approx(upright, abs=1e-6)


@pytest.mark.parametrize("angle", [26.0, 90.0, 180.0])
@pytest.mark.parametrize("axis", ["roll", "pitch"])
def test_a_base_that_falls_is_stopped_and_held_until_somebody_has_seen_to_it(
    axis: str, angle: float
) -> None:
    drill, fell = moving(), {"roll": 0.0, "pitch": 0.0, "yaw": 77.0, axis: angle}
    lying = Tilt(tilt_of(quaternion(**fell)))
    effects = drill.on(lying)
    assert isinstance(effects[0], Halt) and f"it leans by {angle:.0f} degrees" in reports(effects)
    assert drill.navigator.status.code is NavCode.FALLEN
    assert not drill.on(lying), "said once"
    assert "was not taken" in reports(drill.on(Instruction("go on")))
    drill.on(EStop(True))
    drill.on(EStop(False))
    assert drill.navigator.status.code is NavCode.RELEASED
    drill.on(lying)
    assert drill.navigator.status.code is NavCode.FALLEN, "it lies still"
    drill.on(Tilt(0.05))
    assert drill.navigator.status.code is NavCode.FALLEN, "standing up alone releases nothing"
    drill.on(Hold("not active", "active"))
    drill.on(Hold("", "active"))
    drill.on(Instruction(HOME))
    drill.run(0.5)
    drill.on(drill.current(FORWARD, "r2"))
    assert drill.navigator.moving


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        (Hold("teleop publishes", OTHER_HOLD), Hold("", OTHER_HOLD)),
        (Hold("no base", "base"), Hold("", "base")),
        (EStop(True, f"{E_STOP_ON}: silent for 1 s"), EStop(False)),
    ],
)
def test_what_ends_by_itself_has_not_seen_to_the_base(begins: Any, ends: Any) -> None:
    drill = moving()
    for event in (Tilt(1.0), Tilt(0.0), begins, ends, Instruction(HOME)):
        drill.on(event)
    drill.run(0.5)
    drill.on(drill.current(FORWARD, "r2"))
    assert drill.navigator.status.code is NavCode.FALLEN and not drill.navigator.moving
    for event in (begins, EStop(True), EStop(False), ends, Instruction(HOME)):
        drill.on(event)
    drill.run(0.5)
    drill.on(drill.current(FORWARD, "r3"))
    assert drill.navigator.moving, "a pressed e_stop was seen to, whatever else held it"


def test_no_walking_dog_and_no_orientation_that_is_none_is_taken_for_a_fall() -> None:
    drill, random = moving(), Random(3)
    for _ in range(2000):
        walks = [random.uniform(-10, 10), random.uniform(-10, 10), random.uniform(-180, 180)]
        assert not drill.on(Tilt(tilt_of(quaternion(*walks, length=random.uniform(0.96, 1.04)))))
    for length in (0.0, 0.5, 2.0, math.nan, math.inf):
        for lean in (0.0, 60.0):
            assert not drill.on(Tilt(tilt_of(quaternion(lean, 0.0, 0.0, length))))
    at = SimpleNamespace(x=0.0, y=0.0)
    no_pose = SimpleNamespace(position=at, orientation=quaternion(60.0, 0.0, 0.0, 0.5))
    assert pose_of(no_pose).problem, "which odometry is dropped for"
    assert drill.navigator.moving


def test_a_limit_beyond_half_a_turn_holds_no_base() -> None:
    drill = Drill(NavigatorSettings(tilt_limit=3.2))
    assert not drill.on(Tilt(math.pi)) and drill.on(Tilt(math.pi)) == []
