"""``bench failover``: what counts as decoding again, and a run that is cut short is not lost."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.bench.command import earlier_rows, write
from edge_cloud_spec.lab.bench.failover import (
    KILL,
    MOST_S,
    Events,
    Recovery,
    RobotLog,
    disturb_all,
    with_event,
)


def test_a_token_that_was_under_way_is_not_decoding_again() -> None:
    log = RobotLog(begun=[0.0, 10.5, 10.9], emitted=[9.9, 10.1, 10.6, 10.7])
    log.lost, log.connected = [10.2, 10.3], [10.5]
    seen = log.recovery(10.0)
    assert (seen.lost_s, seen.moved_s) == (pytest.approx(0.2), pytest.approx(0.5))
    assert seen.token_s == pytest.approx(0.6)


def test_a_robot_that_kept_its_link_waits_for_its_next_token() -> None:
    log = RobotLog(begun=[0.0], emitted=[9.9, 10.1], lost=[3.0], connected=[4.0])
    recovery = log.recovery(10.0)
    assert recovery.token_s == pytest.approx(0.1)
    assert (recovery.lost_s, recovery.moved_s) == (None, None)


def test_a_robot_is_past_a_kill_after_a_whole_decode() -> None:
    log = RobotLog(begun=[8.0, 9.0])
    assert not log.is_past(10.0)
    log.begun.append(10.1)  # its replica may be the one that died
    assert not log.is_past(10.0)
    log.begun.append(10.9)
    assert log.is_past(10.0)


def test_a_row_has_the_worst_and_the_median_and_fails_for_one_wrong_word() -> None:
    row = None
    for token_s in (0.2, 0.9, 0.4):
        seen = [Recovery(None, None, 0.1), Recovery(0.05, 0.15, token_s)]
        row = with_event(row, KILL, seen, 10, [])
    assert row is not None
    assert (row["events"], row["decodes"], row["equal"]) == (3, 30, 30)
    assert (row["worst_s"], row["p50_s"], row["passed"]) == (0.9, 0.4, True)
    assert not with_event(row, KILL, [Recovery(0.1, 0.2, MOST_S + 0.1)], 1, [])["passed"]
    wrong = with_event(row, KILL, [Recovery(0.1, 0.2, 0.3)], 1, ["another answer"])
    assert (wrong["equal"], wrong["passed"]) == (30, False)


def test_what_was_written_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "failover.json"
    assert earlier_rows(path, "what") == {}  # nothing was written yet
    path.touch()  # as a run does that is cut before its first row
    assert earlier_rows(path, "what") == {}
    row = with_event(None, KILL, [Recovery(0.1, 0.2, 0.3)], 7, [])
    write(path, "failover", 0, [row])
    rows = earlier_rows(path, "what")
    assert rows == {KILL: row}
    more = with_event(rows[KILL], KILL, [Recovery(0.1, 0.2, 0.5)], 3, [])
    assert (more["events"], more["waits_s"], more["decodes"]) == (2, [0.3, 0.5], 10)


@pytest.mark.parametrize("text", ["{", "{}", '{"rows": [1]}', '{"rows": [{}]}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UserError, match="not of this suite"):
        earlier_rows(path, "what")
    with pytest.raises(UserError, match="needs --json"):
        earlier_rows(None, "what")


def test_a_killed_replica_is_not_there_until_another_process_is() -> None:
    """Its last report is believed for a while: the next kill would take the only one left."""
    pids = {"a": 1, "b": 2}
    fleet: Any = SimpleNamespace(
        roster=SimpleNamespace(loads={"a": None, "b": None}),
        controller=SimpleNamespace(pids=pids),
    )
    events = Events(fleet, [], 2, None)  # type: ignore[arg-type]
    assert events._is_whole()
    events._killed.add(2)
    assert not events._is_whole()
    pids["b"] = 3
    assert events._is_whole()


def test_each_event_is_on_disk_before_the_next(tmp_path: Path) -> None:
    """A run that is interrupted leaves what it measured, and the next one measures the rest."""
    path = tmp_path / "failover.json"
    seen = [Recovery(0.1, 0.2, 0.3)]
    events = Mock(counts=lambda: (0, []), disturb=Mock(side_effect=[seen, seen, KeyboardInterrupt]))
    args = Namespace(kills=3, drains=0, seed=0, json=path)
    with pytest.raises(KeyboardInterrupt):
        disturb_all(events, args, {})
    assert json.loads(path.read_text())["rows"][0]["waits_s"] == [0.3, 0.3]
    events.disturb = Mock(return_value=seen)
    (row,) = disturb_all(events, args, earlier_rows(path, "what"))
    assert (row["events"], events.disturb.call_count) == (3, 1)
