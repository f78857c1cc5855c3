"""The demo reaches the named thing, and it leaves a report and no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.served_answers import worker_of
from helpers.graph.nodes_here import replay_here
from helpers.graph.ros_domain import ros_domain
from helpers.lookups import Watched, assert_nothing
from helpers.processes import processes_with

from edge_cloud_spec.cli import main
from edge_cloud_spec_lab.demo import report
from edge_cloud_spec_lab.demo.report import figures, row
from edge_cloud_spec_lab.demo.run_result import RunResult
from edge_cloud_spec_lab.running.console_view import size
from edge_cloud_spec_lab.running.run_log import Decision, RunLog

COMMAND = [sys.executable, "-m", "edge_cloud_spec.cli"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--preset", "warp"], "there is no preset 'warp'"),
        (["--preset", "edge_only"], "allow it with --allow-unverified"),
        (["--timeout", "0"], "--timeout must be more than 0"),
        (["--out", __file__], "give --out a folder"),
        (["--out", str(Path(__file__).parent)], "is no part of a report"),
        (["--cloud", "nowhere"], "cloud must be HOST:PORT"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.startswith("error: ") and said.count("\n") == 1


def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    """Its verifier loads a model meanwhile."""
    mark = uuid.uuid4().hex
    demo = subprocess.Popen(
        [*COMMAND, "demo", "--drafter", "bytes", "--out", str(tmp_path / "run")],
        env={**os.environ, "DEMO_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert demo.stdout is not None
    assert any("up after" in line for line in demo.stdout)
    demo.send_signal(signal.SIGINT)
    rest = demo.stdout.read()
    assert demo.wait() == 130, rest
    assert "Traceback" not in rest
    assert not processes_with(f"DEMO_MARK={mark}")


def test_the_demo_reaches_the_named_thing_reports_it_and_its_bag_replays(tmp_path: Path) -> None:
    """A room whose thing is near, under a preset whose rounds are all drafts; no node of it asks
    anybody (docs/privacy.md)."""
    folder, out, watched = tmp_path / "run", tmp_path / "replay.json", Watched(tmp_path)
    drive = [*COMMAND, "demo", "--seed", "125", "--preset", "dsd", "--out", str(folder)]
    done = watched.run(drive)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_nothing(watched)
    assert "done: the robot stopped" in done.stdout
    assert re.search(r"words .*\{\+.+\+\}", done.stdout), "the cloud corrected something"
    figures = json.loads((folder / "figures.json").read_text())
    assert figures["success"] and figures["outcome"]["distance"] <= figures["outcome"]["reach"]
    assert 0.3 < figures["acceptance"] < 1.0
    assert figures["tokens"] >= figures["accepted"]
    assert figures["rows"][-1]["action"] == "stop"
    text = (folder / "index.html").read_text()
    gained = f"<b>{figures['accepted']} of {figures['tokens']}</b>"
    assert gained in text and "so many passes of the large model less" in text
    assert not BLANK_BEFORE_MARK.search(re.sub("<[^>]*>", "", text)), "as somebody would write it"
    links = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert {"path.png", "figures.json", "bag/"} <= set(links)
    assert any(link.startswith("camera.") for link in links)
    for link in links:
        path = folder / link
        assert path.is_dir() or path.stat().st_size > 500, link
    with ros_domain(), Cloud(worker_of()) as cloud, replay_here(cloud.address):
        assert main(["replay", str(folder / "bag"), "--json", str(out), "--attach"]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["recorded"] for row in rows] == [row["answer"] for row in figures["rows"]]
    assert all(row["equal"] for row in rows)


BLANK_BEFORE_MARK = re.compile(r"\w [;:,.!?]")
WORDS = st.sampled_from(["", ";", ", left", ":", "red box", "near 1.0", "a;", "."])
PARTS = {"accepted": WORDS, "rejected": WORDS, "own": WORDS, "other_branches": st.integers(0, 9)}


@given(st.lists(st.fixed_dictionaries(PARTS), max_size=6))
def test_the_pages_words_are_apart_by_a_blank_and_marks_are_not(parts: list[dict]) -> None:
    run = {"preset": "dsd", "rule": "greedy", "order": "action first", "film": "camera.mp4"}
    numbers = figures(run, RunLog(), RunResult(True, "done", 1.0), 0.1)
    shown = {**row(Decision(1, "r", 0.0)), "words": parts}
    template = Path(report.__file__).with_name("report.html.jinja")
    text = report.page(template, title="t", size=size, **{**numbers, "rows": [shown]})
    cell = re.findall(r"<td>(.*?)</td>", text, re.DOTALL)[0]
    plain = re.sub("<[^>]*>", "", cell)
    assert not BLANK_BEFORE_MARK.search(plain) and "  " not in plain
    told = [part[name] for part in parts for name in ("accepted", "rejected", "own")]
    assert re.sub(r"\(\+\d\)|\s", "", plain) == "".join(told).replace(" ", "")
    assert not re.search(r"[a-z]{8}", plain.replace("accepted", "")), "no two words are one"
