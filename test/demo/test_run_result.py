"""How a run ends: only a stop at the named thing counts, and what cannot be mended ends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")

from helpers.graph.topic_messages import message, outcome, settled

from edge_cloud_spec.lab.demo.run_result import (
    PERMANENT_FAILURES,
    result_of,
    seconds_spent,
    spent_text,
)
from edge_cloud_spec.nav.status import GoalStatus, Status
from edge_cloud_spec.observe.decision import Decision
from edge_cloud_spec.observe.run_log import RunLog


def told(state: str, detail: str = "", instruction: str = "find the red box") -> SimpleNamespace:
    return SimpleNamespace(**GoalStatus(state, instruction, detail).fields)


@pytest.mark.parametrize(
    ("state", "expected", "why"),
    [
        ({}, True, "faces it"),
        ({"success": False, "at": "blue box"}, False, "stopped at the blue box"),
        ({"success": False, "at": "", "distance": 1.4}, False, "too far away, 1.40 m"),
        ({"success": False, "at": "", "bearing": 70.0}, False, "without facing"),
    ],
)
def test_only_a_stop_at_the_named_thing_counts(
    state: dict[str, Any], expected: bool, why: str
) -> None:
    run_log = RunLog()
    run_log.on_message("sim/outcome", outcome(**state), 1.0)
    run_log.on_message("instruction_status", told("following"), 1.0)
    run_log.on_message("nav_status", SimpleNamespace(**Status("idle", "r", "stop").fields), 2.0)
    assert result_of(run_log, "find the red box", 2.0, 60.0) is None  # it may only be resting
    run_log.on_message("instruction_status", told("done"), 2.0)
    end = result_of(run_log, "find the red box", 2.1, 60.0)
    assert end is not None
    assert end.success is expected
    assert why in end.text


def test_a_refused_instruction_and_a_late_robot_are_failures_with_a_reason() -> None:
    run_log = RunLog()
    run_log.on_message("sim/outcome", outcome(success=False, distance=2.0), 1.0)
    late = result_of(run_log, "find the red box", 61.0, 60.0)
    assert late is not None and not late.success and "2.00 m from the red box" in late.text
    run_log.on_message("instruction_status", told("failed", "the instruction is empty", ""), 1.0)
    refused = result_of(run_log, "", 1.0, 60.0)
    assert refused is not None and not refused.success and "is empty" in refused.text


@pytest.mark.parametrize("state", ["not_found", "blocked", "given_up"])
def test_a_mission_that_ended_elsewhere_ends_the_run_at_once_with_its_sentence(state: str) -> None:
    run_log = RunLog()
    run_log.on_message("sim/outcome", outcome(success=False, distance=2.0), 1.0)
    said_so = told(state, "3 motions in a row did not arrive")
    run_log.on_message("instruction_status", said_so, 2.0)
    end = result_of(run_log, "find the red box", 2.0, 90.0)
    assert end is not None and not end.success
    assert end.text.startswith(state.replace("_", " ") + ": find the red box: 3 motions")


def fault(text: str, kind: int = 3) -> SimpleNamespace:
    return message(kind=kind, text=text, payload=b"")


def ended(reason: str) -> SimpleNamespace:
    return settled(0, "", [], finished=True, finish_reason=reason)


@pytest.mark.parametrize("reason", sorted(PERMANENT_FAILURES))
def test_what_trying_again_cannot_mend_ends_the_run_at_once(reason: str) -> None:
    run_log = RunLog()
    run_log.on_message("sim/outcome", outcome(success=False, distance=2.0), 1.0)
    run_log.on_message("verified_tokens", ended(reason), 2.0)
    end = result_of(run_log, "find the red box", 2.0, 90.0)
    assert end is not None and not end.success and reason in end.text
    run_log.on_message("verdict", fault("the token is wrong; give --token-file"), 2.0)
    end = result_of(run_log, "find the red box", 2.0, 90.0)
    assert end is not None and "the token is wrong" in end.text


@pytest.mark.parametrize("reason", ["internal", "overloaded", "unknown_session", "timeout", "end"])
def test_what_trying_again_may_mend_does_not_end_the_run(reason: str) -> None:
    run_log = RunLog()
    run_log.on_message("verdict", message(kind=1, payload=b"opened"), 1.0)
    run_log.on_message("verdict", fault("the link is lost", kind=4), 2.0)
    run_log.on_message("verified_tokens", ended(reason), 3.0)
    assert result_of(run_log, "find the red box", 3.0, 90.0) is None


def test_a_cloud_that_was_never_reached_ends_the_run_with_the_first_decision() -> None:
    run_log = RunLog()
    run_log.on_message("verdict", fault("cannot reach the cloud at nowhere:1", kind=4), 1.0)
    assert result_of(run_log, "find the red box", 2.0, 90.0) is None
    run_log.on_message("verified_tokens", ended("timeout"), 11.0)
    end = result_of(run_log, "find the red box", 11.0, 90.0)
    assert end is not None and "cannot reach the cloud at nowhere:1" in end.text


def standing(at: float, still: bool, run_log: RunLog) -> None:
    run_log.on_message("sim/outcome", outcome(standing=still), at)


def test_the_seconds_of_a_run_are_driving_deciding_and_standing() -> None:
    run_log = RunLog()
    for at, still in ((-3.0, True), (-1.0, False), (-0.5, True)):  # before the instruction
        standing(at, still, run_log)
    run_log.decisions = {
        "a": Decision(1, "a", 0.5, acting=1.5),
        "b": Decision(2, "b", 3.0, acting=4.5),  # half of it while the robot drives
        "c": Decision(3, "c", 7.0, ended=7.5),  # it held no action
        "d": Decision(4, "d", 8.0),  # was given up for the next one
        "e": Decision(5, "e", 8.5),  # and this one by the end
    }
    standing(2.0, False, run_log)
    standing(4.0, True, run_log)
    standing(5.0, False, run_log)
    standing(6.0, True, run_log)
    standing(9.5, False, run_log)  # after the end
    spent = seconds_spent(run_log, 9.0)
    assert spent == pytest.approx({"driving": 3.0, "deciding": 3.0, "standing": 3.0})
    assert spent_text({"seconds": 9.0, **spent}).startswith("9.0 s: driving 3.0, deciding 3.0")


def test_a_run_without_outcomes_only_stood() -> None:
    spent = seconds_spent(RunLog(), 2.0)
    assert spent == {"driving": 0.0, "deciding": 0.0, "standing": 2.0}
