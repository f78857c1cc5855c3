"""Odometry's track: where the base was at a stamp, and whether odometry still goes on."""

from __future__ import annotations

import cmath
import itertools
import math
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.drill import FORWARD, Drill, drives, reports, words
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.clock_offset import SourceClock, camera_clock, clock_problem
from edge_cloud_spec.nav.events import Odometry, Words
from edge_cloud_spec.nav.odometer import (
    LONGEST_PERIOD_S,
    OVERDUE_PERIODS,
    OVERDUE_SOONEST_S,
    POSE_SPACING_NS,
    SAME_TIME_NS,
    Odometer,
    Track,
)
from edge_cloud_spec.nav.pose import QUATERNION_TOLERANCE, Pose, between, pose_of, wrap, yaw_of
from edge_cloud_spec.nav.settings import NavigatorSettings

TIMEOUT = 0.5  # s
MS = 1_000_000  # ns


def track(stamps: list[int], every: float = 0.1) -> Track:
    """Pose(n) at the n-th stamp."""
    made = Track()
    for n, stamp in enumerate(stamps):
        made.add(Pose(float(n)), stamp, every * n, TIMEOUT)
    return made


@given(
    st.lists(st.integers(0, 2000), min_size=1, max_size=30, unique=True).map(sorted),
    st.integers(-500, 2500),
)
def test_the_pose_of_a_stamp_is_between_those_about_it_within_a_fifth_of_a_second(
    stamps: list[int], asked: int
) -> None:
    found = track([stamp * MS for stamp in stamps]).at(asked * MS)
    away = [abs(stamp - asked) for stamp in stamps]
    if found is None:  # a pose that was not kept may have been a little nearer
        assert min(away) > (SAME_TIME_NS - POSE_SPACING_NS) // MS
    else:
        assert min(away) <= SAME_TIME_NS // MS
        # Poses that come faster than they are kept stand for one another.
        before = max((stamp for stamp in stamps if stamp <= asked), default=stamps[0])
        after = min((stamp for stamp in stamps if stamp >= asked), default=stamps[-1])
        first = next(n for n, stamp in enumerate(stamps) if stamp > before - POSE_SPACING_NS // MS)
        later = (n for n, stamp in enumerate(stamps) if stamp >= after + POSE_SPACING_NS // MS)
        assert first <= found.x <= next(later, len(stamps) - 1)
        if all(b - a >= POSE_SPACING_NS // MS for a, b in itertools.pairwise(stamps)):
            place = float(np.interp(asked, stamps, range(len(stamps))))
            near = int(place), -int(-place // 1)
            wide = stamps[near[1]] - stamps[near[0]] > SAME_TIME_NS // MS
            assert found.x == pytest.approx(float(np.argmin(away)) if wide else place)


@given(
    st.tuples(*[st.floats(-1, 1)] * 4).filter(lambda q: math.hypot(*q) > 0.1),
    st.one_of(
        st.floats(1 - QUATERNION_TOLERANCE, 1 + QUATERNION_TOLERANCE),
        st.floats(0.0, 3.0),
        st.just(math.nan),
    ),
)
def test_an_orientation_is_a_unit_quaternion_or_is_dropped_and_named(
    parts: tuple[float, ...], length: float
) -> None:
    unit = np.array(parts) / math.hypot(*parts)
    x, y, z, w = unit
    orientation = SimpleNamespace(**dict(zip("xyzw", unit * length, strict=True)))
    if abs(abs(length - 1.0) - QUATERNION_TOLERANCE) < 1e-9:
        return
    pose = pose_of(SimpleNamespace(position=SimpleNamespace(x=1.0, y=2.0), orientation=orientation))
    said = reports(Drill().on(Odometry(pose, 10**9)))
    true = complex(1 - 2 * (y * y + z * z), 2 * (w * z + x * y))
    if length > 0.01 and abs(true) > 1e-6:  # of any length, as other tools have it
        assert abs(wrap(yaw_of(orientation) - cmath.phase(true))) < 1e-5
    if abs(length - 1.0) <= QUATERNION_TOLERANCE:
        assert not said
    else:
        assert math.isnan(pose.yaw) and "orientation that is no unit quaternion was dropped" in said


def test_between_two_poses_the_shorter_turn_counts() -> None:
    found = between(Pose(yaw=3.1), Pose(yaw=-3.1), 0.5)
    assert abs(wrap(found.yaw - math.pi)) < 1e-9


@pytest.mark.parametrize("every", [0.02, 0.05, 0.1, 0.3])
def test_odometry_falters_when_a_message_that_was_due_has_not_come(every: float) -> None:
    made = track([n * 10 * MS for n in range(60)], every)
    last = 59 * every
    limit = max(OVERDUE_SOONEST_S, OVERDUE_PERIODS * every)
    assert not made.falters(last + limit * 0.999)
    assert made.falters(last + limit * 1.001)
    assert made.silence(last + 0.25) == pytest.approx(0.25)


def test_the_period_is_learned_slowly_and_not_from_a_silence() -> None:
    made = track([n * 10 * MS for n in range(60)], 0.1)
    made.add(
        Pose(), 700 * MS, 5.9 + 0.4, TIMEOUT
    )  # one that is late counts for a fifth, and as no more than on time
    limit = OVERDUE_PERIODS * (0.1 + 0.2 * (OVERDUE_PERIODS * 0.1 - 0.1))
    assert not made.falters(6.3 + limit * 0.99) and made.falters(6.3 + limit * 1.01)
    made.add(Pose(), 800 * MS, 6.3 + 9.0, TIMEOUT)  # a silence is no period
    assert not made.falters(15.3 + limit * 0.99) and made.falters(15.3 + limit * 1.01)


@pytest.mark.parametrize(
    ("later", "taken"),
    [
        ([(3, 0.3)], False),
        ([(3, 0.3), (4, 0.4)], False),  # something else came just now
        ([(3, 0.8)], False),  # one alone may be a late one
        ([(3, 0.8), (3, 0.9)], False),
        ([(3, 0.8), (2, 0.9)], False),
        ([(3, 0.8), (11, 0.9), (4, 1.9)], False),  # it went on meanwhile
        ([(3, 0.8), (4, 0.9)], True),
        ([(3, 0.3), (4, 0.9)], True),
        ([(3, 0.8), (10, 0.85), (4, 0.9)], True),  # the last one said again in between
    ],
)
def test_a_track_begins_anew_where_the_old_one_ended_and_the_new_one_goes_on(
    later: list[tuple[int, float]], taken: bool
) -> None:
    made = track([8, 9, 10])
    for stamp, now in later:
        made.add(Pose(-float(stamp)), stamp, now, TIMEOUT)
    assert (made.newest == Pose(-float(later[-1][0]))) == taken
    assert (made.at(8) == Pose(0.0)) == (not taken)
    if taken:
        assert made.silence(later[-1][1]) == 0.0


@pytest.mark.parametrize("rate", [10, 50, 200, 500])
def test_odometry_of_any_rate_reaches_back_for_as_long_as_a_frame_may_be_old(rate: int) -> None:
    track, count = Track(), 10 * rate
    for number in range(count):
        at = number / rate
        track.add(Pose(at), int(at * 1e9) + 1, at, 0.5)
    assert track.newest == Pose((count - 1) / rate)
    for age in (0.5, 3.0, 9.0):
        then = track.at(int((track.newest.x - age) * 1e9))
        assert abs(track.newest.x - then.x - age) < 0.1
    moved, _ = track.moved_since(int((track.newest.x - 3.0) * 1e9))
    assert moved == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize(("stamp", "why"), [(0, "are 0"), (7, "do not go on")])
def test_odometry_that_goes_missing_stops_the_motion(stamp: int, why: str) -> None:
    drill = Drill()
    drill.on(Odometry(Pose(), stamp))
    drill.on(words(FORWARD))
    effects = drill.run(1.0)
    assert "odometry is missing" in reports(effects) and not drill.navigator.moving
    assert "odometry is missing" in reports(drill.on(words(FORWARD, "r2")))
    for _ in range(2):
        drill.on(Odometry(Pose(), stamp), 0.3)
    effects = drill.on(words(FORWARD, "r3"))
    assert f"missing: its stamps {why}" in reports(effects)
    drill.on(Odometry(Pose(), 0), 0.1)
    assert "missing: its stamps are 0" in reports(drill.on(words(FORWARD, "r5")))
    drill.on(Odometry(Pose(), 8), 0.1)
    assert drives(drill.on(words(FORWARD, "r4", age=0.1))), "it is used again once it goes on"


@given(st.floats(0.3, 60.0), st.integers(0, 20))
def test_odometry_that_comes_too_seldom_is_told_with_its_rate(rate: float, jitter: int) -> None:
    """Below odometry_timeout it was missing now and there again, without a reason."""
    odometer, now = Odometer(NavigatorSettings()), 100.0
    for number in range(60):
        now += (1.0 + (number % 3 - 1) * jitter / 100) / rate
        odometer.receive(Odometry(Pose(), round(now * 1e9)), now)
    said, gone = odometer.slow(now), odometer.problem(now + 0.9 / rate)
    if rate > 12:
        assert not said
    elif rate < 9 and 1.2 / rate < TIMEOUT:  # else it is missing now and then
        assert float(said.split()[2]) == pytest.approx(rate, rel=0.2, abs=0.06)
    if 0.9 / rate > 0.6 and 1.2 / rate < LONGEST_PERIOD_S:
        assert "it comes each" in gone
        assert float(gone.split()[6]) == pytest.approx(1 / rate, rel=0.25, abs=0.06)
    assert not odometer.slow(now + 10.0), "what is missing is not slow"
    assert odometer.problem(now + 10.0)


@pytest.mark.parametrize(("odometry", "moves"), [("required", False), ("auto", True)])
def test_only_where_odometry_is_required_nothing_moves_before_it_was_seen(
    odometry: str, moves: bool
) -> None:
    effects = Drill(NavigatorSettings(odometry=odometry)).on(words(FORWARD))
    assert bool(drives(effects)) == moves
    assert moves or "odometry is missing" in reports(effects)


@pytest.mark.parametrize(
    ("pose", "age", "why"),
    [
        (Pose(math.nan), 0.0, "it is not a number, or no place"),
        (Pose(yaw=math.nan), 0.0, "it has an orientation that is no unit quaternion"),
        (Pose(), math.inf, "it has a stamp that is no time"),
    ],
)
def test_odometry_of_which_each_message_is_dropped_is_missing_and_not_unknown(
    pose: Pose, age: float, why: str
) -> None:
    drill = Drill()
    drill.on(Odometry(pose, 10**9, age))
    effects = drill.on(words(FORWARD))
    assert not drives(effects) and f"odometry is missing: {why}" in reports(effects)


NS = 1_000_000_000
EPOCH = 1_700_000_000 * NS  # ROS time at steady 0


def offset_of(source: list[tuple[float, float]]) -> float:
    """The estimate after messages of (steady time, stamp less receive time)."""
    clock = SourceClock("the camera's")
    assert clock.offset is None and not clock.news()
    for number, (now, ahead) in enumerate(source):
        clock.receive(ahead, now)
        assert number or not clock.news(), "one message tells nothing surely"
    assert clock.offset is not None
    return clock.offset


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
        lie = random.choice((3600.0, 5.0, 1e11)) if false else 0.0
        source.append((now + late, true + drift * (now - 100.0) - late + lie))
    last, nearly = true + drift * 20.0, 0.01 + 0.1 / rate + abs(true) * 1e-12
    assert offset_of(source) == pytest.approx(last - latency, abs=nearly)


@pytest.mark.parametrize("offset", [-1.7e9, 1.7e9])
def test_stamps_of_a_simulator_are_not_said_to_be_decades_late(offset: float) -> None:
    assert "give every node use_sim_time" in clock_problem("the camera's", offset, 5.0)
    assert "86400.00 s behind" in clock_problem("the camera's", -86400.0, 5.0)


@pytest.mark.parametrize("step", [-3600.0, -1.0, 0.4, 30.0])
def test_a_clock_that_is_set_is_followed_within_the_window(step: float) -> None:
    before = [(0.1 * n, -0.02) for n in range(200)]
    after = [(20.0 + 0.1 * n, step - 0.02) for n in range(62)]
    assert offset_of(before + after) == pytest.approx(step - 0.02)


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

    def __init__(
        self, ahead: float, settings: NavigatorSettings | None = None, lag: float = 0.004
    ) -> None:
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

    def frame(self, request: str, since: float, camera: float, **changes: object) -> Words:
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
    goal = machine.drill.on(machine.frame("r1", 0.5, base if camera == "the base's" else 0.0))
    assert drives(goal)
    run = machine.drill.navigator._run
    ahead = 0.45 - run.motion._way
    assert ahead == pytest.approx(0.1, abs=0.02), "what it went since the frame counts"
    assert ("odometry's stamps" in machine.said) == (abs(base) > 0.1)


@pytest.mark.parametrize("base", [-3600.0, -5.5, 5.5, 3600.0, 1e9])
def test_odometry_beyond_the_limit_moves_nothing_and_says_why(base: float) -> None:
    machine = Machine(base)
    effects = machine.drill.on(machine.frame("r1", 0.2, 0.0))
    assert not drives(effects)
    assert "clock_offset_limit" in reports(effects) and "synchronize" in reports(effects)
    assert machine.drill.navigator.odometer.clock_offset == pytest.approx(base, abs=0.01)
    wide = Machine(base, NavigatorSettings(clock_offset_limit=1e10))
    assert drives(wide.drill.on(wide.frame("r1", 0.2, 0.0)))


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
            assert not drives(machine.drill.on(old)), (base, age)


def test_frames_of_a_clock_that_jumps_ahead_are_refused_until_the_offset_is_measured() -> None:
    drill = Drill()
    jumped = words(FORWARD, "r1", age=-2.8, camera_offset=-0.03)
    effects = drill.on(jumped)
    assert not drives(effects) and "2.8 s ahead" in reports(effects)
    measured = replace(jumped, request="r2", camera_offset=2.97)
    assert drives(drill.on(measured, 5.0))


def test_stamps_that_swing_tell_nothing_of_a_clock() -> None:
    machine = Machine(0.0)
    newest = EPOCH + round(machine.drill.now * NS)
    for number in range(300):
        stale = Odometry(Pose(), newest - number % 2, 0.02 * number)
        machine.said += reports(machine.drill.on(stale, 0.02))
    assert machine.said == ""
    assert machine.drill.navigator.odometer.clock_offset == pytest.approx(0.0, abs=0.01)


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=10))
def test_a_clocks_offset_is_one_that_was_measured(ahead: list[float]) -> None:
    """Not the middle of two cameras' clocks, which nobody has."""
    clock = SourceClock("the camera's")
    for second, each in enumerate(ahead):
        clock.receive(each, float(second))
    assert clock.offset in ahead
