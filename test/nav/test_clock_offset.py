"""Clocks that differ: measured from stamps alone, said, and allowed for within a bound."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from helpers.drill import FORWARD, Drill, drives, reports, words
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.clock_offset import StampOffset, camera_clock
from edge_cloud_spec.nav.events import Odometry
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import Settings

NS = 1_000_000_000
EPOCH = 1_700_000_000 * NS  # ROS time at steady 0


def offset_of(source: list[tuple[float, float]]) -> float:
    """The estimate after messages of (steady time, stamp less receive time)."""
    clock = StampOffset()
    for now, ahead in source:
        clock.add(ahead, now)
    assert clock.value is not None
    return clock.value


@given(
    st.floats(-1e9, 1e9),
    st.floats(0.001, 0.05),
    st.floats(1.0, 100.0),
    st.sampled_from([0.0, 1e-4, -1e-4]),
    st.integers(0, 2**32),
)
def test_the_offset_is_found_under_jitter_bursts_lies_and_drift(
    true: float, latency: float, rate: float, drift: float, seed: int
) -> None:
    random, source, held = Random(seed), [], 0.0
    for number in range(int(20 * rate)):
        now = 100.0 + number / rate
        if random.random() < 0.02 / rate:
            held = now + 1.5  # a burst: nothing comes through until then
        late = latency * (1 + random.expovariate(3.0)) + max(0.0, held - now)
        false = int(now) % 4 == 0 and random.random() < 0.05
        lie = random.choice((3600.0, 5.0, math.inf)) if false else 0.0
        source.append((now + late, true + drift * (now - 100.0) - late + lie))
    last = true + drift * 20.0
    assert offset_of(source) == pytest.approx(last - latency, abs=0.11 + abs(true) * 1e-12)


@pytest.mark.parametrize("step", [-3600.0, -1.0, 0.4, 30.0])
def test_a_clock_that_is_set_is_followed_within_the_window(step: float) -> None:
    before = [(0.1 * n, -0.02) for n in range(200)]
    after = [(20.0 + 0.1 * n, step - 0.02) for n in range(62)]
    assert offset_of(before + after) == pytest.approx(step - 0.02)


def test_nothing_is_known_before_the_first_message_and_no_number_is_none() -> None:
    clock = StampOffset()
    for ahead in (math.nan, math.inf, -math.inf):
        clock.add(ahead, 1.0)
    assert clock.value is None and not clock.known


@pytest.mark.parametrize(
    ("measured", "base", "clock"),
    [
        (-0.05, None, 0.0),  # a camera of this computer
        (-4.0, None, 0.0),  # that lags; or a clock behind, which looks the same
        (3.0, None, 3.0),  # a clock ahead
        (-0.1, -0.01, -0.01),  # two sources of a computer in step: the same
        (-3.1, -3.0, -3.0),  # both by the base's clock
        (-7.0, -3.0, -3.0),  # the same, lagging
        (-0.1, -3.0, 0.0),  # odometry by the base's, the camera by ours
        (1.9, 2.0, 2.0),
        (5.0, 2.0, 5.0),
        (-0.1, 2.0, 0.0),
    ],
)
def test_the_cameras_clock_is_ours_or_the_bases_whichever_needs_less_latency(
    measured: float, base: float | None, clock: float
) -> None:
    assert camera_clock(measured, base) == clock


class Machine:
    """A navigator under odometry at 50 Hz whose clock is ``ahead``."""

    def __init__(self, ahead: float, settings: Settings | None = None, lag: float = 0.004) -> None:
        self.drill, self.ahead, self.lag = Drill(settings), ahead, lag
        self.pose, self.said = 0.0, ""
        self.run(4.0)

    def run(self, seconds: float, speed: float = 0.0) -> None:
        for _ in range(round(seconds * 50)):
            self.pose += speed / 50
            taken = self.drill.now + 0.02
            stamp = EPOCH + round((taken + self.ahead) * NS)
            message = Odometry(Pose(x=self.pose), stamp, self.lag - self.ahead)
            self.said += reports(self.drill.on(message, 0.02))

    def frame(self, request: str, since: float, camera: float, **changes: object) -> object:
        """Words on a frame that was taken ``since`` seconds ago, by a clock ``camera`` s ahead."""
        stamp = EPOCH + round((self.drill.now - since + camera) * NS)
        given = {"stamp": stamp, "age": since - camera, "camera_offset": camera - 0.03}
        return words("action: move forward medium;", request, **(given | changes))


@pytest.mark.parametrize("base", [-4.0, -0.5, 0.0, 0.5, 4.0])
@pytest.mark.parametrize("camera", ["ours", "the base's"])
def test_a_step_counts_from_where_its_frame_was_taken_whatever_the_clocks_say(
    base: float, camera: str
) -> None:
    machine = Machine(base)
    machine.run(1.0, speed=0.2)
    goal = machine.drill.on(machine.frame("r1", 0.5, base if camera == "the base's" else 0.0))  # type: ignore[arg-type]
    assert drives(goal)
    run = machine.drill.navigator._run
    assert run is not None
    ahead = 0.45 - run.motion._profile.length
    assert ahead == pytest.approx(0.1, abs=0.02), "what it went since the frame counts"
    assert ("odometry's stamps" in machine.said) == (abs(base) > 0.1)


@pytest.mark.parametrize("base", [-3600.0, -5.5, 5.5, 3600.0, 1e9])
def test_odometry_beyond_the_limit_moves_nothing_and_says_why(base: float) -> None:
    machine = Machine(base)
    effects = machine.drill.on(machine.frame("r1", 0.2, 0.0))  # type: ignore[arg-type]
    assert not drives(effects)
    assert "clock_offset_limit" in reports(effects) and "synchronize" in reports(effects)
    assert machine.drill.navigator.odometry_clock_offset == pytest.approx(base, abs=0.01)
    wide = Machine(base, Settings(clock_offset_limit=1e10))
    assert drives(wide.drill.on(wide.frame("r1", 0.2, 0.0)))  # type: ignore[arg-type]


def test_a_camera_whose_clock_is_ahead_moves_the_robot_within_the_limit_only() -> None:
    for ahead, moves in ((0.6, True), (4.9, True), (5.2, False), (3600.0, False)):
        drill = Drill()
        effects = drill.on(words(FORWARD, age=0.2 - ahead, camera_offset=ahead))
        assert bool(drives(effects)) == moves
        assert moves or "the camera's stamps are" in reports(effects)


@pytest.mark.parametrize("lie", [-1e300, -3600.0, -4.0, 4.0, 3600.0, 1e300, math.nan, math.inf])
def test_an_old_frame_never_passes_for_a_fresh_one_because_of_an_offset(lie: float) -> None:
    for base in (-4.0, 0.0, 4.0):
        machine = Machine(base)
        for age in (10.5, 12.0, 14.5):
            old = machine.frame(f"r{age}", age, 0.0, camera_offset=lie)
            assert not drives(machine.drill.on(old)), (base, age)  # type: ignore[arg-type]


def test_a_driver_that_lags_as_a_whole_does_not_look_fresh() -> None:
    machine = Machine(0.0, lag=4.0)  # odometry and camera 4 s late: as clocks that are behind
    old = machine.frame("r1", 10.5, 0.0, camera_offset=-4.0)
    assert not drives(machine.drill.on(old))  # type: ignore[arg-type]


def test_frames_of_a_clock_that_jumps_ahead_are_refused_until_the_offset_is_measured() -> None:
    drill = Drill()
    jumped = words(FORWARD, "r1", age=-2.8, camera_offset=-0.03)
    effects = drill.on(jumped)
    assert not drives(effects) and "2.8 s ahead" in reports(effects)
    measured = replace(jumped, request="r2", camera_offset=2.97)
    assert drives(drill.on(measured, 5.0))


def test_stamps_of_zero_frozen_or_swung_tell_nothing_of_a_clock() -> None:
    drill = Drill()
    for number in range(100):
        drill.on(Odometry(Pose(), 0, 1e9 + 0.02 * number), 0.02)
    assert "missing" in reports(drill.on(words(FORWARD, "r1")))
    machine = Machine(0.0)
    newest = EPOCH + round(machine.drill.now * NS)
    for number in range(300):
        stale = Odometry(Pose(), newest - number % 2, 0.02 * number)
        machine.said += reports(machine.drill.on(stale, 0.02))
    assert machine.said == ""
    assert machine.drill.navigator.odometry_clock_offset == pytest.approx(0.0, abs=0.01)
