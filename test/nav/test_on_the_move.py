"""Decisions on frames that were taken on the move: nothing is left out, and nothing added twice."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from helpers.drill import Drill, drives, reports, words
from helpers.lagging_base import MORE, RATIO, Base, moved
from helpers.rover import Rover, swaying

from edge_cloud_spec.nav.budget import (
    COMMAND_PERIOD_S,
    MOVE_TURN_RAD,
    NOTHING_USED,
    TURN_PATH_M,
    CommandedMotion,
)
from edge_cloud_spec.nav.events import (
    Announce,
    Drive,
    Halt,
    Odometry,
    Tick,
)
from edge_cloud_spec.nav.limits import Axis, Limits
from edge_cloud_spec.nav.navigator import DRIVE_PROGRESS_S, QUICK_DECISION_S, TICK_GAP_S
from edge_cloud_spec.nav.odometer import Track
from edge_cloud_spec.nav.pose import Pose, Velocity
from edge_cloud_spec.nav.settings import CONTINUOUS, DRIVE_CHOICES, NavigatorSettings
from edge_cloud_spec.nav.steps import Steps, goal_of

FORWARD, BACK = "move forward large", "move backward large"
LEFT, RIGHT = "turn left large", "turn right large"
ACTIONS = (
    *(f"move forward {size}" for size in ("small", "medium", "large")),
    *(f"turn {side} {size}" for side in ("left", "right") for size in ("small", "medium")),
    "search",
)
TURNED = Pose(yaw=math.radians(12))
Patch = pytest.MonkeyPatch


def steady(
    action: str, takes: float = 0.2, settings: NavigatorSettings | None = None, **more: Any
) -> Rover:
    return Rover(lambda seen: action, lambda number: takes, settings or NavigatorSettings(), **more)


def anything(
    seed: int,
    drive: str = CONTINUOUS,
    lag: float = 0.1,
    slowest: float = 0.4,
    odometry: str = "auto",
) -> Rover:
    """Any decisions, one after another."""
    random = Random(seed)
    return Rover(
        lambda seen: random.choice(ACTIONS),
        lambda number: random.uniform(0.05, slowest),
        NavigatorSettings(drive=drive, odometry=odometry),
        lag,
    )


SLACK = (0.06, math.radians(4))  # m, rad: where a step ends, and what the base rolls after it


def check(rover: Rover) -> None:
    """Each step that arrives ends where it should, counted from its frame; one that was past it
    stays there. What the base makes since a step's frame is bounded by the step, arrived or not."""
    steps = list(rover.steps.values())
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        goal = goal_of(step.action, rover.settings.steps)
        path, turn = rover.made(step.seen.taken, rover.now if after is None else after.begun)
        most = RATIO * abs(goal.distance) + MORE[0], MOVE_TURN_RAD + SLACK[1] / 2
        if goal.angle:
            most = TURN_PATH_M + SLACK[0], RATIO * abs(goal.angle) + MORE[1]
        assert path <= most[0] and turn <= most[1], (step, path, turn)
        if step.end is None:
            continue
        size, covered, before = step.covered(rover.settings)
        slack = SLACK[step.action.verb != "move"]
        against = before < -slack  # the base moved against it; it makes up for a little of that
        assert covered >= size - slack or against, step
        assert covered <= max(size, before) + slack, step


@pytest.mark.parametrize("drive", DRIVE_CHOICES)
@pytest.mark.parametrize("lag", [0.05, 0.15])
@pytest.mark.parametrize("slowest", [0.4, 1.2])
def test_nothing_is_left_out_and_nothing_added_twice(
    drive: str, lag: float, slowest: float
) -> None:
    rover = anything(3, drive, lag, slowest)
    rover.run(40.0)
    arrived = sum(step.end is not None for step in rover.steps.values())
    assert arrived > 5 and len(rover.steps) > 15
    assert (len(rover.steps) > 1.5 * arrived) == (
        drive == CONTINUOUS and slowest < QUICK_DECISION_S
    ), "replaced"
    check(rover)


@pytest.mark.parametrize(
    "wrong",
    [
        [(Track, "at", lambda self, time: self.newest)],
        [
            (CommandedMotion, "since", lambda self, *when: NOTHING_USED),
            (Track, "moved_since", lambda self, time: (0.0, 0.0)),
        ],
    ],
    ids=["anchored elsewhere", "a fresh budget at each replacement"],
)
def test_a_step_that_does_not_count_from_its_frame_is_found_out(
    wrong: list[tuple[Any, str, Any]], monkeypatch: Patch
) -> None:
    for each in wrong:
        monkeypatch.setattr(*each)
    rover = anything(5)
    rover.run(40.0)
    with pytest.raises(AssertionError, match="Step"):
        check(rover)


def test_a_robot_that_decides_on_the_move_does_not_stand() -> None:
    waiting, driving = (
        steady(FORWARD, settings=NavigatorSettings(drive=drive)) for drive in DRIVE_CHOICES[::-1]
    )
    waiting.run(30.0)
    driving.run(2.0)
    stood = driving.stood  # before its first decision
    driving.run(28.0)
    assert driving.stood == stood < waiting.stood
    assert driving.base.pose.x > 1.3 * waiting.base.pose.x, "and gets further"


@pytest.mark.parametrize("action", ["search", RIGHT, FORWARD, BACK])
def test_actions_that_replace_themselves_count_for_what_was_made(action: str) -> None:
    rover, turned = steady(action), 0.0
    while rover.done < 9:
        assert rover.now < 200.0, rover.done
        before = rover.base.pose.yaw
        rover.run(COMMAND_PERIOD_S)
        turned += rover.base.pose.yaw - before
    assert len(rover.steps) > 9, "they replaced each other"
    made, size = (turned, 48.0) if action in ("search", RIGHT) else (rover.base.pose.x, 0.9)
    size = math.radians(size) if made == turned else size
    assert abs(made) / size == pytest.approx(9.0, abs=0.3)


def test_a_search_of_no_degrees_counts_nothing() -> None:
    limits = Limits(speed=0.25, move=Axis(0.0, 0.0), turn=Axis(0.0, 0.0))
    drill = moving(FORWARD, settings=NavigatorSettings(limits=limits, steps=Steps(search=0.0)))
    drill.on(words("action: search;", "r2", age=0.0, stamp=stamp(drill)))
    for _ in range(10):
        step(drill)
    assert drill.status == "idle r2 0 done: search"


class Followed(Drill):
    """With odometry of a base that follows at once."""

    def __init__(self, settings: NavigatorSettings) -> None:
        super().__init__(settings)
        self.pose = Pose()


def moving(
    first: str, verified: bool = True, settings: NavigatorSettings | None = None
) -> Followed:
    """A robot with odometry that has moved for 0.4 s by this action, where it was told to be."""
    drill = Followed(settings or NavigatorSettings(allow_unverified=True))
    track(drill)
    drill.on(words(f"action: {first};", verified=verified, age=0.0, stamp=stamp(drill)))
    for _ in range(8):
        step(drill)
    assert drill.navigator.moving
    return drill


def stamp(drill: Drill) -> int:
    return round(drill.now * 1e9)


def track(drill: Followed) -> None:
    drill.on(Odometry(drill.pose, stamp(drill)))


def step(drill: Followed) -> list[Any]:
    """Odometry, and a tick."""
    drill.pose = moved(drill.pose, drill.navigator._commanded.driven, COMMAND_PERIOD_S)
    drill.now += COMMAND_PERIOD_S
    track(drill)
    return drill.on(Tick())


@pytest.mark.parametrize(
    ("first", "then", "goes_on"),
    [
        (FORWARD, FORWARD, True),
        (FORWARD, "move forward small", True),
        (FORWARD, LEFT, True),
        (LEFT, LEFT, True),
        (LEFT, "search", True),
        (FORWARD, BACK, False),
        (BACK, FORWARD, False),
        (LEFT, RIGHT, False),
        ("search", RIGHT, False),
        ("search", FORWARD, False),
    ],
)
def test_what_cannot_begin_at_this_speed_has_the_robot_stand_first(
    first: str, then: str, goes_on: bool
) -> None:
    drill = moving(first)
    driven = drill.navigator._commanded.driven
    effects = drill.on(words(f"action: {then};", "r2", age=0.0, stamp=stamp(drill)))
    assert drill.navigator.moving == goes_on
    assert any(isinstance(effect, Halt) for effect in effects) != goes_on
    if goes_on:
        assert drives(effects) == [driven], "no decision stands in for a tick"
        after = drives(step(drill))[0]
        for before, now in ((driven.vx, after.vx), (driven.wz, after.wz)):
            assert before * now >= 0.0
    else:
        assert drill.status.startswith("idle r2 0 refused: the robot has moved away")


@pytest.mark.parametrize(("driven", "begins"), [(0.9, True), (1.1, False)])
def test_nothing_begins_on_a_frame_of_more_than_a_second_of_driving_ago(
    driven: float, begins: bool
) -> None:
    drill = moving(FORWARD, settings=NavigatorSettings(limits=Limits(speed=0.3)))
    taken, ticks = stamp(drill), round(driven / COMMAND_PERIOD_S)
    for _ in range(ticks):
        step(drill)
    late = words(f"action: {FORWARD};", "r2", age=ticks * COMMAND_PERIOD_S, stamp=taken)
    effects = drill.on(late)
    assert any(isinstance(effect, Announce) for effect in effects) == begins
    assert drill.navigator.moving and ("of driving ago" in reports(effects)) != begins


def test_what_a_base_still_rolls_counts_for_a_frame_that_is_taken_meanwhile() -> None:
    base, commanded = Base(lag=0.1, now=0.0), CommandedMotion()
    for begin, end, velocity in (
        (0.0, 0.5, Velocity(vx=0.6)),
        (0.5, 0.8, Velocity(vx=-0.2, wz=1.2)),
        (0.8, 2.0, Velocity()),
    ):
        base.obey(Drive(velocity, end, end))
        commanded.command(velocity, begin)
        for _ in base.run(end):
            pass
    axes = [Axis(braking=braking) for braking in (0.1, 0.05)]
    lags, follows_sooner = (Limits(move=axis, turn=axis) for axis in axes)
    for taken in (0.4, 0.55, 0.75, 0.85, 1.0, 1.3):
        made = [base.made(2.0).turned - base.made(taken).turned]
        path, _, turn = commanded.since(taken, 2.0, lags)
        made.append(base.made(2.0).path - base.made(taken).path)
        assert turn == pytest.approx(made[0], abs=2e-3) and path >= made[1] - 1e-6
        faster = commanded.since(taken, 2.0, follows_sooner)
        assert faster <= (path, 0.0, turn), "a base that follows sooner rolls less"
    assert commanded.since(1.3, 2.0) == NOTHING_USED


@pytest.mark.parametrize(("gap", "goes_on"), [(0.16, True), (TICK_GAP_S + 0.02, False)])
def test_a_navigator_that_stood_still_lets_no_decision_take_over(gap: float, goes_on: bool) -> None:
    """A watchdog may have stopped the base, at which no decision commands its old speed anew."""
    drill = moving(FORWARD)
    drill.now += gap
    track(drill)
    late = words(f"action: {FORWARD};", "r2", age=0.0, stamp=stamp(drill))
    effects = drill.on(late)
    assert not drives(effects) and "nothing else is decided" in reports(effects)
    assert bool(drives(drill.on(Tick()))) == goes_on


def test_while_odometry_falters_no_decision_takes_over() -> None:
    """Where the base is, and how far it has come since the frame, is not known then."""
    drill = moving(FORWARD)
    at = stamp(drill)
    for _ in range(2):
        drill.on(Tick(), COMMAND_PERIOD_S)
    assert drill.navigator.moving and drill.navigator.odometer.track.falters(drill.now)
    effects = drill.on(words(f"action: {LEFT};", "r2", age=0.1, stamp=at))
    assert "nothing else is decided" in reports(effects)
    step(drill)
    again = words(f"action: {LEFT};", "r3", age=0.0, stamp=stamp(drill))
    assert any(isinstance(effect, Announce) for effect in drill.on(again)), "it has come again"


@pytest.mark.parametrize(
    ("action", "here", "moves"),
    [
        ("move forward small", TURNED, False),
        ("turn right small", TURNED, False),
        ("turn right large", TURNED, True),
        ("turn left small", TURNED, True),  # it is there already
        ("search", TURNED, True),
        (FORWARD, Pose(x=3.0), False),
        (FORWARD, Pose(x=0.3), True),
    ],
)
def test_what_is_out_of_a_steps_reach_is_refused(action: str, here: Pose, moves: bool) -> None:
    """The base has got there since the frame."""
    drill = Drill()
    drill.on(Odometry(Pose(), 1_000_000_000))
    drill.on(Odometry(here, 2_000_000_000))
    effects = drill.on(words(f"action: {action};", stamp=1_000_000_000))
    assert any(isinstance(effect, Announce) for effect in effects) == moves
    assert moves or "moved away" in reports(effects)


@pytest.mark.parametrize("ahead", [0.3, 0.45])
def test_a_frame_from_the_future_has_no_place_where_the_robot_drives(ahead: float) -> None:
    drill = moving(FORWARD)
    at = stamp(drill) + round(ahead * 1e9)
    effects = drill.on(words("action: move forward small;", "r2", age=-ahead, stamp=at))
    assert drill.navigator.moving and not any(isinstance(each, Announce) for each in effects)
    assert "it is not known where" in reports(effects)


@pytest.mark.parametrize(("camera_lag", "right"), [(0.3, True), (0.0, False)])
def test_a_camera_that_stamps_on_arrival_anchors_rightly_with_its_lag(
    camera_lag: float, right: bool
) -> None:
    """And wrongly, by speed times lag, without."""
    rover = steady(FORWARD, late=0.3, camera_lag=camera_lag)
    rover.run(10.0)
    rover.answer = lambda seen: "move forward small"
    rover.run(20.0)
    if right:
        check(rover)
    else:
        with pytest.raises(AssertionError, match="Step"):
            check(rover)


def test_without_odometry_nobody_decides_on_the_move_and_all_is_as_it_is_standing() -> None:
    did = []
    for drive in DRIVE_CHOICES:
        rover = anything(5, drive, odometry="off")
        did.append(drives(rover.run(30.0)))
        assert len(rover.steps) > 8 and not rover.reports
    assert did[0] == did[1]


@pytest.mark.parametrize("sways", [False, True])
def test_a_wall_ends_motions_that_replace_each_other_as_blocked(sways: bool) -> None:
    rover = steady(FORWARD)
    rover.run(5.0)
    before = len(rover.steps)
    rover.blocked, rover.tell = True, swaying if sways else rover.tell
    rover.until(lambda: rover.navigator.status.detail.endswith("is the way blocked?"), 4.0)
    assert len(rover.steps) >= before + 3, "each was replaced before it could tell"
    begun = rover.now
    rover.until(lambda: rover.navigator.moving)
    rover.blocked = False
    rover.run(DRIVE_PROGRESS_S + 1.0)
    assert rover.navigator.counts["not_arrived"] == 1, "what was before it stood counts no more"
    assert rover.now > begun


def test_what_is_slow_decides_near_a_motions_end_and_what_is_quick_while_it_drives() -> None:
    for takes, quick in ((0.2, True), (0.6, False)):
        rover = steady(FORWARD, takes)
        rover.run(20.0)
        steps = list(rover.steps.values())[3:]
        way = [now.seen.pose.x - before.seen.pose.x for before, now in pairwise(steps)]
        assert (max(way) < 0.6) == quick
