"""What the lines of instruction_status say about one goal, and what they do not."""

from __future__ import annotations

import pytest

from edge_cloud_spec.nav.mission import INACTIVE, STARTED, End, FollowedGoal, GoalEnd

BOX = "find the red box"


def followed() -> FollowedGoal:
    goal = FollowedGoal(f" {BOX} ")
    assert goal.on_status(f"following {BOX}") is None and goal.state == "following"
    return goal


@pytest.mark.parametrize("state", ["done", "not_found", "blocked", "given_up"])
def test_each_end_of_a_mission_is_an_outcome(state: str) -> None:
    line = str(End(state, BOX, "" if state == "done" else "why"))
    end = followed().on_status(line)
    assert end is not None and end.message == line.partition(" ")[2]
    assert end.outcome == ("found" if state == "done" else state)


@pytest.mark.parametrize(
    "line", [f"done {BOX}", "idle", "idle told to stop", f"blocked {BOX}: why", "following a cup"]
)
def test_what_is_said_of_an_earlier_instruction_does_not_end_a_goal_that_waits(line: str) -> None:
    goal = FollowedGoal(BOX)
    assert goal.on_status(line) is None and goal.state == "waiting"


def test_a_goal_that_the_drafter_refuses_has_failed() -> None:
    assert FollowedGoal("").on_status("failed it is empty") == GoalEnd("failed", "it is empty")


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("idle told to stop", "cancelled"),
        ("idle e_stop; publish the instruction again", "cancelled"),
        (f"following {BOX} now", "cancelled"),
        (f"idle {STARTED}", "failed"),
        (f"idle {INACTIVE}", "failed"),
        ("failed the instruction is empty", "failed"),
    ],
)
def test_another_will_ends_a_goal_that_is_followed(line: str, outcome: str) -> None:
    end = followed().on_status(line)
    assert end is not None and end.outcome == outcome and end.message


def test_the_same_instruction_with_a_remark_is_still_followed() -> None:
    goal = followed()
    assert goal.on_status(f"following {BOX}") is None
    assert goal.on_status(f"following {BOX}: the link is lost") is None


def test_only_words_of_this_goal_count_and_each_decision_once() -> None:
    goal = FollowedGoal(BOX)
    assert not goal.on_words("r0", BOX, "action", True), "an earlier goal's, of the same words"
    goal.on_status(f"following {BOX}")
    assert not goal.on_words("r1", "find a cup", "action", True)
    assert goal.on_words("r2", BOX, "action: search", False) and goal.decisions == 0
    for _ in range(2):
        assert goal.on_words("r2", BOX, "action: search;", True)
    assert (goal.words, goal.decisions) == ("action: search;", 1)
