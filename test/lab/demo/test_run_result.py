"""How a run ends: only a stop at the named thing counts, and what cannot be mended ends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")

from helpers.graph.topic_messages import message, outcome, settled

from edge_cloud_spec.nav.status import GoalStatus, NavigatorStatus
from edge_cloud_spec_lab.demo.run_result import (
    PERMANENT_FAILURES,
    result_of,
    seconds_spent,
    spent_text,
)
from edge_cloud_spec_lab.running.run_log import Decision, RunLog

INSTRUCTION = "find the red box"
AWAY = ("sim/outcome", outcome(success=False, distance=2.0), 1.0)


def told(state: str, detail: str = "", instruction: str = INSTRUCTION) -> SimpleNamespace:
    return SimpleNamespace(**GoalStatus(state, instruction, detail).fields)


def fault(text: str, kind: int = 3) -> SimpleNamespace:
    return message(kind=kind, text=text, payload=b"")


def ended(reason: str) -> SimpleNamespace:
    return settled(0, "", [], finished=True, finish_reason=reason)


def log_of(*messages: tuple[str, SimpleNamespace, float]) -> RunLog:
    run_log = RunLog()
    for topic, heard, at in messages:
        run_log.on_message(topic, heard, at)
    return run_log


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
    run_log = log_of(
        ("sim/outcome", outcome(**state), 1.0),
        ("instruction_status", told("following"), 1.0),
        ("nav_status", SimpleNamespace(**NavigatorStatus("idle", "r", "stop").fields), 2.0),
    )
    assert result_of(run_log, INSTRUCTION, 2.0, 60.0) is None  # it may only be resting
    run_log.on_message("instruction_status", told("done"), 2.0)
    end = result_of(run_log, INSTRUCTION, 2.1, 60.0)
    assert end.success is expected
    assert why in end.text


REFUSED = ("verified_tokens", ended("unauthenticated"), 2.0)
UNREACHED = ("verdict", fault("cannot reach the cloud at nowhere:1", kind=4), 1.0)
LOST = ("verdict", fault("the link is lost", kind=4), 2.0)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], ""),
        (
            [("instruction_status", told("failed", "the instruction is empty", ""), 1.0)],
            "the instruction is empty",
        ),
        *(
            ([("instruction_status", told(state, "3 motions failed"), 2.0)], why)
            for state, why in (
                ("not_found", "not found: find the red box: 3 motions"),
                ("blocked", "blocked: find the red box: 3 motions"),
                ("given_up", "given up: find the red box: 3 motions"),
            )
        ),
        *(
            ([("verified_tokens", ended(reason), 2.0)], reason)
            for reason in sorted(PERMANENT_FAILURES)
        ),
        ([REFUSED, ("verdict", fault("the token is wrong"), 2.0)], "the token is wrong"),
        ([UNREACHED], ""),
        ([UNREACHED, ("verified_tokens", ended("timeout"), 2.0)], "at nowhere:1"),
        *(
            (
                [
                    ("verdict", message(kind=1, payload=b"opened"), 1.0),
                    LOST,
                    ("verified_tokens", ended(reason), 2.0),
                ],
                "",
            )
            for reason in ("internal", "overloaded", "unknown_session", "timeout", "end")
        ),
    ],
)
def test_what_trying_again_cannot_mend_ends_the_run_at_once_and_time_the_others(
    messages: list[tuple[str, SimpleNamespace, float]], why: str
) -> None:
    end = result_of(log_of(AWAY, *messages), INSTRUCTION, 2.0, 60.0)
    assert (end is not None) == bool(why)
    assert end is None or (not end.success and why in end.text)
    late = result_of(log_of(AWAY, *messages), INSTRUCTION, 61.0, 60.0)
    assert late is not None and not late.success
    assert why in late.text if why else "2.00 m from the red box" in late.text


def test_the_seconds_of_a_run_are_driving_deciding_and_standing() -> None:
    stood = {-3.0: True, -1.0: False, -0.5: True}  # before the instruction
    stood |= {2.0: False, 4.0: True, 5.0: False, 6.0: True, 9.5: False}  # the last after the end
    run_log = log_of(*(("sim/outcome", outcome(standing=s), at) for at, s in stood.items()))
    run_log.decisions = {
        "a": Decision(1, "a", 0.5, acting=1.5),
        "b": Decision(2, "b", 3.0, acting=4.5),  # half of it while the robot drives
        "c": Decision(3, "c", 7.0, ended=7.5),  # it held no action
        "d": Decision(4, "d", 8.0),  # was given up for the next one
        "e": Decision(5, "e", 8.5),  # and this one by the end
    }
    spent = seconds_spent(run_log, 9.0)
    assert spent == pytest.approx({"driving": 3.0, "deciding": 3.0, "standing": 3.0})
    assert spent_text({"seconds": 9.0, **spent}).startswith("9.0 s: driving 3.0, deciding 3.0")
    assert seconds_spent(RunLog(), 2.0) == {"driving": 0.0, "deciding": 0.0, "standing": 2.0}
