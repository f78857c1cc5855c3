"""The navigator's decisions: who may move the robot, what stops it, and how it goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.events import (
    Announce,
    Drive,
    Effect,
    EStop,
    Event,
    Halt,
    Hold,
    Instruction,
    Odometry,
    Report,
    Show,
    Tick,
    Words,
)
from edge_cloud_spec.nav.motion import Limits, Pose, Velocity
from edge_cloud_spec.nav.navigator import Navigator, Settings
from edge_cloud_spec.nav.status import Status

FORWARD = "action: move forward large;"


def words(text: str, request: str = "r1", position: int = 0, **changes: object) -> Words:
    given = {"verified": True, "finished": False, "stamp": 0, "age": 0.2, "count": 4}
    return Words(request=request, position=position, text=text, **(given | changes))  # type: ignore[arg-type]


class Drill:
    """A navigator and its clock; ``moves`` tells whether an event made it move."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.navigator, self.now = Navigator(settings), 50.0

    def on(self, event: Event, after: float = 0.0) -> list[Effect]:
        self.now += after
        return self.navigator.on(event, self.now)

    def run(self, seconds: float) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(round(seconds / 0.05)):
            effects += self.on(Tick(), 0.05)
        return effects

    @property
    def status(self) -> str:
        return str(self.navigator.status)


def drives(effects: list[Effect]) -> list[Velocity]:
    return [effect.velocity for effect in effects if isinstance(effect, Drive)]


def reports(effects: list[Effect]) -> str:
    return " ".join(effect.problem for effect in effects if isinstance(effect, Report))


def test_an_action_starts_at_its_delimiter_and_the_reason_follows() -> None:
    drill = Drill()
    assert drill.on(words("action: move forward")) == []
    effects = drill.on(words(" large;", position=4))
    assert any(isinstance(effect, Announce) and effect.goal.distance == 0.9 for effect in effects)
    assert drill.status == "moving r1 move forward large" and drives(effects)
    assert drill.on(words(" reason: it is far;", position=8, finished=True)) == []
    effects = drill.run(2.5)
    assert drill.status == "idle r1 done: move forward large"
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
    assert drill.status.startswith("idle r1 refused") and drill.navigator.counts["refused"] == 1


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
    assert not drives(effects) and "synchronize" in reports(effects)
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
    assert drill.status == "stopped r1 e_stop is on"
    assert not drives(drill.run(1.0) + drill.on(words(FORWARD, "r2")) + drill.run(1.0))
    assert isinstance(drill.on(EStop(True))[0], Halt), "pressed again it is said again"


def test_after_the_release_only_a_new_decision_moves() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    drill.on(words("action: move", "r2", age=0.1), 0.5)
    drill.on(EStop(True), 0.1)
    drill.on(EStop(False), 1.0)
    assert drill.status == "idle r1 released"
    assert not drives(drill.run(0.5))
    assert not drives(drill.on(words(" forward large;", "r2", 4))), "begun before the stop"
    late = drill.on(words(FORWARD, "r3", age=0.55))
    assert not drives(late) and "before the robot was stopped" in reports(late)
    assert drives(drill.on(words(FORWARD, "r4", age=0.1)))


def test_the_word_stop_stops_until_the_next_instruction() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    assert isinstance(drill.on(Instruction("Stop"))[0], Halt)
    assert not drives(drill.run(0.5) + drill.on(words(FORWARD, "r2", age=0.0)))
    drill.on(Instruction("find the red chair"))
    drill.now += 0.5
    assert drives(drill.on(words(FORWARD, "r3", age=0.1)))


def test_an_instruction_does_not_release_the_e_stop() -> None:
    drill = Drill()
    drill.on(EStop(True))
    drill.on(Instruction("find the red chair"))
    drill.on(Hold("x"))
    drill.on(Hold(""))
    assert not drives(drill.on(words(FORWARD), 1.0))


def test_the_action_stop_ends_a_motion_and_says_so() -> None:
    drill = Drill()
    drill.on(words(FORWARD))
    effects = drill.on(words("action: stop;", "r2"), 0.3)
    assert isinstance(effects[0], Halt) and drill.status == "idle r2 stop"
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


def test_odometry_that_goes_missing_stops_the_motion() -> None:
    drill = Drill()
    drill.on(Odometry(Pose(), 0))
    drill.on(words(FORWARD))
    effects = drill.run(1.0)
    assert "odometry is missing" in reports(effects) and not drill.navigator.moving
    assert "odometry is missing" in reports(drill.on(words(FORWARD, "r2")))


def test_required_odometry_that_never_came_moves_nothing() -> None:
    assert not drives(Drill(Settings(odometry="required")).on(words(FORWARD)))


def test_odometry_that_is_not_a_number_is_not_used() -> None:
    drill = Drill()
    assert "not a number" in reports(drill.on(Odometry(Pose(float("nan")), 0)))


def test_a_step_counts_from_where_its_frame_was_taken() -> None:
    drill = Drill(Settings(lead_time=0.5))
    drill.on(Odometry(Pose(), 1_000_000_000))
    drill.on(Odometry(Pose(x=0.2), 2_000_000_000))
    x, effects = 0.2, drill.on(words("action: move forward medium;", stamp=1_000_000_000))
    while drill.navigator.moving:
        x += 0.05 * drives(effects)[-1].vx
        drill.on(Odometry(Pose(x=x), 2_000_000_000))
        effects = drill.on(Tick(), 0.05)
    assert x == pytest.approx(0.45, abs=0.03)


def test_a_robot_that_was_carried_away_since_the_frame_does_not_move() -> None:
    drill = Drill()
    drill.on(Odometry(Pose(), 1_000_000_000))
    drill.on(Odometry(Pose(x=3.0), 9_000_000_000))
    effects = drill.on(words(FORWARD, stamp=1_000_000_000))
    assert not drives(effects) and "moved away" in reports(effects)


def test_the_next_decision_is_welcome_lead_time_before_the_end() -> None:
    drill = Drill(Settings(lead_time=0.6))
    drill.on(words(FORWARD))
    states = [effect.status.state for effect in drill.run(2.5) if isinstance(effect, Show)]
    assert states == ["ready", "idle"]


def test_a_status_is_read_back_from_its_line() -> None:
    for status in (Status("idle"), Status("moving", "r1", "move forward small")):
        assert Status.parse(str(status)) == status
    assert not Status.parse("stopped r1 e_stop is on").welcomes_decision
    with pytest.raises(ValueError, match="flying"):
        Status.parse("flying r1")


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
        assert all(abs(velocity.vx) <= Limits().speed for velocity in drives(effects))
