"""A mission ends: found, not found, blocked, given up; never by what does not belong to it."""

from __future__ import annotations

from itertools import count

import pytest
from helpers.drill import Drill
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.answer import Action, every_action
from edge_cloud_spec.nav.events import Effect, EStop, Instruction, Odometry, Show, Tick
from edge_cloud_spec.nav.mission import (
    Began,
    Decided,
    End,
    Event,
    Failed,
    Mission,
    MissionSettings,
    concluded,
    frames_all_around,
)
from edge_cloud_spec.nav.motion import Steps
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.status import Status

BALL = "find the yellow ball"
SEARCH, FORWARD = Action("search"), Action("move", "forward", "large")
SEEN = frames_all_around(Steps().search)


class Story:
    """A mission that hears of one decision after the other, and of the navigator's statuses."""

    def __init__(self, settings: MissionSettings | None = None) -> None:
        self.mission, self.now, self.ends = Mission(settings), 50.0, list[End]()
        self._requests = count()
        self.on(Instruction(BALL))

    def on(self, *events: Event, after: float = 1.0) -> list[End]:
        for event in events:
            self.now += after
            end = self.mission.on(event, self.now)
            self.ends += [] if end is None else [end]
        return self.ends

    def decide(self, action: Action | None, *details: str) -> str:
        """A decision with this action, whose motion ended with these details."""
        request = f"r{next(self._requests)}"
        self.on(Began(request, BALL), Decided(request, action))
        for detail in details:
            self.on(Status("moving", request, str(action)), Status("idle", request, detail))
        return request

    def fail(self, why: str = "garbage", by_link: bool = False) -> None:
        request = f"r{next(self._requests)}"
        self.on(Began(request, BALL), Failed(request, why, by_link))


def test_a_decision_that_is_told_twice_counts_once() -> None:
    story = Story(MissionSettings(failed_after=3))
    for action in (None, None):
        request = story.decide(action)
        story.on(Decided(request, action), Decided(request, action))
    assert story.ends == []
    story.decide(None)
    assert story.ends[0].state == "given_up"


def test_a_robot_that_was_stopped_may_stand_elsewhere_and_is_blocked_anew() -> None:
    story = Story(MissionSettings(blocked_after=2))
    for _ in range(3):
        story.decide(FORWARD, "the way is blocked")
        story.on(Status("stopped", "r", "e_stop is on"))
    assert story.ends == []


def test_a_stop_that_the_target_decides_is_done() -> None:
    story = Story()
    story.decide(SEARCH, "done: search")
    story.decide(Action("stop"))
    assert [str(end) for end in story.ends] == [f"done {BALL}"]


@pytest.mark.parametrize(
    ("answer", "why", "event"),
    [
        ("action: stop; reason: th", "the link is lost", Decided("r", Action("stop"))),
        ("action: stop", "the link is lost", Failed("r", "the link is lost", True)),
        ("", "the link is lost", Failed("r", "the link is lost", True)),
        ("error; action: stop;", "the link is lost", Failed("r", "the link is lost", True)),
        ("error; action: stop;", "", Decided("r", None)),
        ("reason: a ball; action: stop;", "", Decided("r", Action("stop"))),
    ],
)
def test_a_verified_action_counts_whatever_became_of_the_rest(
    answer: str, why: str, event: Event
) -> None:
    assert concluded("r", answer, why, by_link=True) == event


def test_a_robot_that_is_held_says_why_until_it_is_released() -> None:
    mission = Mission()
    mission.on(Status("stopped", detail="parameter lead_time is -2"), 0.0)
    mission.on(Instruction(BALL), 1.0)
    assert mission.held == "the robot is held: parameter lead_time is -2"
    mission.on(Status("idle", detail="released"), 2.0)
    assert mission.held == ""


def test_searches_in_a_row_all_around_end_as_not_found() -> None:
    story = Story()
    for _ in range(SEEN - 1):
        story.decide(SEARCH, "done: search")
    assert not story.ends
    story.decide(SEARCH, "done: search")
    assert [str(end) for end in story.ends] == [
        f"not_found {BALL}: not seen on {SEEN} frames all around"
    ]


@pytest.mark.parametrize(("degrees", "frames"), [(48.0, 9), (-48.0, 9), (90.0, 5), (7.0, 53)])
def test_a_search_sees_all_around_and_once_more(degrees: float, frames: int) -> None:
    assert frames_all_around(degrees) == frames
    assert (frames - 1) * abs(degrees) >= 360 > (frames - 2) * abs(degrees)


def test_what_did_not_look_around_does_not_count_as_looked() -> None:
    """Failed or refused decisions, repeated statuses, turns that did not arrive, other motions."""
    story = Story(MissionSettings(blocked_after=1000, failed_after=1000))
    for _ in range(SEEN - 1):
        request = story.decide(SEARCH, "done: search")
    story.on(*[Status("idle", request, "done: search")] * 5)
    for _ in range(5):
        story.fail("the link is lost", by_link=True)
        story.fail()
        story.decide(None)
        story.on(Status("idle", story.decide(SEARCH), "refused: its frame is 12.0 s old"))
        story.decide(SEARCH, "search did not get where it should; is the way blocked?")
        story.on(Status("idle", "another", "done: search"))
    assert not story.ends
    story.decide(FORWARD, f"done: {FORWARD}")
    for _ in range(SEEN - 1):
        story.decide(SEARCH, "done: search")
    assert not story.ends, "it looked from another place"
    story.on(Status("stopped", "-", "e_stop is on"))
    story.decide(SEARCH, "done: search")
    assert not story.ends, "somebody stopped it, and may have turned it"


def test_motions_in_a_row_that_do_not_arrive_end_as_blocked() -> None:
    details = ("gave up move forward large: odometry is missing", "move forward large expired")
    story = Story()
    for detail in (*details, f"done: {FORWARD}", *details):
        story.decide(FORWARD, detail)
    assert not story.ends
    story.decide(FORWARD, "move forward large did not get where it should")
    assert [str(end) for end in story.ends] == [
        f"blocked {BALL}: 3 motions in a row did not arrive; the last: "
        "move forward large did not get where it should"
    ]


def test_the_cloud_out_of_reach_ends_nothing_before_the_time_is_over() -> None:
    story = Story()
    for _ in range(200):
        story.fail("the link is lost: connection refused", by_link=True)
    assert not story.ends and story.mission.trouble.startswith("the link is lost")
    story.on(Tick(), after=600.0)
    assert story.ends[0].state == "given_up" and "connection refused" in story.ends[0].why


@pytest.mark.parametrize("why", ["failed", "no action", "refused"])
def test_decisions_in_a_row_that_come_to_nothing_are_given_up(why: str) -> None:
    story = Story()
    for number in range(59):
        assert not story.ends
        if number == 29:
            story.decide(FORWARD, f"done: {FORWARD}")
        if why == "failed":
            story.fail("the prompts differ")
        elif why == "no action":
            story.decide(None)
        else:
            request = story.decide(FORWARD)
            story.on(Status("idle", request, "refused: its words are not verified"))
    assert [end.state for end in story.ends] == ["given_up"]
    assert "30 decisions" in story.ends[0].why


def test_turning_back_and_forth_ends_by_the_number_of_decisions() -> None:
    story = Story(MissionSettings(max_seconds=86_400.0))
    while not story.ends:
        for action in (SEARCH, SEARCH, FORWARD, Action("turn", "left", "small")):
            story.decide(action, f"done: {action}")
    assert str(story.ends[0]) == f"given_up {BALL}: not reached after 100 decisions"


def test_a_new_instruction_begins_anew_and_nothing_older_counts() -> None:
    story = Story()
    for _ in range(SEEN - 1):
        story.decide(SEARCH, "done: search")
    story.on(Began("old", BALL), Instruction("find the red box"))
    story.on(Decided("old", Action("stop")), Status("idle", "old", "done: search"))
    story.on(Began("late", BALL), Decided("late", Action("stop")), Tick(), after=100.0)
    assert not story.ends and story.mission.instruction == "find the red box"


@pytest.mark.parametrize("stop", [Instruction("Stop."), EStop(True)])
def test_nothing_ends_after_a_stop(stop: Event) -> None:
    story = Story()
    story.on(Began("a", BALL), stop, Decided("a", Action("stop")))
    story.on(Tick(), after=700.0)
    assert not story.ends and not story.mission.instruction


REQUESTS = st.sampled_from(["a", "b", "c"])
ACTIONS = st.sampled_from([None, *every_action()])
DETAILS = st.sampled_from(
    ["done: search", f"done: {FORWARD}", "refused: old", "gave up", "", "stop"]
)
STATES = st.sampled_from(["idle", "ready", "moving", "stopped"])
SEQUENCE = st.lists(
    st.one_of(
        st.builds(Began, REQUESTS, st.sampled_from([BALL, "other"])),
        st.builds(Decided, REQUESTS, ACTIONS),
        st.builds(Failed, REQUESTS, st.just("why"), st.booleans()),
        st.builds(Status, STATES, REQUESTS, DETAILS),
        st.builds(Instruction, st.sampled_from([BALL, "other", "stop", " "])),
        st.builds(EStop, st.booleans()),
        st.just(Tick()),
    ),
    max_size=80,
)


@given(SEQUENCE)
def test_whatever_happens_an_instruction_ends_once_and_within_its_limits(
    events: list[Event],
) -> None:
    limits = MissionSettings(3, 2, 4, 12, 60.0)
    mission, now, followed, begun, decided = Mission(limits), 0.0, "", 0.0, 0
    for event in events:
        now += 1.0
        end = mission.on(event, now)
        if isinstance(event, Instruction):
            followed, begun, decided = event.text.replace("stop", "").strip(), now, 0
        if isinstance(event, EStop) and event.on:
            followed = ""
        decided += isinstance(event, Decided)
        if end is not None:
            assert end.instruction == followed and followed
            followed = ""
        assert mission.instruction == followed
        assert not followed or now - begun < limits.max_seconds


@given(st.lists(st.tuples(st.sampled_from(every_action()), st.booleans()), min_size=12))
def test_whatever_is_decided_a_mission_ends_by_its_decisions(
    decisions: list[tuple[Action, bool]],
) -> None:
    story = Story(MissionSettings(max_decisions=12, max_seconds=86_400.0))
    for action, arrives in decisions:
        story.decide(action, f"done: {action}" if arrives else "did not arrive")
    assert len(story.ends) == 1


@pytest.mark.parametrize(("held", "state"), [(False, "not_found"), (True, "blocked")])
def test_the_navigators_own_words_tell_a_turn_that_arrived_from_one_that_did_not(
    held: bool, state: str
) -> None:
    drill, mission, ends = Drill(), Mission(), list[End]()
    mission.on(Instruction(BALL), drill.now)

    def run() -> list[Effect]:
        if held:  # odometry says that the base stays where it is; without it motions are timed
            drill.on(Odometry(Pose(0.0, 0.0, 0.0), round(drill.now * 1e9)))
        return drill.run(0.05)

    for number in range(SEEN):
        request = f"r{number}"
        mission.on(Began(request, BALL), drill.now)
        effects = run() + drill.on(drill.current("action: search;", request))
        while drill.navigator.moving:
            effects += run()
        for effect in effects:
            if isinstance(effect, Show) and (end := mission.on(effect.status, drill.now)):
                ends.append(end)
        mission.on(Decided(request, SEARCH), drill.now)  # the end of the words may come last
    assert [end.state for end in ends] == [state]
