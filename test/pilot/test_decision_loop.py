"""The loop that decides: when, on which frame, for how long; what it says of an instruction."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.edge.events import Abort, Cut
from edge_cloud_spec.nav.answer import SEARCH_ACTION, STOP_ACTION, Action, Reading
from edge_cloud_spec.nav.events import EStop, Instruction, Report, Tick
from edge_cloud_spec.nav.status import HOLD_CODES, GoalStatus, NavCode, NavigatorStatus
from edge_cloud_spec.pilot.decision_loop import (
    E_STOP_IS_ON,
    EXPLAIN_FULL,
    EXPLAIN_NONE,
    EXPLAIN_UNTIL_NEXT,
    RELEASE_S,
    SETTLE_S,
    Decide,
    DecisionLoop,
    Effect,
    Ended,
    Frame,
    LoopSettings,
    Paused,
)

IT = "find it"


def followed(instruction: str = IT, number: int = 1) -> GoalStatus:
    return GoalStatus("following", instruction, goal_id=f"goal-{number}")


def frame(name: str) -> Frame:
    return Frame(name.encode())


def play(loop: DecisionLoop, *steps: tuple[Any, ...]) -> None:
    """Tell the loop each event at its time, s; what it does is as each step says.

    A step is a time, an event and its effects, if they matter. In place of an event: whether a
    decision is due, the decision that is taken, or None where none can be.
    """
    for now, event, *effects in steps:
        if isinstance(event, bool):
            assert loop.is_due(now) == event, (now, event)
        elif event is None or isinstance(event, Decide):
            assert loop.take(event.request if event else "none", now) == event, now
        else:
            found = loop.on(event, now)
            assert not effects or found == effects[0], (now, event, found)


def following(
    *statuses: NavigatorStatus, explain: str = EXPLAIN_FULL, lag: float = 0.0
) -> DecisionLoop:
    """A loop that follows an instruction since 0 s, and heard these statuses then."""
    loop: DecisionLoop = DecisionLoop(LoopSettings(explain, lag=lag))
    play(loop, (0.0, Instruction(IT), [followed()]), *((0.0, status) for status in statuses))
    return loop


def decision(number: int, name: str, stops: int = 7) -> Decide:
    """The decision of this number, on the frame of this name."""
    return Decide(f"r{number}", IT, frame(name), stops, "goal-1")


def deciding(explain: str = EXPLAIN_FULL) -> DecisionLoop:
    """The decision r1 began at 1 s and is under way."""
    loop = following(NavigatorStatus("idle", stops=7), explain=explain)
    play(loop, (1.0, frame("first")), (1.0, decision(1, "first")))
    return loop


# When, and on which frame


def test_a_decision_under_way_is_not_in_the_way_of_itself() -> None:
    """Nor is another due before the navigator has settled it, however long that takes."""
    play(deciding(), (1.1, frame("second")), (1.1 + 10 * SETTLE_S, False))


def test_the_next_is_due_on_a_frame_from_after_the_navigator_said_ready() -> None:
    play(
        deciding(),
        (2.0, NavigatorStatus("moving", "r1", stops=7)),
        (2.5, frame("too early")),
        (2.5, False),
        (3.0, NavigatorStatus("ready", "r1", stops=7)),
        (3.0, False),  # no frame is from after that
        (3.1, frame("moving")),
        (3.1, True),
        (3.1, None),  # one at a time
        (3.2, Ended(SEARCH_ACTION)),
        (3.2, decision(2, "moving")),
    )


def test_what_is_said_of_a_motion_that_goes_on_drops_no_frame() -> None:
    play(
        deciding(),
        (2.0, Ended(SEARCH_ACTION)),
        (3.0, NavigatorStatus("ready", "r1", "search", 7)),
        (3.1, frame("moving")),
        *(
            (3.2, NavigatorStatus("ready", "r1", "so", 7, code, SEARCH_ACTION))
            for code in (NavCode.DONE, NavCode.NONE)
        ),
        (3.2, decision(2, "moving")),
    )


def test_a_decision_that_began_on_the_move_is_the_only_one_until_it_is_settled() -> None:
    play(
        deciding(),
        (3.0, NavigatorStatus("ready", "r1", stops=7)),
        (3.1, frame("moving")),
        (3.2, Ended(SEARCH_ACTION)),
        (3.2, decision(2, "moving")),
        (4.0, NavigatorStatus("idle", "r1", "so", 7, NavCode.DONE, SEARCH_ACTION)),
        (4.1, frame("at rest")),
        (4.1, False),
        (4.2, NavigatorStatus("idle", "r2", "so", 7, NavCode.REFUSED)),
        (4.2, False),  # the frame is from before that
        (4.3, frame("later")),
        (4.3, True),
    )


def test_a_refused_decision_is_followed_by_another() -> None:
    play(
        deciding(),
        (2.0, NavigatorStatus("idle", "r1", "so", 8, NavCode.REFUSED)),
        (2.0, Ended(SEARCH_ACTION)),
        (2.1, frame("second")),
        (2.1, decision(2, "second", 8)),
    )


def test_without_a_navigator_no_answer_is_in_the_way_of_the_next() -> None:
    play(
        following(),
        (0.1, frame("first")),
        (0.1, decision(1, "first", 0)),
        (0.2, frame("second")),
        (0.2, False),
        (0.3, Ended(SEARCH_ACTION)),
        (0.3, decision(2, "second", 0)),
        (0.4, Ended(SEARCH_ACTION)),
        (0.4, False),  # a frame is decided on once
    )


def test_a_frame_from_before_the_instruction_is_not_decided_on() -> None:
    play(
        DecisionLoop(),
        (0.0, frame("before")),
        (0.1, Instruction(IT)),
        (0.2, False),
        (0.3, frame("after")),
        (0.3, True),
    )


def test_a_decision_that_an_idle_navigator_did_not_receive_is_made_anew() -> None:
    play(
        deciding(),
        (2.0, Ended(SEARCH_ACTION)),
        (2.1, frame("second")),
        (2.0 + SETTLE_S, False),
        (2.1 + SETTLE_S, True),
    )


@pytest.mark.parametrize("state", ["idle", "stopped"])
def test_a_frame_from_before_a_stop_or_a_release_is_not_decided_on(state: str) -> None:
    """It would be told with a count of stops that is newer than the frame."""
    play(
        following(NavigatorStatus("idle", stops=7)),
        (1.0, frame("before")),
        (1.5, NavigatorStatus(state, stops=8)),
        (1.7, frame("held")),
        (2.0, NavigatorStatus("idle", "-", "so", 9, NavCode.RELEASED)),
        (2.0, None),
        (3.0, frame("after")),
        (3.1, NavigatorStatus("idle", "-", "another detail", 9)),  # no other count
        (3.1, decision(1, "after", 9)),
    )


@pytest.mark.parametrize("lag", [0.0, 0.25, 1.0, 5.0])
@pytest.mark.parametrize("period", [0.25, 1.0])
def test_one_that_is_told_often_decides_by_the_count_of_when_its_frame_was_taken(
    period: float, lag: float
) -> None:
    """With pictures that come later than it is told again, too."""
    loop = following(NavigatorStatus("idle", "r0", "released", 7), lag=lag)
    decided, step = [], 0.125
    for number in range(1, 80):
        now = number * step
        if now % period == 0.0:
            loop.on(Instruction(IT), now)
            loop.on(NavigatorStatus("idle", "r0", "released", 7 + int(now / period)), now)
        loop.on(frame(str(now - lag)), now)
        decide = loop.take(f"r{number}", now)
        if decide is not None:
            decided.append(decide)
            loop.on(Ended(abandoned=True), now)
    assert len(decided) >= 2
    for decide in decided:
        assert decide.stops == 7 + int(float(decide.frame.jpeg) / period)


def test_a_frame_that_was_on_its_way_when_the_robot_came_to_rest_is_dropped() -> None:
    play(
        following(NavigatorStatus("idle", stops=7), lag=2.0),
        (1.9, frame("on its way")),
        (1.9, None),
        (2.0, frame("at rest")),
        (2.0, decision(1, "at rest")),
    )


@pytest.mark.parametrize(
    ("ended", "pause"),
    [
        (Ended(SEARCH_ACTION), 0.0),
        (Ended(), 1.0),
        (Ended(None, "the cloud is gone", by_link=True), 1.0),
        (Ended(None, "the cloud is full", retry_after=4.0), 4.0),
        (Ended(SEARCH_ACTION, "the cloud is gone"), 1.0),
        (Ended(abandoned=True), 0.0),
    ],
)
def test_a_decision_that_came_to_nothing_is_followed_by_a_pause(ended: Ended, pause: float) -> None:
    play(
        following(),
        (1.0, frame("first")),
        (1.0, decision(1, "first", 0)),
        (2.0, ended),
        (2.0, frame("second")),
        (2.0 + 0.97 * pause, not pause),
        (2.0 + pause, True),
    )


# How much of an answer


@pytest.mark.parametrize(
    ("explain", "action", "due", "enough"),
    [
        (EXPLAIN_NONE, SEARCH_ACTION, False, True),
        (EXPLAIN_UNTIL_NEXT, SEARCH_ACTION, False, False),
        (EXPLAIN_UNTIL_NEXT, SEARCH_ACTION, True, True),
        (EXPLAIN_FULL, SEARCH_ACTION, True, False),
        (EXPLAIN_NONE, None, True, False),
        (EXPLAIN_UNTIL_NEXT, None, True, False),
    ],
)
def test_an_answer_ends_early_only_behind_its_action_and_only_where_it_may(
    explain: str, action: Action | None, due: bool, enough: bool
) -> None:
    loop = deciding(explain)
    loop.settings = LoopSettings(EXPLAIN_FULL)  # a decision keeps the settings of its beginning
    effects = loop.on(Reading(action), 1.5)
    effects += loop.on(frame("that nothing is due on"), 1.6)
    if due:
        loop.on(NavigatorStatus("ready", "r1", stops=7), 2.0)
        effects += loop.on(frame("second"), 2.5)
        assert loop.is_due(2.5)
        effects += loop.on(frame("third"), 2.6)
    assert effects == [Cut()] * enough, "once"


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
        (
            NavigatorStatus("idle", "-", "so", 8, NavCode.RELEASED),
            "the robot was stopped or released",
            None,
        ),
    ],
)
def test_what_stops_or_replaces_an_instruction_ends_its_decision(
    event: Instruction | EStop | Paused | NavigatorStatus, why: str, said: GoalStatus | None
) -> None:
    effects = [Abort(why), *([said] if said else [])]
    play(deciding(), (2.0, event, effects), (2.1, Ended(SEARCH_ACTION, abandoned=True), []))


def test_the_instruction_that_is_followed_changes_nothing_when_it_is_said_again() -> None:
    loop = deciding()
    play(
        loop,
        (1.1, Instruction(f" {IT}\n"), [followed()]),
        (1.1, NavigatorStatus("idle", stops=8), []),  # the navigator counts it
        (1.2, Ended(STOP_ACTION), [GoalStatus("done", IT, goal_id="goal-1")]),
    )
    assert not loop.instruction


def test_an_instruction_that_cannot_be_followed_fails_in_words() -> None:
    loop, problem = following(), "the instruction is empty; say what to find"
    play(loop, (1.0, Instruction(" "), [Report(problem), GoalStatus("failed", detail=problem)]))
    assert not loop.instruction


def test_an_instruction_under_e_stop_waits_for_a_release_that_it_may_have_overtaken() -> None:
    stopped = (0.0, EStop(True), []), (0.5, EStop(True), []), (1.0, Instruction(IT), [])
    play(DecisionLoop(), *stopped, (1.0 + RELEASE_S, EStop(False), [followed()]))
    play(
        loop := DecisionLoop(),
        *stopped,
        (1.0 + RELEASE_S, Tick(), []),
        (1.1 + RELEASE_S, Tick(), [GoalStatus("failed", detail=E_STOP_IS_ON)]),
        (2.0, EStop(False), []),
    )
    assert not loop.instruction


PRESSED = NavigatorStatus("stopped", "-", "parameter x is wrong, too", 8, NavCode.E_STOP)
RELEASED = NavigatorStatus("stopped", "-", "so", 9, NavCode.RELEASED)
UNSEEN = NavigatorStatus("stopped", "-", "nothing came on scan", 8)
ENOUGH = RELEASE_S + 0.01
STOPPED = GoalStatus("stopped", detail="e_stop; publish the instruction again to go on")


@pytest.mark.parametrize("pressed", [[EStop(True)], [PRESSED], [EStop(True), PRESSED]])
@pytest.mark.parametrize("released", [[EStop(False), RELEASED], [RELEASED, EStop(False)]])
def test_an_e_stop_that_reached_the_drafter_or_the_navigator_alone_ends_what_is_followed(
    pressed: list[Any], released: list[Any]
) -> None:
    """A volatile message of a publisher that ends at once reaches whom it has found by then."""
    loop, apart = following(NavigatorStatus("idle", stops=7)), PRESSED not in pressed
    play(loop, *((1.0, event) for event in pressed), (1.5, Tick()))
    assert not loop.instruction and loop._published == STOPPED
    play(loop, (2.0, Instruction(IT), []))
    play(loop, (2.0 + ENOUGH, Tick(), [GoalStatus("failed", detail=E_STOP_IS_ON)]))
    play(loop, *((3.0, event) for event in released if apart or event == RELEASED))
    play(loop, (3.1, Instruction(IT)), (3.1 + ENOUGH, Tick(), []))
    assert loop.instruction == IT


def test_what_stops_the_robot_and_refuses_no_instruction_is_no_hold() -> None:
    loop = following(NavigatorStatus("idle", stops=7))
    play(loop, (1.0, UNSEEN), (1.0 + ENOUGH, Tick(), []), (2.0, Instruction("find that")))
    assert loop.instruction == "find that"


@pytest.mark.parametrize("code", [code for code in HOLD_CODES if code is not NavCode.E_STOP])
def test_an_instruction_during_any_hold_of_the_navigator_fails_with_its_reason(
    code: NavCode,
) -> None:
    held = NavigatorStatus("stopped", "-", "the other one commands the base", 8, code)
    why = f"{held.detail}; publish the instruction again once that is over"
    for begin in ([], [(0.2, Instruction("find that"))]):  # whatever was followed before
        play(loop := DecisionLoop(), (0.1, NavigatorStatus("idle", stops=7), []), *begin)
        play(loop, (1.0, held), (2.0, Instruction(IT)), (2.0 + RELEASE_S, Tick(), []))
        assert not loop.instruction
        play(loop, (2.0 + ENOUGH, Tick(), [GoalStatus("failed", detail=why)]))
        play(loop, (3.0, RELEASED), (3.1, Instruction(IT)))
        assert loop.instruction == IT


@pytest.mark.parametrize("code", HOLD_CODES)
def test_an_instruction_that_overtook_the_end_of_any_hold_is_followed(code: NavCode) -> None:
    held = NavigatorStatus("stopped", "-", "the other one commands the base", 8, code)
    play(loop := DecisionLoop(), (1.0, held), (2.0, Instruction(IT), []))
    play(loop, (2.0 + RELEASE_S, RELEASED, [followed()]), (3.0, Tick(), []))


def test_an_instruction_that_overtook_the_navigators_release_is_followed() -> None:
    loop = following(NavigatorStatus("idle", stops=7))
    play(loop, (1.0, EStop(True)), (1.1, EStop(False)), (1.2, Instruction(IT)), (1.3, PRESSED))
    play(loop, (1.4, Tick()), (1.5, RELEASED), (1.2 + ENOUGH, Tick()))
    assert loop.instruction == IT
    play(loop, (2.0, PRESSED), (2.1, Tick()))
    assert not loop.instruction, "of a later one it is told"


# What is said of it


def test_a_trouble_is_said_with_the_instruction_while_it_lasts() -> None:
    loop = deciding()
    lines: list[Effect] = loop.on(Ended(None, "no decision: the cloud is gone", by_link=True), 2.0)
    loop.blind = "no picture"
    lines += loop.on(Tick(), 3.0) + loop.on(Tick(), 4.0)
    loop.blind = ""
    lines += loop.on(NavigatorStatus("stopped", "-", "e_stop", 7), 5.0)
    assert [str(line) for line in lines] == [
        f"following {IT}: no decision: the cloud is gone",
        f"following {IT}: no picture",
        f"following {IT}: the robot is held: e_stop",
    ]


OLD = "refused: its frame is 9 s ahead"


@given(st.floats(0.0, 2.0), st.floats(0.01, 0.5))
def test_a_glitch_in_which_all_is_refused_ends_no_mission_and_is_said(
    lasts: float, takes: float
) -> None:
    """A clock that was off for two seconds ended one: 20 decisions a second were refused."""
    loop, now, decided, said = following(NavigatorStatus("idle", stops=7)), 0.0, 0, set[str]()
    while now < lasts:
        now += takes
        loop.on(frame(f"{now}"), now)
        if loop.take(f"r{decided}", now) is None:
            continue
        loop.on(Ended(SEARCH_ACTION), now)
        refused = NavigatorStatus("idle", f"r{decided}", OLD, 7, NavCode.REFUSED)
        said |= {line.detail for line in loop.on(refused, now) if isinstance(line, GoalStatus)}
        decided += 1
    assert loop.instruction == IT and decided <= 2 + lasts / loop.settings.retry
    assert said <= {f"the navigator {OLD}"}
    assert bool(said) == (decided > 1), "one alone may be by chance"
    play(loop, (now, NavigatorStatus("moving", f"r{decided - 1}", "search", 7)))
    assert not decided or loop._published == followed(), "and it is over"


def test_the_end_of_a_mission_ends_its_decision_and_nothing_is_followed() -> None:
    loop = deciding()
    abandon, end = loop.on(Tick(), loop.settings.mission.max_seconds)
    assert abandon == Abort("the mission is over") and str(end).startswith("given_up")
    assert not loop.instruction


def test_why_there_is_no_picture_is_said_and_ends_no_decision_under_way() -> None:
    """A slow decision on the last picture may act: what is too old, the navigator refuses."""
    why = "no picture on /camera"
    loop = deciding()
    loop.blind = why
    blind = GoalStatus("following", IT, why, "goal-1")
    play(loop, (2.0, Tick(), [blind]), (2.1, Ended(SEARCH_ACTION)))
    loop.blind = ""
    play(loop, (2.2, Tick(), [followed()]))
    loop.blind, late = why, loop.settings.mission.max_seconds
    play(loop, (late - 1.0, Tick(), [blind]))
    *_, end = loop.on(Tick(), late)
    assert end == GoalStatus("given_up", IT, f"not reached after 600 s; the last: {why}", "goal-1")


@pytest.mark.parametrize("goes_on", [0, 1], ids=["a recording again", "two cameras on one topic"])
@pytest.mark.parametrize("code", [NavCode.NONE, NavCode.REPLAY, NavCode.STALLED])
def test_pictures_that_come_again_are_noticed_whatever_their_stamps_but_in_a_replay(
    goes_on: int, code: NavCode
) -> None:
    """Two frozen cameras on one topic have stamps that go back, as a recording's that is played
    again; a replay says that it is one. What stalls sees the same."""
    loop = following(NavigatorStatus("moving", "r1", stops=7, code=code))
    for at in range(1, 20):
        frames = (Frame(b"one", 50 + goes_on * at), Frame(b"two", 5 + goes_on * at))
        play(loop, *((float(at), each) for each in frames))
    assert loop.sees_the_same == (code is NavCode.NONE)


def test_a_robot_that_stands_may_see_the_same_picture_for_ever() -> None:
    """As in a simulator without noise, or where one picture is shown again and again."""
    loop = following(NavigatorStatus("idle", stops=7))
    play(loop, *((float(second), frame("the same")) for second in range(1, 60)), (60.0, True))


def test_a_robot_that_is_blocked_sees_the_same_and_its_mission_ends_as_blocked() -> None:
    """As one that a wall holds in a simulator without noise: it is no frozen camera."""
    loop = following(NavigatorStatus("idle", stops=7))
    for number in range(1, 4):
        now, name = 3.0 * number, f"r{number}"
        play(loop, (now, frame("the same")), (now, decision(number, "the same")))
        play(loop, (now, NavigatorStatus("moving", name, stops=7)), (now, Ended(SEARCH_ACTION)))
        play(loop, *((now + later, frame("the same")) for later in (0.8, 1.6, 2.4)))
        assert loop.sees_the_same
        play(loop, (now + 2.5, NavigatorStatus("idle", name, "so", 7, NavCode.BLOCKED)))
    assert not loop.instruction and loop._published is not None
    assert loop._published.state == "blocked", loop._published


def test_neither_a_repeated_release_nor_an_instruction_makes_a_repeated_picture_a_new_one() -> None:
    loop = following(NavigatorStatus("moving", "r1", stops=7))
    play(loop, *((second / 2, frame("the same")) for second in range(1, 9)))
    assert loop.sees_the_same
    play(
        loop,
        (5.0, NavigatorStatus("idle", "r1", "so", 7, NavCode.DONE, SEARCH_ACTION)),
        *((5.0, event) for event in (EStop(False), Instruction("another"), EStop(False))),
        (5.1, frame("the same")),
        (20.0, False),
        (20.0, NavigatorStatus("stopped", "r1", "so", 8, NavCode.E_STOP)),
        (21.0, NavigatorStatus("idle", "r1", "so", 9, NavCode.RELEASED)),
        (21.0, Instruction(IT)),
        (21.1, frame("the same")),
        (30.0, True),  # somebody has looked at the robot
    )
