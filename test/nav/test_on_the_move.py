"""Decisions on frames that were taken on the move: nothing is left out, and nothing added twice."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from helpers.drill import Drill, drives, reports, words
from helpers.rover import BOX, Rover
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.events import Announce, EStop, Event, Instruction, Odometry
from edge_cloud_spec.nav.motion import BEND, Goal, Limits, Motion
from edge_cloud_spec.nav.navigator import REMEMBERED, LeadTime
from edge_cloud_spec.nav.odometer import Track
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import BY_ITSELF, MOST, Settings

ACTIONS = (
    *(f"move forward {size}" for size in ("small", "medium", "large")),
    *(f"turn {side} {size}" for side in ("left", "right") for size in ("small", "medium")),
    "search",
)
EARLY = Settings(lead_time=BY_ITSELF)


def steady(action: str, takes: float = 0.5, settings: Settings = EARLY, **more: float) -> Rover:
    return Rover(lambda seen: action, lambda number: takes, settings, **more)


def anything(seed: int, settings: Settings, lag: float) -> Rover:
    random = Random(seed)
    return Rover(
        lambda seen: random.choice(ACTIONS), lambda number: random.uniform(0.1, 1.2), settings, lag
    )


SLACK = (0.06, math.radians(4))  # m, rad: where a step ends, and what the base rolls after it


def check(rover: Rover) -> None:
    """Each step ends where it should, counted from its frame; one that was past it stays there."""
    for step in rover.steps.values():
        if step.end is None:
            continue
        size, covered, before = step.covered(rover.settings)
        slack = SLACK[step.action.verb != "move"]
        against = before < -slack  # the base moved against it; it makes up for a little of that
        assert covered >= size - slack or against, step
        assert covered <= max(size, before) + slack, step


@pytest.mark.parametrize("lead", [0.0, 0.5, MOST, -1.0])
@pytest.mark.parametrize("lag", [0.05, 0.15])
def test_nothing_is_left_out_and_nothing_added_twice(lead: float, lag: float) -> None:
    rover = anything(3, Settings(lead_time=lead), lag)
    rover.run(60.0)
    assert len(rover.steps) > 15
    check(rover)


def test_a_step_that_does_not_count_from_its_frame_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Track, "at", lambda self, time: self.newest)
    rover = steady("move forward large", settings=Settings(lead_time=0.6))
    rover.run(20.0)
    with pytest.raises(AssertionError, match="Step"):
        check(rover)


def test_a_robot_that_decides_on_the_move_stands_less() -> None:
    waiting, leading = (
        steady("move forward large", takes=0.4, settings=Settings(lead_time=t)) for t in (0.0, -1.0)
    )
    waiting.run(30.0)
    leading.run(30.0)
    assert leading.stood < 0.6 * waiting.stood
    assert leading.base.pose.x > 1.05 * waiting.base.pose.x, "and gets further"


def test_frames_of_a_search_are_as_far_apart_on_the_move_as_at_rest() -> None:
    rover = steady("search", takes=0.3)
    rover.until(lambda: len(rover.steps) == 8)
    seen = [step.seen.pose.yaw for step in rover.steps.values()]
    apart = [b - a for a, b in pairwise(seen[1:])]  # the first was seen standing
    assert min(apart) > 0.9 * math.radians(rover.settings.steps.search)


def test_the_first_decisions_are_made_standing_and_the_next_as_early_as_they_take() -> None:
    rover = steady("move forward large", takes=0.4)
    rover.until(lambda: len(rover.steps) == 3)
    first, second, third = (step.seen for step in rover.steps.values())
    begun = [step.begun for step in rover.steps.values()]
    assert begun[1] - second.taken == pytest.approx(0.4, abs=0.3), "little before the end"
    assert second.pose.x - first.pose.x > 0.5 and third.pose.x > second.pose.x


@pytest.mark.parametrize(
    ("action", "moves"),
    [
        ("move forward small", False),
        ("turn right small", False),
        ("turn right large", True),
        ("turn left small", True),  # it is there already
        ("search", True),
    ],
)
def test_what_is_out_of_a_steps_reach_is_refused(action: str, moves: bool) -> None:
    """The base has turned left by 12 degrees since the frame."""
    drill = Drill()
    drill.on(Odometry(Pose(), 1_000_000_000))
    drill.on(Odometry(Pose(yaw=math.radians(12)), 2_000_000_000))
    effects = drill.on(words(f"action: {action};", stamp=1_000_000_000))
    assert any(isinstance(effect, Announce) for effect in effects) == moves
    assert moves or "moved away" in reports(effects)


def test_a_decision_that_would_take_far_longer_than_what_is_left_is_made_standing() -> None:
    rover = steady("turn left large", takes=1.5)
    for _ in range(200):
        rover.run(0.05)
        assert rover.navigator.status.state != "ready"


@pytest.mark.parametrize("slow", [4.0, 30.0])
def test_decisions_that_suddenly_take_ten_times_as_long_leave_the_robot_standing(
    slow: float,
) -> None:
    rover = Rover(lambda seen: "search", lambda n: 0.4 if n < 4 else slow, EARLY)
    rover.until(lambda: rover.deciding is not None and len(rover.requests) > 4)
    rover.run(3.0)
    assert rover.base.stands and rover.navigator.status.state == "idle"
    rover.until(lambda: len(rover.requests) > 6, 200.0)
    late = slow > rover.settings.frame_age
    assert ("r4" in rover.steps) != late, "too old a frame moves nothing"
    assert late == any("old (parameter frame_age)" in said for said in rover.reports)


def deciding_on_the_move(action: str = "move forward large") -> Rover:
    """A robot in motion, whose next decision is under way."""
    rover = steady(action, takes=0.3, settings=Settings(lead_time=0.6))
    rover.until(lambda: rover.navigator.status.state == "ready" and rover.deciding is not None)
    return rover


STOPS: dict[str, Event] = {
    "e_stop": EStop(True),
    "stop": Instruction("stop"),
    "another": Instruction("find the door"),
}


@pytest.mark.parametrize("when", ["deciding", "waiting"])
@pytest.mark.parametrize("stop", STOPS)
def test_what_stops_the_robot_voids_what_was_decided_on_the_move(stop: str, when: str) -> None:
    rover = deciding_on_the_move()
    if when == "waiting":  # its words are there, and the motion has not ended
        rover.until(lambda: rover.deciding is None)
        assert rover.navigator.moving
    steps = len(rover.steps)
    rover.on(STOPS[stop])
    assert not rover.navigator.moving
    if rover.deciding is not None:
        rover.say(rover.deciding[1])
    rover.deciding = math.inf, "none", None  # type: ignore[assignment]
    rover.on(EStop(False))
    rover.on(Instruction(BOX if stop != "another" else "find the door"))
    assert drives(rover.run(3.0)) == [] and len(rover.steps) == steps


def test_the_targets_stop_does_not_wait_for_the_motion() -> None:
    rover = deciding_on_the_move()
    rover.answer = lambda seen: "stop"
    rover.until(lambda: rover.deciding is None)
    assert not rover.navigator.moving and rover.navigator.status.detail == "stop"
    assert drives(rover.run(1.0)) == []


def test_odometry_that_goes_missing_ends_both_the_motion_and_what_follows_it() -> None:
    rover = deciding_on_the_move()
    steps = len(rover.steps)
    rover.odometry = False
    rover.run(3.0)
    assert len(rover.steps) == steps and rover.base.stands
    assert any("odometry is missing" in said for said in rover.reports)


def test_a_frame_of_the_move_whose_place_is_not_known_moves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rover = deciding_on_the_move()
    steps = len(rover.steps)
    monkeypatch.setattr(Track, "at", lambda self, time: None)
    rover.until(lambda: not rover.navigator.moving)
    rover.deciding = math.inf, "none", None  # type: ignore[assignment]
    rover.run(1.0)
    assert len(rover.steps) == steps and "on the move" in rover.reports[-1]


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_camera_whose_clock_is_set_on_the_move_moves_nothing(ahead: float) -> None:
    rover = steady("move forward large", takes=0.3, settings=Settings(lead_time=0.6))
    rover.until(lambda: rover.navigator.status.state == "moving")
    rover.camera_ahead = ahead
    steps = len(rover.steps)
    rover.run(6.0)
    assert len(rover.steps) == steps and rover.base.stands


def test_without_odometry_nobody_decides_on_the_move() -> None:
    rover = steady("search", settings=Settings(lead_time=0.6, odometry="off"))
    for _ in range(200):
        rover.run(0.05)
        assert rover.navigator.status.state != "ready"
    assert len(rover.steps) > 3


LARGE = Motion(Goal(0.9), Limits(), 0.0)


def test_nothing_is_led_before_a_decision_was_made() -> None:
    assert LeadTime().seconds == 0.0


def test_most_actions_are_there_in_time_and_one_slow_decision_changes_little() -> None:
    lead = LeadTime()
    for seconds in (0.5, 0.6, 0.7, 0.8, 0.5, 0.6, 0.7, 30.0):
        lead.took(seconds)
    assert lead.seconds == 0.7


def test_what_was_long_ago_is_forgotten() -> None:
    lead = LeadTime()
    for seconds in [9.0] * REMEMBERED + [0.3] * REMEMBERED:
        lead.took(seconds)
    assert lead.seconds == 0.3


@given(st.lists(st.floats()), st.sampled_from([BY_ITSELF, 0.0, 0.3, MOST]))
def test_whatever_it_is_told_it_stays_within_its_bounds(took: list[float], set_to: float) -> None:
    lead = LeadTime()
    for seconds in took:
        lead.took(seconds)
    assert 0.0 <= lead.before_end(LARGE, set_to) <= min(LARGE.duration, MOST)
    assert set_to == BY_ITSELF or lead.before_end(LARGE, set_to) <= set_to


def test_by_itself_a_decision_begins_early_only_where_enough_of_it_falls_into_the_motion() -> None:
    most = LARGE.leads(MOST)
    for seconds, expected in ((0.1, 0.1), (most, most), (2 * most, most), (10 * most, 0.0)):
        lead = LeadTime()
        lead.took(seconds)
        assert lead.before_end(LARGE, BY_ITSELF) == pytest.approx(expected)
        assert lead.before_end(LARGE, 0.2) == 0.2, "what was set is not argued with"


def test_little_of_a_step_is_left_where_the_next_frame_is_taken() -> None:
    for goal, rest in ((Goal(0.9), 0.18), (Goal(angle=1.0), BEND), (Goal(angle=0.1), 0.02)):
        motion = Motion(goal, Limits(), 0.0)
        left = goal.distance + goal.angle - motion._profile.at(motion.duration - motion.leads(9))[0]
        assert left == pytest.approx(rest)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf])
def test_what_is_no_time_is_not_learned_from(seconds: float) -> None:
    lead = LeadTime()
    lead.took(seconds)
    assert lead.seconds == 0.0
