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

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")
from rosbags.highlevel import AnyReader

from edge_cloud_spec.cli import main
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.observe.bag import types

needs_pair = pytest.mark.skipif(
    not (EMBEDDED / "target").is_dir(), reason="the embedded pair is not in this checkout"
)


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


def test_what_is_no_bag_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["replay", str(tmp_path / "nothing")]) == 2
    assert "there is no bag" in capsys.readouterr().err
    assert main(["replay", str(tmp_path)]) == 2
    assert "cannot be read as a bag" in capsys.readouterr().err


def test_our_messages_are_types_of_the_bag() -> None:
    fields = [name for name, _ in types().fielddefs["edge_cloud_spec/msg/Draft"][1]]
    assert {"words", "base_length", "payload"} <= set(fields)


@needs_pair
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    demo = subprocess.Popen(
        [sys.executable, "-m", "edge_cloud_spec.cli", "demo", "--out", str(tmp_path / "run")],
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
    assert not marked(mark)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run of the demo with the embedded pair, under a preset whose rounds are all drafts."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    command = [sys.executable, "-m", "edge_cloud_spec.cli", "demo", "--seed", "0"]
    command += ["--preset", "dsd"]
    done = subprocess.run(
        [*command, "--out", str(folder)], capture_output=True, text=True, check=False
    )
    return folder, done


@needs_pair
def test_the_demo_reaches_the_named_thing_and_tells_how(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = run
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done: the robot stopped" in done.stdout
    assert re.search(r"words .*\{\+.+\+\}", done.stdout), "the cloud corrected something"
    figures = json.loads((folder / "figures.json").read_text())
    assert figures["success"] and figures["outcome"]["distance"] <= figures["outcome"]["reach"]
    assert 0.3 < figures["acceptance"] < 1.0
    assert figures["tokens"] >= figures["accepted"]
    assert figures["rows"][-1]["action"] == "stop"


@needs_pair
def test_the_report_holds_together(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = run
    page = (folder / "index.html").read_text()
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert {"path.png", "figures.json", "bag/"} <= set(links)
    assert any(link.startswith("camera.") for link in links)
    for link in links:
        path = folder / link
        assert path.is_dir() or path.stat().st_size > 500, link


@needs_pair
def test_the_bag_reads_back_with_its_own_types(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = run
    figures = json.loads((folder / "figures.json").read_text())
    actions, answers = [], {}
    with AnyReader([folder / "bag"]) as reader:
        present = {c.topic for c in reader.connections if c.msgcount}
        for connection, _, raw in reader.messages():
            content = reader.deserialize(raw, connection.msgtype)
            if connection.topic == "/nav_command":
                actions.append(content.text)
            elif connection.topic == "/verified_tokens":
                answers[content.request_id] = content.answer
    assert {
        "/camera/image_raw/compressed",
        "/odom",
        "/draft",
        "/verdict",
        "/sim/outcome",
    } <= present
    assert actions[-1] == "stop"
    assert list(answers.values()) == [row["answer"] for row in figures["rows"]]


@needs_pair
def test_a_replayed_bag_gives_the_same_decisions(
    run: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder, _ = run
    out = tmp_path / "replay.json"
    command = [sys.executable, "-m", "edge_cloud_spec.cli", "replay", str(folder / "bag")]
    done = subprocess.run(
        [*command, "--json", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    figures = json.loads((folder / "figures.json").read_text())
    assert [row["recorded"] for row in rows] == [row["answer"] for row in figures["rows"]]
    assert all(row["equal"] for row in rows)


def marked(mark: str) -> list[str]:
    """Command lines of the processes whose environment has the mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found
