"""The loop that decides: when, on which frame, for how long; what it says of an instruction."""

from __future__ import annotations

import pytest

from edge_cloud_spec.instruction import check_instruction
from edge_cloud_spec.nav.events import EStop, Instruction, Report, Tick
from edge_cloud_spec.nav.status import GoalStatus, Status
from edge_cloud_spec.pilot.decision_loop import (
    E_STOP_IS_ON,
    FULL,
    NONE,
    RELEASE_S,
    SETTLE_S,
    UNTIL_NEXT,
    Abandon,
    Answered,
    Decide,
    DecisionLoop,
    Effect,
    Ended,
    Frame,
    LoopSettings,
    Paused,
    StopAnswering,
)

IT = "find it"
SEARCH = "action: search;"


def followed(instruction: str = IT, number: int = 1) -> GoalStatus:
    return GoalStatus("following", instruction, goal_id=f"goal-{number}")


DONE = GoalStatus("done", IT, goal_id="goal-1")


def frame(name: str) -> Frame:
    return Frame(name.encode())


def following(*statuses: Status, explain: str = FULL, lag: float = 0.0) -> DecisionLoop:
    """A loop that follows an instruction since 0 s, and heard these statuses then."""
    loop: DecisionLoop = DecisionLoop(LoopSettings(explain, lag=lag))
    assert loop.on(Instruction(IT), 0.0) == [followed()]
    for status in statuses:
        loop.on(status, 0.0)
    return loop


def deciding(explain: str = FULL) -> DecisionLoop:
    """The decision r1 began at 1 s and is under way."""
    loop = following(Status("idle", stops=7), explain=explain)
    loop.on(frame("first"), 1.0)
    assert loop.take("r1", 1.0) == Decide("r1", IT, frame("first"), 7, "goal-1")
    return loop


# When, and on which frame


def test_a_decision_under_way_is_not_in_the_way_of_itself() -> None:
    loop = deciding()
    loop.on(frame("second"), 1.1)
    assert not loop.is_due(1.1 + 10 * SETTLE_S), "the navigator has not settled it, however long"


def test_the_next_is_due_on_a_frame_from_after_the_navigator_said_ready() -> None:
    loop = deciding()
    loop.on(Status("moving", "r1", stops=7), 2.0)
    loop.on(frame("too early"), 2.5)
    assert not loop.is_due(2.5)
    loop.on(Status("ready", "r1", stops=7), 3.0)
    assert not loop.is_due(3.0), "no frame from after that"
    loop.on(frame("moving"), 3.1)
    assert loop.is_due(3.1) and loop.take("r2", 3.1) is None, "one at a time"
    loop.on(Ended(SEARCH), 3.2)
    assert loop.take("r2", 3.2) == Decide("r2", IT, frame("moving"), 7, "goal-1")


def test_what_is_said_of_a_motion_that_goes_on_drops_no_frame() -> None:
    loop = deciding()
    loop.on(Ended(SEARCH), 2.0)
    loop.on(Status("ready", "r1", "search", 7), 3.0)
    loop.on(frame("moving"), 3.1)
    for detail in ("done: search", "search"):
        loop.on(Status("ready", "r1", detail, 7), 3.2)
    assert loop.take("r2", 3.2) == Decide("r2", IT, frame("moving"), 7, "goal-1")


def test_a_decision_that_began_on_the_move_is_the_only_one_until_it_is_settled() -> None:
    loop = deciding()
    loop.on(Status("ready", "r1", stops=7), 3.0)
    loop.on(frame("moving"), 3.1)
    loop.on(Ended(SEARCH), 3.2)
    assert loop.take("r2", 3.2)
    loop.on(Status("idle", "r1", "done: search", 7), 4.0)
    loop.on(frame("at rest"), 4.1)
    assert not loop.is_due(4.1)
    loop.on(Status("idle", "r2", "refused: its frame is too old", 7), 4.2)
    assert not loop.is_due(4.2), "the frame is from before that"
    loop.on(frame("later"), 4.3)
    assert loop.is_due(4.3)


def test_a_refused_decision_is_followed_by_another() -> None:
    loop = deciding()
    loop.on(Status("idle", "r1", "refused: its frame is from before", 8), 2.0)
    loop.on(Ended(SEARCH), 2.0)
    loop.on(frame("second"), 2.1)
    assert loop.take("r2", 2.1) == Decide("r2", IT, frame("second"), 8, "goal-1")


def test_without_a_navigator_no_answer_is_in_the_way_of_the_next() -> None:
    loop = following()
    loop.on(frame("first"), 0.1)
    assert loop.take("r1", 0.1)
    loop.on(frame("second"), 0.2)
    assert not loop.is_due(0.2)
    loop.on(Ended(SEARCH), 0.3)
    assert loop.take("r2", 0.3)
    loop.on(Ended(SEARCH), 0.4)
    assert not loop.is_due(0.4), "a frame is decided on once"


def test_a_frame_from_before_the_instruction_is_not_decided_on() -> None:
    loop: DecisionLoop = DecisionLoop()
    loop.on(frame("before"), 0.0)
    loop.on(Instruction(IT), 0.1)
    assert not loop.is_due(0.2)
    loop.on(frame("after"), 0.3)
    assert loop.is_due(0.3)


def test_a_decision_that_an_idle_navigator_did_not_receive_is_made_anew() -> None:
    loop = deciding()
    loop.on(Ended(SEARCH), 2.0)
    loop.on(frame("second"), 2.1)
    assert not loop.is_due(2.0 + SETTLE_S) and loop.is_due(2.1 + SETTLE_S)


@pytest.mark.parametrize("state", ["idle", "stopped"])
def test_a_frame_from_before_a_stop_or_a_release_is_not_decided_on(state: str) -> None:
    """It would be told with a count of stops that is newer than the frame."""
    loop = following(Status("idle", stops=7))
    loop.on(frame("before"), 1.0)
    loop.on(Status(state, stops=8), 1.5)
    loop.on(frame("held"), 1.7)
    loop.on(Status("idle", "-", "released", 9), 2.0)
    assert loop.take("r1", 2.0) is None
    loop.on(frame("after"), 3.0)
    loop.on(Status("idle", "-", "another detail", 9), 3.1)  # no other count
    assert loop.take("r1", 3.1) == Decide("r1", IT, frame("after"), 9, "goal-1")


@pytest.mark.parametrize("lag", [0.0, 0.25, 1.0, 5.0])
@pytest.mark.parametrize("period", [0.25, 1.0])
def test_one_that_is_told_often_decides_by_the_count_of_when_its_frame_was_taken(
    period: float, lag: float
) -> None:
    """With pictures that come later than it is told again, too."""
    loop = following(Status("idle", "r0", "released", 7), lag=lag)
    decided, step = [], 0.125
    for number in range(1, 80):
        now = number * step
        if now % period == 0.0:
            loop.on(Instruction(IT), now)
            loop.on(Status("idle", "r0", "released", 7 + int(now / period)), now)
        loop.on(frame(str(now - lag)), now)
        decide = loop.take(f"r{number}", now)
        if decide is not None:
            decided.append(decide)
            loop.on(Ended(abandoned=True), now)
    assert len(decided) >= 2
    for decide in decided:
        assert decide.stops == 7 + int(float(decide.frame.jpeg) / period)


def test_a_frame_that_was_on_its_way_when_the_robot_came_to_rest_is_dropped() -> None:
    loop = following(Status("idle", stops=7), lag=2.0)
    loop.on(frame("on its way"), 1.9)
    assert loop.take("r1", 1.9) is None
    loop.on(frame("at rest"), 2.0)
    assert loop.take("r1", 2.0) == Decide("r1", IT, frame("at rest"), 7, "goal-1")


@pytest.mark.parametrize(
    ("ended", "pause"),
    [
        (Ended(SEARCH), 0.0),
        (Ended("reason: nothing;"), 1.0),
        (Ended("", "the cloud is gone", by_link=True), 1.0),
        (Ended("", "the cloud is full", retry_after=4.0), 4.0),
        (Ended(SEARCH, "the cloud is gone"), 1.0),
        (Ended(abandoned=True), 0.0),
    ],
)
def test_a_decision_that_came_to_nothing_is_followed_by_a_pause(ended: Ended, pause: float) -> None:
    loop = following()
    loop.on(frame("first"), 1.0)
    loop.take("r1", 1.0)
    loop.on(ended, 2.0)
    loop.on(frame("second"), 2.0)
    assert loop.is_due(2.0 + pause) and (not pause or not loop.is_due(1.9 + pause))


# How much of an answer


@pytest.mark.parametrize(
    ("explain", "words", "due", "enough"),
    [
        (NONE, SEARCH, False, True),
        (UNTIL_NEXT, SEARCH, False, False),
        (UNTIL_NEXT, SEARCH, True, True),
        (FULL, SEARCH, True, False),
        (NONE, "reason: it is near", True, False),
        (UNTIL_NEXT, "reason: it is near", True, False),
    ],
)
def test_an_answer_ends_early_only_behind_its_action_and_only_where_it_may(
    explain: str, words: str, due: bool, enough: bool
) -> None:
    loop = deciding(explain)
    loop.settings = LoopSettings(FULL)  # a decision keeps the settings of its beginning
    effects = loop.on(Answered(words), 1.5)
    if due:
        loop.on(Status("ready", "r1", stops=7), 2.0)
        effects += loop.on(frame("second"), 2.5)
        assert loop.is_due(2.5)
        effects += loop.on(frame("third"), 2.6)
    assert effects == [StopAnswering()] * enough, "once"


# What the operator says


@pytest.mark.parametrize(
    ("event", "why", "said"),
    [
        (
            Instruction("stop"),
            "another instruction came",
            GoalStatus("stopped", detail="told to stop"),
        ),
        (Instruction("find that"), "another instruction came", followed("find that", 2)),
        (
            EStop(True),
            "e_stop",
            GoalStatus("stopped", detail="e_stop; publish the instruction again to go on"),
        ),
        (Paused("not active"), "not active", GoalStatus("inactive", detail="not active")),
        (Status("idle", "-", "released", 8), "the robot was stopped or released", None),
    ],
)
def test_what_stops_or_replaces_an_instruction_ends_its_decision(
    event: Instruction | EStop | Paused | Status, why: str, said: GoalStatus | None
) -> None:
    loop = deciding()
    assert loop.on(event, 2.0) == [Abandon(why), *([said] if said else [])]
    assert loop.on(Ended(SEARCH, abandoned=True), 2.1) == []


def test_the_instruction_that_is_followed_changes_nothing_when_it_is_said_again() -> None:
    loop = deciding()
    assert loop.on(Instruction(f" {IT}\n"), 1.1) == [followed()]
    assert loop.on(Status("idle", stops=8), 1.1) == [], "the navigator counts it"
    assert loop.on(Ended("action: stop;"), 1.2) == [DONE], "of that decision"
    assert not loop.instruction


def test_an_instruction_that_cannot_be_followed_fails_in_words() -> None:
    loop = following()
    problem = "the instruction is empty; say what to find"
    assert loop.on(Instruction(" "), 1.0) == [
        Report(problem),
        GoalStatus("failed", detail=problem),
    ]
    assert not loop.instruction and check_instruction(IT) == IT


def test_an_instruction_under_e_stop_waits_for_a_release_that_it_may_have_overtaken() -> None:
    def stopped() -> DecisionLoop:
        loop: DecisionLoop = DecisionLoop()
        assert loop.on(EStop(True), 0.0) == loop.on(EStop(True), 0.5) == []
        assert loop.on(Instruction(IT), 1.0) == []
        return loop

    loop = stopped()
    assert loop.on(EStop(False), 1.0 + RELEASE_S) == [followed()]
    loop = stopped()
    assert loop.on(Tick(), 1.0 + RELEASE_S) == []
    assert loop.on(Tick(), 1.1 + RELEASE_S) == [GoalStatus("failed", detail=E_STOP_IS_ON)]
    assert loop.on(EStop(False), 2.0) == [] and not loop.instruction


# What is said of it


def test_a_trouble_is_said_with_the_instruction_while_it_lasts() -> None:
    loop = deciding()
    lines: list[Effect] = loop.on(Ended("", "no decision: the cloud is gone", by_link=True), 2.0)
    loop.blind = "no picture"
    lines += loop.on(Tick(), 3.0) + loop.on(Tick(), 4.0)
    loop.blind = ""
    lines += loop.on(Status("stopped", "-", "e_stop", 7), 5.0)
    assert [str(line) for line in lines] == [
        f"following {IT}: no decision: the cloud is gone",
        f"following {IT}: no picture",
        f"following {IT}: the robot is held: e_stop",
    ]


def test_the_end_of_a_mission_ends_its_decision_and_nothing_is_followed() -> None:
    loop = deciding()
    abandon, end = loop.on(Tick(), loop.settings.mission.max_seconds)
    assert abandon == Abandon("the mission is over") and str(end).startswith("given_up")
    assert not loop.instruction
