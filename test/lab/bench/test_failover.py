"""``bench failover``: what counts as decoding again."""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from edge_cloud_spec_lab.bench.failover import KILL, MOST_S, Events, RobotLog, disturb


@pytest.mark.parametrize(("connected", "waited"), [(10.5, 0.6), (4.0, 0.1)], ids=["lost", "kept"])
def test_a_robot_waits_for_the_first_token_of_its_last_link(
    connected: float, waited: float
) -> None:
    """A token that was under way when its replica died is not decoding again."""
    log = RobotLog(begun=[0.0], emitted=[9.9, 10.1, 10.6, 10.7], connected=[connected])
    assert log.waited(10.0) == pytest.approx(waited)


def test_a_robot_is_past_a_kill_after_a_whole_decode() -> None:
    log = RobotLog(begun=[8.0, 9.0])
    assert not log.is_past(10.0)
    log.begun.append(10.1)  # its replica may be the one that died
    assert not log.is_past(10.0)
    log.begun.append(10.9)
    assert log.is_past(10.0)


@pytest.mark.parametrize(
    ("waits", "wrong", "passed"),
    [([0.2, 0.9, 0.4], [], True), ([0.2, MOST_S + 0.1], [], False), ([0.2], ["another"], False)],
)
def test_a_row_has_the_worst_and_the_median_and_fails_for_one_wrong_word(
    waits: list[float], wrong: list[str], passed: bool
) -> None:
    counts = iter([(5, ["before"]), (35, ["before", *wrong])])
    events = Mock(counts=lambda: next(counts))
    events.disturb = Mock(side_effect=[[0.1, wait] for wait in waits])
    row = disturb(events, KILL, len(waits))
    assert (row["events"], row["decodes"]) == (len(waits), 30)
    assert (row["equal"], row["passed"]) == (30 - len(wrong), passed)
    assert (row["worst_s"], row["p50_s"]) == (max(waits), median(waits))


def test_a_killed_replica_is_not_there_until_another_process_is() -> None:
    """Its last report is believed for a while: the next kill would take the only one left."""
    pids = {"a": 1, "b": 2}
    fleet: Any = SimpleNamespace(
        registry=SimpleNamespace(loads={"a": None, "b": None}),
        controller=SimpleNamespace(pids=pids),
    )
    events = Events(fleet, [], 2, None)  # type: ignore[arg-type]
    assert events._is_whole()
    events._killed.add(2)
    assert not events._is_whole()
    pids["b"] = 3
    assert events._is_whole()
