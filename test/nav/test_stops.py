"""After a stop, from any cause, only an instruction and a frame from after the release move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from helpers.drill import FORWARD, Drill, drives, reports, words
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.answer import action_of
from edge_cloud_spec.nav.events import (
    Effect,
    EStop,
    Event,
    Halt,
    Hold,
    Instruction,
    Odometry,
    Show,
    Tick,
    Words,
)
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.status import (
    FALLEN_HOLD,
    FOLLOWING,
    IMPLAUSIBLE_HOLD,
    OTHER_HOLD,
    START_HOLD,
    GoalStatus,
    NavigatorStatus,
)
from edge_cloud_spec.pilot.decision_loop import (
    SETTLE_S,
    WAS_STOPPED,
    Decide,
    DecisionLoop,
    Ended,
    Frame,
)
from edge_cloud_spec.pilot.decision_loop import Event as LoopEvent

CUP = "find the cup"
HOLDS: dict[Event, tuple[str, bool]] = {
    EStop(True): ("e_stop", True),
    EStop(False): ("e_stop", False),
    Hold("a parameter is wrong"): ("parameter", True),
    Hold(""): ("parameter", False),
    Hold("the navigator is not active", "active"): ("active", True),
    Hold("", "active"): ("active", False),
}
RELEASES = [EStop(False), Hold(""), Hold("", "active"), Instruction(CUP)]
stops = st.sampled_from(list(HOLDS))
STRANGER, STRANGER_LEFT = Hold("teleop publishes on cmd_vel", OTHER_HOLD), Hold("", OTHER_HOLD)
CAUSES = [
    Hold(why, cause)
    for cause in (OTHER_HOLD, FALLEN_HOLD, IMPLAUSIBLE_HOLD, START_HOLD, "base")
    for why in ("it is so", "")
]


@pytest.fixture
def told() -> Drill:
    """A robot that was told to find the cup."""
    drill = Drill()
    drill.on(Instruction(CUP))
    return drill


@pytest.mark.parametrize("heard", [[CUP], ["stop", CUP]])
def test_a_navigator_that_starts_takes_instructions_and_moves_once_it_has_started(
    heard: list[str],
) -> None:
    drill = Drill()
    drill.navigator = Navigator(starting="listening for e_stop")
    for text in heard:
        assert "not taken" not in reports(drill.on(Instruction(text)))
    drill.on(Hold("", START_HOLD), 1.0)
    assert drives(drill.on(drill.current(FORWARD, "r1", age=0.0), 0.1)), "it was no stop"


def test_words_from_before_a_done_instruction_was_published_again_move_nothing(told: Drill) -> None:
    told.on(told.current("action: stop;", "r1", age=0.0, instruction=CUP), 0.1)
    old = told.current(FORWARD, "r2", age=0.0, instruction=CUP)
    told.on(Instruction(CUP), 0.1)
    new = told.current(FORWARD, "r3", age=0.0, instruction=CUP)
    assert not drives(told.on(old, 0.1)) and drives(told.on(new, 0.1))


def test_words_move_nothing_whose_count_of_stops_is_not_the_navigators(told: Drill) -> None:
    """A count of before a stop, or one that no navigator has said."""
    before = told.navigator.stop_latch.count
    for event in (EStop(True), EStop(False), Instruction(CUP)):
        told.on(event)
    now = told.navigator.stop_latch.count
    for number, count in enumerate((0, before, now + 1)):
        words = replace(told.current(FORWARD, f"r{number}", age=0.0), stops=count)
        assert not drives(told.on(words, 0.1)), count
    assert drives(told.on(told.current(FORWARD, "now", age=0.0), 0.1))


@given(
    st.lists(st.sampled_from([CUP, "stop", "find the door"]).map(Instruction) | stops, max_size=6),
    st.sampled_from([0.0, 0.25, 1.0, 4.0]),
)
def test_a_stop_that_was_decided_before_an_instruction_was_published_again_does_not_end_it(
    meanwhile: list[Event], before: float
) -> None:
    """Whatever happens in between: frames from before it, and up to its very moment, are older."""
    drill = Drill()
    drill.on(Instruction(CUP))
    late = drill.current("action: stop;", "late")
    for event in meanwhile:
        drill.on(event, 0.125)
    for release in RELEASES:
        drill.on(release)
    assert isinstance(drill.on(replace(late, age=0.125 + before), 0.125)[0], Halt)
    assert drives(drill.on(drill.current(FORWARD, "new", age=0.0), 0.125))
    drill.run(5.0)
    drill.on(drill.current("action: stop;", "found", age=0.0), 0.125)
    assert "is done" in reports(drill.on(drill.current(FORWARD, "more", age=0.0), 0.125))


clocks = st.sampled_from([0.0, 0.0, 0.4]) | st.floats(-4.0, 4.0)  # s that one is ahead


@given(clocks, clocks, st.integers(0, 2), st.floats(0.05, 3.0))
def test_a_stop_ends_the_instruction_that_its_frame_came_after_whatever_the_clocks_say(
    camera: float, base: float, again: int, later: float
) -> None:
    """Camera and base have clocks of their own; an instruction may be published again."""
    drill = Drill()

    def run(seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            stamp = round((1e9 + drill.now + base) * 1e9)
            drill.on(Odometry(Pose(), stamp, -base), 0.05)

    def picture(text: str, request: str) -> Words:
        stamp = round((1e9 + drill.now + camera) * 1e9)
        clock = {"stamp": stamp, "age": -camera, "camera_offset": camera - 0.03}
        return drill.current(text, request, **clock)

    def moves(said: Words, after: float) -> bool:
        run(after)
        return bool(drives(drill.on(replace(said, age=said.age + after))))

    run(4.0)
    drill.on(Instruction(CUP))
    for number in range(again):
        run(later)
        late = picture("action: stop;", f"late{number}")
        drill.on(Instruction(CUP))
        assert not moves(late, 0.1)
    run(later)
    assert moves(picture(FORWARD, "new"), 0.1)
    assert not moves(picture("action: stop;", "found"), 0.1)
    assert not moves(picture(FORWARD, "more"), 0.1)


def test_another_instruction_halts_the_motion_under_way_and_the_same_one_does_not(
    told: Drill,
) -> None:
    told.on(told.current(FORWARD, "r1", age=0.0), 0.1)
    told.run(0.2)
    told.on(Instruction(f" {CUP} "))
    assert told.navigator.moving
    told.on(Instruction("find the door"))
    assert not told.navigator.moving and told.run(0.3) == []
    assert told.status == "idle r1 3 another instruction came"


@pytest.mark.parametrize("told", [0, 1, 5])
def test_the_same_instruction_again_keeps_a_decision_and_any_other_event_does_not(
    told: int,
) -> None:
    def moves(*between: Event) -> bool:
        drill = Drill()
        drill.on(Instruction(CUP))
        decided = drill.current(FORWARD, "r1", age=0.0)
        for event in between:
            drill.on(event, 0.01)
        return bool(drives(drill.on(replace(decided, age=0.2), 0.1)))

    again = [Instruction(CUP)] * told
    assert moves(*again)
    other = [Instruction("find the door"), *again, Instruction(CUP)]
    assert not moves(*again, *other), "it was another for a while"
    for event in HOLDS:
        ends_none = not HOLDS[event][1]
        assert moves(*again, event, *again, *RELEASES) == ends_none
    assert not moves(*again, Instruction("stop"), *again, Instruction(CUP))


@pytest.mark.parametrize("name", ["", "-", "a b", "a\n", "a\tb", "a" * 201])
def test_words_of_a_request_that_is_not_one_word_are_dropped(name: str) -> None:
    drill = Drill()
    effects = drill.on(words(FORWARD, name))
    assert not drives(effects) and "no request's name" in reports(effects)
    assert drill.status == "idle - 0 started"


NO_INSTRUCTIONS = ["", " \n", "\x07 find it", "x" * 501]
events = st.one_of(
    stops, st.sampled_from(["stop", CUP, "find the door", *NO_INSTRUCTIONS]).map(Instruction)
)


@given(st.lists(events, min_size=1, max_size=12), st.floats(0.0, 0.4))
def test_whatever_stopped_it_the_newest_instruction_is_newer_than_the_last_release(
    schedule: list[Event], age: float
) -> None:
    drill, holding, armed = Drill(), set[str](), True
    for number, event in enumerate(schedule):
        before = drill.current(FORWARD, f"before {number}", age=0.0)
        said = reports(drill.on(event, 1.0))
        is_instruction = False
        if isinstance(event, Instruction):
            held, is_instruction = holding - {"told"}, event.text in (CUP, "find the door")
            assert ("was not taken" in said) == (bool(held) and event.text != "stop")
            if event.text == "stop":
                holding.add("told")
                armed = False
            elif is_instruction and not held:
                armed, holding = True, set()
        else:
            cause, on = HOLDS[event]
            (holding.add if on else holding.discard)(cause)
            armed = armed and not on
        assert not drives(drill.on(replace(before, request=f"b{number}"), 0.125)) or armed
        drill.on(Tick(), 0.6)  # a motion under way ends by its gap
        moved = drives(drill.on(drill.current(FORWARD, f"r{number}", age=age), 0.5))
        assert not moved or (armed and not holding)
        assert moved or not (armed and not holding and is_instruction)
        if not armed and not holding:
            assert "publish an instruction" in drill.status


@pytest.mark.parametrize("release", [EStop(False), Instruction(CUP)])
def test_a_frame_from_before_the_last_release_moves_nothing_whatever_count_it_says(
    told: Drill, release: Event
) -> None:
    """Its drafter heard the count first, and the frame lay in a queue."""
    told.on(EStop(True), 0.1)
    if isinstance(release, Instruction):
        told.on(EStop(False), 0.1)
        told.on(release, 1.0)
    else:
        told.on(release, 1.0)
        told.on(Instruction(CUP), 0.0)
    effects = told.on(told.current(FORWARD, "old", age=0.5), 0.4)
    assert not drives(effects + told.run(0.5)) and "before the robot was" in reports(effects)
    assert drives(told.on(told.current(FORWARD, "new", age=0.1)))


@pytest.mark.parametrize("first", ["instruction", "name"])
def test_words_move_only_under_the_name_that_the_drafter_gave_to_the_instruction_heard_last(
    first: str,
) -> None:
    """The same words of the same instruction under a forged name, an old one and none do not."""
    navigator, moved = Navigator(), list[str]()
    events: list[Event] = [Instruction(CUP), GoalStatus(FOLLOWING, CUP, goal_id="a-1")]
    again: list[Event] = [Instruction(CUP), GoalStatus(FOLLOWING, CUP, goal_id="a-2")]

    def tell(name: str, now: float) -> None:
        said = words(FORWARD, f"{name}{now}", stops=navigator.stops, instruction=CUP, age=0.0)
        if drives(navigator.on(replace(said, goal_id=name), now)):
            moved.append(f"{name} at {now:g}")
            navigator.on(Tick(), now + 2.0)  # it ends by its gap

    for now, orders in enumerate((events, again), 1):
        for event in orders if first == "instruction" else reversed(orders):
            navigator.on(event, 10.0 * now)
        for place, name in enumerate(("forged", "", CUP, "a-1", "a-2")):
            tell(name, 10.0 * now + 0.1 + place)
    navigator.on(GoalStatus("given_up", CUP, "why", "a-2"), 30.0)
    navigator.on(Instruction("find the door"), 30.0)
    for name in ("a-1", "a-2"):
        tell(name, 31.0)
    navigator.on(GoalStatus(FOLLOWING, "find it", goal_id="a-3"), 32.0)  # of an instruction before
    tell("a-3", 33.0)
    assert moved == ["a-1 at 13.1", "a-2 at 24.1"]
    stop = words("action: stop;", "last", instruction=CUP)
    assert isinstance(navigator.on(stop, 34.0)[0], Halt), "to stop is right whoever says it"


BOX = "find the red box"
Order = bool | str | Hold  # of e_stop, an instruction, or what the navigator alone hears


class Graph:
    """The loop, a navigator, and what is under way to each; ``said`` is the loop's last status.

    The navigator receives what the loop says of its goals last of all."""

    def __init__(self, orders: dict[str, list[Order]]) -> None:
        self.now, self.said = 100.0, GoalStatus("idle")
        self.goals: list[GoalStatus] = []
        self.loop: DecisionLoop = DecisionLoop()
        self.navigator, self._statuses = Navigator(stops=7), [NavigatorStatus("idle", stops=7)]
        self.queues: dict[tuple[str, str], list[Order]] = {}
        for channel in ("loop", "navigator"):
            self._tell(channel, BOX)
            for sender, said in orders.items():
                if channel == "navigator" or not isinstance(said[0], Hold):
                    self.queues[channel, sender] = list(said)
        self.deliver(("status", ""))

    @property
    def open(self) -> list[tuple[str, str]]:
        """From whom a message can come next."""
        return [key for key, left in self.queues.items() if left] + (
            [("status", "")] if self._statuses else []
        )

    def deliver(self, key: tuple[str, str]) -> None:
        self.now += 0.001
        if key[0] == "status":
            status = self._statuses[-1]  # latched, depth 1
            self._statuses.clear()
            self.hear(status)
        else:
            self._tell(key[0], self.queues[key].pop(0))

    def _tell(self, channel: str, order: Order) -> None:
        event = EStop(order) if isinstance(order, bool) else order
        event = Instruction(event) if isinstance(event, str) else event
        if channel == "loop":
            self.hear(event)
            return
        shown = self.navigator.on(event, self.now)
        self._statuses += [each.status for each in shown if isinstance(each, Show)]

    def hear(self, event: LoopEvent) -> None:
        for action in self.loop.on(event, self.now):
            if isinstance(action, GoalStatus):
                self.said = action
                self.goals.append(action)

    def conclude(self) -> str:
        """What it has come to once nothing is under way any more."""
        for _ in range(3):
            self.now += SETTLE_S
            self.hear(Tick())
        self.hear(Frame(b"frame"))
        decide = self.loop.take("r1", self.now)
        if decide is not None:
            assert decide.stops == self.navigator.stops
            assert self.said == GoalStatus("following", decide.instruction, "", decide.goal_id)
            assert not drives(self.name_goals(decide)), "its goal was not named yet"
            assert drives(self.name_goals(replace(decide, request="r2")))
            return f"decides on {decide.instruction}"
        assert self.said.state != "following", "it stands, and says that it follows"
        assert not self.loop.instruction
        return str(self.said)

    def name_goals(self, decide: Decide) -> list[Effect]:
        """What the navigator makes of the decision's words; then it receives the goals' names."""
        given = {"stops": decide.stops, "goal_id": decide.goal_id, "age": 0.0}
        effects = self.navigator.on(words(FORWARD, decide.request, **given), self.now)
        for goal in self.goals:
            self.navigator.on(goal, self.now)
        return effects


def every_order(orders: dict[str, list[Order]], taken: tuple[int, ...] = ()) -> Iterator[str]:
    """What each order of deliveries that begins so comes to."""
    graph = Graph(orders)
    for at in taken:
        graph.deliver(graph.open[at])
    while graph.open:
        for other in range(1, len(graph.open)):
            yield from every_order(orders, (*taken, other))
        taken = (*taken, 0)
        graph.deliver(graph.open[0])
    yield graph.conclude()


SCRIPTS: dict[str, dict[str, list[Order]]] = {
    "instruction after a release": {"e_stop": [True, False], "operator": [CUP]},
    "the same one again": {"e_stop": [True, False], "operator": [BOX]},
    "stop by another": {"guard": ["stop"], "operator": [CUP]},
    "instruction after a hold": {"bystander": [STRANGER, STRANGER_LEFT], "operator": [CUP]},
    "the same one after it": {"bystander": [STRANGER, STRANGER_LEFT], "operator": [BOX]},
    "a hold that comes again": {"bystander": [STRANGER, STRANGER_LEFT] * 2, "operator": [CUP]},
}
HELD = f"{STRANGER.why}; publish the instruction again once that is over"


@pytest.mark.parametrize("script", SCRIPTS)
def test_in_every_order_a_decision_is_due_or_the_refusal_is_said(script: str) -> None:
    ends = Counter(every_order(SCRIPTS[script]))
    said = SCRIPTS[script]["operator"][0]
    assert ends.pop(f"decides on {said}") > 10
    assert set(ends) <= {
        "stopped e_stop; publish the instruction again to go on",
        f"failed {said}: {WAS_STOPPED}",
        "stopped told to stop",
        f"stopped {HELD}",
        f"failed {HELD}",
    }
    assert ends.total() > 10, "some overtake each other at one node only"


@pytest.mark.parametrize("holds", [[STRANGER], [STRANGER, STRANGER_LEFT, STRANGER]])
@pytest.mark.parametrize("said", [BOX, CUP])
def test_in_every_order_of_a_hold_that_stays_the_reason_is_said(
    holds: list[Order], said: str
) -> None:
    ends = Counter(every_order({"bystander": holds, "operator": [said]}))
    assert ends.total() > 10 and set(ends) <= {f"stopped {HELD}", f"failed {HELD}"}


@given(st.lists(st.sampled_from([*HOLDS, *CAUSES, Instruction(CUP), Instruction("stop")])))
def test_a_status_refuses_instructions_by_its_code_when_the_navigator_does(
    events: list[Event],
) -> None:
    """Whatever holds it, and in whatever order it came and went."""
    drill = Drill()
    drill.navigator = Navigator(starting="listening for e_stop")
    for event in events:
        drill.on(event)
        navigator = drill.navigator
        refused = "not taken" in reports(navigator.on(Instruction(CUP), drill.now))
        assert navigator.status.refuses_instructions == refused


def test_a_robot_that_is_told_the_same_each_second_decides_and_moves() -> None:
    """As by ``ros2 topic pub --rate 1``, where a decision takes a second and a half."""
    graph = Graph({"operator": [BOX] * 9})
    for number in range(3):
        graph.hear(Frame(bytes([number])))
        decide = graph.loop.take(f"r{number}", graph.now)
        assert decide is not None
        for channel in ("loop", "navigator", "loop", "navigator", "status"):
            graph.now += 0.375
            graph.deliver((channel, "" if channel == "status" else "operator"))
        assert graph.loop.deciding
        graph.hear(Ended(action_of(FORWARD)))
        said = words(FORWARD, decide.request, stops=decide.stops, goal_id=decide.goal_id)
        if number == 0:
            graph.navigator.on(graph.goals[-1], graph.now)
        assert drives(graph.navigator.on(replace(said, age=1.9), graph.now))
        graph.navigator.on(Tick(), graph.now + 0.6)  # the motion ends by its gap
        graph.hear(graph.navigator.status)
