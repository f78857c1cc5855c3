"""Missions in virtual time: real models, a real navigator and a robot that moves meanwhile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edge_cloud_spec.cli import main
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.bench.mission.suite import DoneShifts
from edge_cloud_spec.lab.sim.episode import CYCLE


def measure(folder: Path, *options: str) -> list[dict[str, Any]]:
    path = folder / "rows.json"
    command = ["bench", "mission", "--json", str(path), "--renderer", "rays", "--processes", "1"]
    assert main([*command, *options]) == 0
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


@pytest.fixture(scope="module")
def two_rooms(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("mission")
    return measure(folder, "--scenes", "2", "--presets", "cloud_ar,auto")


def test_every_room_is_decided_as_the_target_alone_decides(
    two_rooms: list[dict[str, Any]],
) -> None:
    alone, auto = two_rooms
    assert alone["preset"] == "cloud_ar" and auto["preset"] == "auto"
    assert alone["same_decisions_as_cloud_ar"] == auto["same_decisions_as_cloud_ar"] == 1.0
    assert alone["success"] == auto["success"] == 1.0
    assert alone["decisions"] == auto["decisions"] > 1
    assert auto["target_passes"] < alone["target_passes"]
    assert auto["mission_s_mean"] < alone["mission_s_mean"]


def test_times_are_those_of_the_regime(two_rooms: list[dict[str, Any]]) -> None:
    alone, auto = two_rooms
    # fsd-go2: 240 ms of link, a prefill of 1.5 times 354 ms, then 354 ms a token
    assert 0.771 <= alone["first_word_s_mean"] <= 0.771 + CYCLE, "of a frame of the last cycle"
    passes = alone["target_passes"] / alone["decisions"]
    assert alone["answer_s_mean"] == pytest.approx(0.771 + 0.354 * passes, rel=0.05)
    for row in (alone, auto):
        assert 0 < row["first_motion_s_p50"] < row["mission_s_p50"] <= row["mission_s_p90"]
        assert 0 < row["standing"] < 1


def test_a_second_run_gives_the_same_rows_whoever_shares_it(
    two_rooms: list[dict[str, Any]], tmp_path: Path
) -> None:
    done = tmp_path / "done.jsonl"
    again = measure(
        tmp_path, "--scenes", "2", "--presets", "auto,dsd,cloud_ar", "--resume", str(done)
    )
    by_preset = {row["preset"]: row for row in again}
    assert [by_preset["cloud_ar"], by_preset["auto"]] == two_rooms
    kept = done.read_text()
    report = tmp_path / "report"
    known = ("--resume", str(done), "--out", str(report))
    resumed = measure(tmp_path, "--scenes", "2", "--presets", "dsd,auto", *known)
    assert resumed[0]["mission_s_mean"] == by_preset["dsd"]["mission_s_mean"]
    assert done.read_text() == kept, "what was done is done again"
    page = (report / "index.html").read_text()
    pictures = re.findall(r'<img src="([^"]+)"', page)
    assert {"beginning.png", "mission.png", "times.png", "frame-00.jpg"} <= set(pictures)
    assert all((report / name).stat().st_size > 1000 for name in pictures)


@pytest.mark.parametrize(
    "presets",
    [
        "auto:explain=loudly",
        "auto:speed=1",
        "auto:lead_time=x",
        "auto:grammar=all",
        "auto:look=0",
        "auto:explain",
        "auto:",
        "nobody",
    ],
)
def test_what_a_variant_cannot_be_is_said(presets: str) -> None:
    assert main(["bench", "mission", "--presets", presets]) == 2


def test_a_line_that_was_broken_off_is_measured_again(tmp_path: Path) -> None:
    done = tmp_path / "done"
    whole = json.dumps({"key": "a", "rooms": []}) + "\n"
    done.write_text(whole + '{"key": "b", "roo')
    DoneShifts(done)
    assert done.read_text() == whole
    for others in ("a file of somebody else's", '{"a": 1}', "7"):
        done.write_text(others)
        with pytest.raises(UserError, match="name another file"):
            DoneShifts(done)
        assert done.read_text() == others
