"""The navigator's decisions: who may move the robot, what stops it, and how it goes on."""

from __future__ import annotations

import math

import pytest
from helpers.drill import FORWARD, Drill, drives, reports, words
from helpers.rover import Rover
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.answer import Action
from edge_cloud_spec.nav.events import (
    Announce,
    Drive,
    EStop,
    Event,
    Halt,
    Hold,
    Instruction,
    Odometry,
    Tick,
)
from edge_cloud_spec.nav.motion import PERIOD, Limits, Motion, Steps, goal_of
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import Settings
from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.nav.watchdog import Watchdog

LARGE = Action("move", "forward", "large")


def test_an_action_starts_at_its_delimiter_and_the_reason_follows() -> None:
    drill = Drill()
    assert drill.on(words("action: move forward")) == []
    effects = drill.on(words(" large;", position=4))
    assert any(isinstance(effect, Announce) and effect.goal.distance == 0.9 for effect in effects)
    assert drill.status == "moving r1 0 move forward large" and drives(effects)
    assert drill.on(words(" reason: it is far;", position=8, finished=True)) == []
    effects = drill.run(2.5)
    assert drill.status == "idle r1 0 done: move forward large"
    assert max(v.vx for v in drives(effects)) == pytest.approx(0.6)
    assert sum(isinstance(effect, Halt) for effect in effects) == 1


@pytest.mark.parametrize(
    "text",
    ["Error: cannot move forward small;", "action: go forward;", "move forward small", "", "foo;"],
)
def test_text_that_is_not_an_action_moves_nothing_and_is_reported(text: str) -> None:
    drill = Drill()
    effects = drill.on(words(text, finished=True)) + drill.run(0.5)
    assert not drives(effects) and "r1 moves nothing" in reports(effects)
    assert drill.status.startswith("idle r1 0 refused") and drill.navigator.counts["refused"] == 1


def test_repeated_and_misplaced_words_are_dropped_and_counted() -> None:
    drill = Drill()
    drill.on(words("action: move"))
    drill.on(words("action: move"))
    drill.on(words(" large;", position=8))
    assert not drill.navigator.moving
    drill.on(words(" forward", position=4))
    drill.on(words(" large;", position=8))
    assert drill.navigator.moving
    counts = drill.navigator.counts
    assert counts["repeated"] == 1 and counts["out_of_order"] == 1


def test_a_repeated_action_is_not_carried_out_twice() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    drill.run(3.0)
    assert drives(drill.on(words(FORWARD)) + drill.run(0.5)) == []


def test_missing_words_end_the_request_without_motion() -> None:
    drill = Drill()
    drill.on(words("action: move"))
    effects = drill.on(words("forward large;", position=9, finished=True))
    assert "missing" in reports(effects) and not drill.navigator.moving


def test_an_older_request_is_dropped() -> None:
    drill = Drill()
    drill.on(words(FORWARD, "new", age=0.1))
    drill.run(3.0)
    assert drives(drill.on(words(FORWARD, "old", age=8.0))) == []
    drill.on(words("action: ", "newer", age=0.1))
    assert drives(drill.on(words(FORWARD, "new", age=0.0))) == []
    assert drill.navigator.counts["stale"] == 2


def test_a_stamp_from_the_future_is_refused_and_does_not_block_the_next() -> None:
    drill = Drill()
    effects = drill.on(words(FORWARD, "odd", age=-3600.0))
    assert not drives(effects) and "is 3600.0 s ahead; sync" in reports(effects)
    drill.now += 1.0
    assert drives(drill.on(words(FORWARD, "next", age=0.1)))


@pytest.mark.parametrize("age", [11.0, float("inf"), float("nan")])
def test_an_old_frame_moves_nothing(age: float) -> None:
    assert not drives(Drill().on(words(FORWARD, age=age)))


def test_unverified_words_move_nothing_unless_allowed() -> None:
    effects = Drill().on(words(FORWARD, verified=False))
    assert not drives(effects) and "not verified" in reports(effects)
    assert drives(Drill(Settings(allow_unverified=True)).on(words(FORWARD, verified=False)))


def test_one_unverified_piece_makes_the_answer_unverified() -> None:
    drill = Drill()
    drill.on(words("action: move", verified=False))
    assert not drives(drill.on(words(" forward large;", position=4)))


def test_e_stop_halts_at_once_and_latches() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    drill.run(0.5)
    assert isinstance(drill.on(EStop(True))[0], Halt)
    assert drill.status == "stopped r1 1 e_stop is on"
    assert not drives(drill.run(1.0) + drill.on(words(FORWARD, "r2")) + drill.run(1.0))
    assert isinstance(drill.on(EStop(True))[0], Halt), "pressed again it is said again"


def test_after_the_release_only_a_new_decision_moves() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    drill.on(words("action: move", "r2", age=0.1), 0.5)
    drill.on(EStop(True), 0.1)
    drill.on(EStop(False), 1.0)
    assert drill.status.startswith("stopped r1 2 released; publish an instruction")
    drill.on(Instruction("find it"))
    assert drill.status == "idle r1 3 released"
    assert not drives(drill.run(0.5))
    assert not drives(drill.on(words(" forward large;", "r2", 4))), "begun before the stop"
    late = drill.on(drill.current(FORWARD, "r3", age=0.55))
    assert not drives(late) and "before the robot was stopped" in reports(late)
    assert drives(drill.on(drill.current(FORWARD, "r4", age=0.1)))


def test_the_word_stop_stops_until_the_next_instruction() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    assert isinstance(drill.on(Instruction("Stop"))[0], Halt)
    assert not drives(drill.run(0.5) + drill.on(drill.current(FORWARD, "r2", age=0.0)))
    drill.on(Instruction("find the red chair"))
    drill.now += 0.5
    chair = {"instruction": "find the red chair"}
    assert drives(drill.on(drill.current(FORWARD, "r3", age=0.1, **chair)))


def test_an_instruction_does_not_release_the_e_stop() -> None:
    drill = Drill()
    drill.on(EStop(True))
    drill.on(Instruction("find the red chair"))
    drill.on(Hold("x"))
    drill.on(Hold(""))
    chair = {"instruction": "find the red chair"}
    assert not drives(drill.on(drill.current(FORWARD, "r1", **chair), 1.0))


def test_an_action_that_comes_in_motion_begins_at_its_end_and_the_newest_counts() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    assert drill.on(words("action: move backward small;", "r2", age=0.1), 0.5) == []
    assert drill.on(words("action: turn left small;", "r3", age=0.1), 0.5) == []
    assert drill.status == "moving r1 0 move forward large"
    effects = drill.run(2.0)
    begun = [effect.request for effect in effects if isinstance(effect, Announce)]
    assert begun == ["r3"] and drill.status == "idle r3 0 done: turn left small"


def test_the_action_stop_ends_a_motion_and_says_so() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    effects = drill.on(words("action: stop;", "r2"), 0.3)
    assert isinstance(effects[0], Halt) and drill.status == "idle r2 0 stop"
    assert not drives(drill.run(0.5))


def test_a_command_expires() -> None:
    drill = Drill(Settings(command_lifetime=0.5, limits=Limits(speed=0.1)))
    drill.on(words(FORWARD))
    effects = drill.run(1.0)
    assert "expired" in reports(effects) and not drill.navigator.moving
    last = max(effect.until for effect in effects if isinstance(effect, Drive))
    assert last <= 50.5, "no velocity command outlives its action"


def test_a_motion_is_not_taken_up_again_after_a_gap_between_ticks() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    drill.run(0.3)
    effects = drill.on(Tick(), 0.8)
    assert isinstance(effects[0], Halt) and not drives(effects + drill.run(0.5))


def test_the_next_decision_is_welcome_lead_time_before_the_end() -> None:
    rover = Rover(lambda seen: "move forward large", lambda n: 9.0, Settings(lead_time=0.4))
    rover.until(lambda: rover.navigator.moving)
    begun, planned = rover.now, Motion(goal_of(LARGE, Steps()), Limits(), 0.0).duration
    rover.until(lambda: rover.navigator.status.state == "ready")
    assert rover.now - begun == pytest.approx(planned - 0.4, abs=0.06)
    rover.until(lambda: rover.navigator.status.state == "idle")


def test_a_status_is_read_back_from_its_line() -> None:
    for status in (Status("idle"), Status("moving", "r1", "move forward small", 2**32)):
        assert Status.parse(str(status)) == status
    assert not Status.parse("stopped r1 7 e_stop is on").welcomes_decision
    for line in ("flying r1 7", "idle r1 done", "idle r1 -1 done", "idle"):
        with pytest.raises(ValueError, match=line.split()[0]):
            Status.parse(line)


def test_a_navigator_that_hangs_leaves_the_base_to_the_watchdog_within_its_step() -> None:
    drill = Drill()
    effects = drill.on(words("action: turn left small;")) + drill.run(0.1)
    drive = [effect for effect in effects if isinstance(effect, Drive)][-1]
    assert drill.now < drive.until <= drill.now + PERIOD
    dog = Watchdog(lambda repeat: None, grace=0.5)
    dog.feed(drive.until, drive.stop_by)
    assert dog.due(drill.now + PERIOD + 0.5), "half a second after the period"
    assert not dog.due(drill.now + PERIOD), "a tick may be late"
    assert drive.stop_by < drive.until + 0.5 and dog.due(drive.stop_by)
    covered = sum(effect.velocity.wz * PERIOD for effect in effects if isinstance(effect, Drive))
    held = drive.velocity.wz * (drive.stop_by - drill.now - PERIOD)
    assert math.degrees(covered + held) <= 1.5 * 7 + 5


events = st.one_of(
    st.just(Tick()),
    st.booleans().map(EStop),
    st.sampled_from(["stop", "find it"]).map(Instruction),
    st.builds(
        words,
        st.sampled_from([FORWARD, "action: turn", " left large;", "action: stop;", "forward;"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([0, 4]),
        verified=st.booleans(),
        age=st.floats(-1, 12),
        finished=st.booleans(),
    ),
    st.floats(-1, 1).map(lambda x: Odometry(Pose(x), 0)),
)


@given(st.lists(st.tuples(events, st.floats(0, 0.7)), max_size=40))
def test_whatever_happens_nothing_drives_while_stopped(schedule: list[tuple[Event, float]]) -> None:
    drill, stopped = Drill(), False
    for event, after in schedule:
        effects = drill.on(event, after)
        if isinstance(event, EStop):
            stopped = event.on
            assert not stopped or isinstance(effects[0], Halt)
        assert not (stopped and drives(effects))
        assert all(e.until <= drill.now + PERIOD for e in effects if isinstance(e, Drive))
        assert all(abs(velocity.vx) <= Limits().speed for velocity in drives(effects))
