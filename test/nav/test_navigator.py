"""The navigator's decisions: who may move the robot, what stops it, and how it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.bench.motion.base import STANDING, Base
from edge_cloud_spec.nav.budget import BEND, PERIOD
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
from edge_cloud_spec.nav.motion import Limits
from edge_cloud_spec.nav.navigator import Navigator, Settings
from edge_cloud_spec.nav.pose import Pose, Velocity
from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.nav.track import Track
from edge_cloud_spec.nav.watchdog import Watchdog

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

    def current(self, text: str, request: str, **changes: object) -> Words:
        """Words of a decision that has heard of every stop and release."""
        return words(text, request, **({"stops": self.navigator.stops} | changes))

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
    assert drill.status == "idle r1 2 released"
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
    stamp = 2_000_000_000
    while drill.navigator.moving:
        x, stamp = x + 0.05 * drives(effects)[-1].vx, stamp + 50_000_000
        drill.on(Odometry(Pose(x=x), stamp))
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
    for status in (Status("idle"), Status("moving", "r1", "move forward small", 2**32)):
        assert Status.parse(str(status)) == status
    assert not Status.parse("stopped r1 7 e_stop is on").welcomes_decision
    for line in ("flying r1 7", "idle r1 done", "idle r1 -1 done", "idle"):
        with pytest.raises(ValueError, match=line.split()[0]):
            Status.parse(line)


# Old decisions

OTHER = "find the cup"


@pytest.mark.parametrize("skew", [-0.4, 0.0, 0.4])
@pytest.mark.parametrize("step", [-2.0, 0.0, 0.2])
def test_a_decision_from_before_a_stop_moves_nothing_whatever_the_clocks_say(
    skew: float, step: float
) -> None:
    drill = Drill()
    old = drill.current(FORWARD, "old")
    drill.on(EStop(True), 0.1)
    between = drill.current(FORWARD, "between")
    drill.on(EStop(False), 0.1)
    for late in (old, between):
        age = 0.3 - skew + step  # camera clock ahead; ROS time stepped back
        effects = drill.on(replace(late, age=age), 0.1)
        assert not drives(effects + drill.run(0.5))
        assert drill.status.startswith(f"idle {late.request} 2 refused"), "the drafter may go on"
    assert drives(drill.on(drill.current(FORWARD, "new", age=0.05), 1.0))


def test_words_of_another_count_move_nothing_be_it_higher() -> None:
    drill = Drill()
    for stops in (1, 7, 2**63):
        assert not drives(drill.on(words(FORWARD, f"r{stops}", stops=stops)))
    restarted = Navigator(stops=12345)
    assert not drives(restarted.on(words(FORWARD, "r"), 10.0)), "for the one before it"


@pytest.mark.parametrize("hold", [EStop(True), Instruction("stop"), Hold("x"), EStop(False)])
def test_each_stop_and_each_release_counts_and_is_told(hold: Event) -> None:
    drill = Drill()
    counts, states = [0], []
    for event in (hold, hold, EStop(False), Hold(""), Instruction("find it")):
        states += [effect.status.stops for effect in drill.on(event) if isinstance(effect, Show)]
        counts.append(drill.navigator.stops)
    assert states == sorted(set(states)) and (states[-1] if states else 0) == counts[-1]
    assert counts[-1] == (0 if hold == EStop(False) else 3)


def test_words_for_another_instruction_move_nothing_once_one_was_heard() -> None:
    drill = Drill()
    drill.on(Instruction(f"  {OTHER} \n"))
    assert drives(drill.on(words(FORWARD, "r1", instruction=OTHER)))
    drill.run(3.0)
    drill.on(Instruction("find the door"))
    effects = drill.on(words(FORWARD, "r2", age=0.05, instruction=OTHER), 0.1)
    assert not drives(effects) and "another instruction" in reports(effects)
    assert drill.status.startswith("idle r2 0 refused")
    assert drives(drill.on(words(FORWARD, "r3", age=0.0, instruction="find the door"), 0.1))
    effects = drill.on(words("action: stop;", "r4", age=0.0, instruction=OTHER), 0.1)
    assert isinstance(effects[0], Halt), "to stop is right whoever says it"


def test_the_first_words_say_what_an_answer_was_decided_for() -> None:
    drill = Drill()
    drill.on(Instruction("find the door"))
    drill.on(words("action: move", instruction=OTHER))
    late = words(" forward large;", position=4, instruction="find the door")
    assert not drives(drill.on(late))


# Bad odometry


class Walk:
    """A navigator on the bench's base, with odometry that ``lie`` makes of time and true pose."""

    def __init__(self, action: str, lie: Callable[[float, Pose], Odometry | Pose | None]) -> None:
        self.base, self.problems = Base(lag=0.1, now=100.0), ""
        self.navigator, self.path, self.turn = Navigator(), 0.0, 0.0
        self.back = self.back_turn = 0.0
        self.still_at, self.begun, now = math.nan, math.nan, 100.0
        self.base.pose = Pose(5.0, 0.0, 0.0)
        effects: list[Effect] = []
        for tick in range(160):
            now += PERIOD
            self._pass(now)
            told = self.base.pose if tick < 20 else lie(now - self.begun, self.base.pose)
            if told is not None:
                told = told if isinstance(told, Odometry) else Odometry(told, int(now * 1e9))
                self.navigator.on(told, now)
            if tick == 20:
                self.begun = now
                said = words(f"action: {action};", stamp=int(now * 1e9), age=0.0)
                effects = self.navigator.on(said, now)
            else:
                effects = self.navigator.on(Tick(), now)
            self.problems += reports(effects)
            for effect in effects:
                self.base.obey(effect)

    def _pass(self, now: float) -> None:
        for vx, vy, wz, dt in self.base.run(now):
            self.path += math.hypot(vx, vy) * dt
            self.turn += abs(wz) * dt
            self.back, self.back_turn = min(self.back, vx), min(self.back_turn, wz)
            if max(abs(vx), abs(vy)) > STANDING[0] or abs(wz) > STANDING[1]:
                self.still_at = now - self.begun


LATE = 0.3  # s into the motion
LIES: dict[str, Callable[[float, Pose], Odometry | Pose | None]] = {
    "frozen": lambda t, p: Odometry(Pose(5.0), 100_000_000_000),
    "frozen_later": lambda t, p: p if t < LATE else Odometry(p, 101_300_000_000),
    "pose_frozen": lambda t, p: Pose(5.0),
    "restarted": lambda t, p: p if t < LATE else Pose(p.x - 5, p.y, p.yaw),
    "back": lambda t, p: p if t < LATE else Pose(p.x - 0.2, p.y, p.yaw - 0.3),
    "jump": lambda t, p: p if t < LATE else Pose(p.x + 3, p.y + 2, p.yaw),
    "aside": lambda t, p: p if t < LATE else Pose(p.x, p.y + 0.2, p.yaw + 0.3),
    "1e308": lambda t, p: p if t < LATE else Pose(1e308, -1e308, p.yaw),
    "nan": lambda t, p: p if t < LATE else Pose(math.nan, p.y, p.yaw),
    "a_tenth": lambda t, p: Pose(5.0 + 0.1 * (p.x - 5.0), p.y, 0.1 * p.yaw),
    "reversed": lambda t, p: Pose(10.0 - p.x, p.y, -p.yaw),
    "gone": lambda t, p: p if t < LATE else None,
}
SAYS = {
    "move forward small": (0.2, 0.0),
    "move forward large": (0.9, 0.0),
    "turn left small": (0.0, 7.0),
    "turn left large": (0.0, 48.0),
}


@pytest.mark.parametrize("action", SAYS)
@pytest.mark.parametrize("lie", LIES)
def test_a_step_keeps_its_bounds_and_direction_whatever_odometry_says(
    lie: str, action: str
) -> None:
    walk = Walk(action, LIES[lie])
    distance, angle = SAYS[action]
    assert walk.path <= (1.5 * distance + 0.05 if distance else 0.0)
    turns = 1.5 * angle + 5 if angle else math.degrees(BEND)
    assert math.degrees(walk.turn) <= turns + 0.1
    assert (walk.back_turn if angle else walk.back) >= 0.0
    if lie in ("gone", "frozen_later", "1e308", "nan"):
        assert walk.still_at < LATE + 0.5 + PERIOD or math.isnan(walk.still_at)
        assert "odometry is missing" in walk.problems or walk.still_at < LATE + 0.5
    if lie in ("jump", "restarted") and "large" in action:
        assert "odometry jumped" in walk.problems


def test_odometry_is_used_again_once_it_goes_on() -> None:
    drill = Drill()
    for stamp in (10, 10, 10):
        drill.on(Odometry(Pose(), stamp), 0.3)
    effects = drill.on(words(FORWARD, "r1"))
    assert "missing: its stamps do not go on" in reports(effects)
    drill.on(Odometry(Pose(), 11), 0.1)
    assert drives(drill.on(words(FORWARD, "r2", age=0.1)))


def test_stamps_that_go_back_are_late_until_nothing_else_comes() -> None:
    track = Track()
    for number in range(5):
        track.add(Pose(number), 1000 + number, 0.1 * number, 0.5)
    track.add(Pose(-1.0), 1002, 0.45, 0.5)
    assert track.newest == Pose(4) and track.silence(0.45) == pytest.approx(0.05)
    for number in range(8):  # the driver began anew
        track.add(Pose(y=number), number, 0.5 + 0.1 * number, 0.5)
    assert track.newest == Pose(y=7) and track.at(1004) == Pose(y=7)
    assert track.silence(1.2) == pytest.approx(0.0)


def test_two_stamps_in_turn_are_no_progress() -> None:
    track = Track()
    for number in range(40):
        track.add(Pose(), 1000 + number % 2, 0.1 * number, 0.5)
    assert track.silence(3.9) > 3.5 and track.hangs(3.9, 0.5)


# The watchdog


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
