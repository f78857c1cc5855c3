"""Each file of ``examples/`` does what its first lines say, run as a reader would run it."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from helpers.checkpoints import checkpoint, jpeg
from helpers.cloud.grpc_cloud import Cloud
from helpers.graph.ros_domain import ros_domain

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load import load
from edge_cloud_spec.wire.channel import DEFAULT_ADDRESS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
INSTRUCTION = "find the silver bottle"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """The embedded target."""
    if not (EMBEDDED / "target").is_dir():
        pytest.skip("no embedded pair in this checkout")
    target = load(EMBEDDED / "target", threads=1)
    with Cloud(Worker(target, target.spec(128))) as cloud:
        yield cloud


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.jpg"
    path.write_bytes(jpeg(1))
    return path


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def example(name: str, *arguments: str) -> int | str | None:
    """The exit status of a program, which runs in this process: torch is imported here."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return end.value.code


@pytest.mark.skipif(not (EMBEDDED / "target").is_dir(), reason="no embedded pair in this checkout")
def test_a_picture_is_decoded(picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert example("decode_picture.py", str(picture), INSTRUCTION) == 0
    answer, cost = capsys.readouterr().out.strip().splitlines()
    assert re.fullmatch(r"action: \w.*", answer)
    tokens, rounds = map(int, re.findall(r"(\d+) (?:tokens|rounds)", cost))
    assert 0 < rounds <= tokens


def test_the_readmes_lines_decode_a_picture_and_drive_a_robot(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    robot = runpy.run_path(str(EXAMPLES / "own_robot.py"))["SimulatedRobot"](25)
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert DEFAULT_ADDRESS in lines
    ours = {"camera": robot.camera, "drive": robot.drive}
    exec(lines.replace(DEFAULT_ADDRESS, cloud.address), ours)
    said = r"action: [^<]+; reason: blue box [^<]+;done find the blue box\n"
    assert re.fullmatch(said, capsys.readouterr().out)


def test_a_robot_of_ones_own_finds_its_thing(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example("own_robot.py", "--seed", "27", "--cloud", cloud.address) == 0
    assert capsys.readouterr().out == "done drive to the silver can\n"


def test_the_examples_preset_decodes_to_the_words_of_another_preset(
    picture: Path, tmp_path: Path
) -> None:
    """It is exact: greedy and coupled answers are the target's own, whatever is drafted."""
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    drafter = str(checkpoint("qwen3_vl", 2, 384))
    answers: dict[tuple[str, ...], set[str]] = {}
    with Cloud(Worker(target, target.spec(20))) as cloud:
        for preset in ("dsd", str(EXAMPLES / "preset.yaml")):
            for options in (("--seed", "3"), ("--rule", "coupled"), ("--rule", "rejection")):
                told = tmp_path / "outcome.json"
                given = ["--cloud", cloud.address, "--drafter", drafter, "--preset", preset]
                command = ["decode", str(picture), INSTRUCTION, *given, *options]
                assert main([*command, "--json", str(told)]) == 0
                answers.setdefault(options, set()).add(json.loads(told.read_text())["answer"])
    assert [len(found) for found in answers.values()][:2] == [1, 1]
    assert answers["--seed", "3"] != answers["--rule", "coupled"]


def test_decisions_of_a_graph_are_printed(tmp_path: Path) -> None:
    """A real navigator moves on verified words, not on others; what it does is what is printed."""
    pytest.importorskip("rclpy")
    from helpers.navigator_bench import Bench

    printed, numbers = tmp_path / "decisions.txt", count()
    with ros_domain(), printed.open("wb") as file, ExitStack() as stack:

        def start(*command: str, **given: Any) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([sys.executable, *command], env=environment(), **given)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        start("-m", "edge_cloud_spec.nodes.navigator")
        watcher = start(str(EXAMPLES / "watch_decisions.py"), stdout=file)
        bench = stack.enter_context(Bench())  # it ends before the others are killed
        bench.until(lambda: bench.states and bench.words.get_subscription_count() == 2)
        bench.match("navigator", "decision_watcher")
        bench.say("action: move forward small;", f"u{next(numbers)}", False, finish="end")
        bench.until(lambda: "NOT VERIFIED" in printed.read_text())
        while " turn +" not in printed.read_text():  # the navigator may find its listener late
            turn = f"r{next(numbers)}"
            bench.say("action: turn left small;", turn, finish="end")
            bench.until(lambda turn=turn: bench.said("idle", turn))
        while watcher.poll() is None:  # rclpy's own handler may miss a signal
            watcher.send_signal(signal.SIGINT)
            end = time.monotonic() + 10.0
            bench.until(lambda end=end: watcher.poll() is not None or time.monotonic() > end)
        assert watcher.returncode == 0
    text = printed.read_text()
    assert re.search(r"^u\d+ NOT VERIFIED, end: action: move forward small;$", text, re.MULTILINE)
    assert f"{turn} verified, end: action: turn left small;" in text.splitlines()
    assert f"{turn} turn +7 degrees" in text.splitlines()
    told = [line for line in text.splitlines() if "NOT VERIFIED" not in line]
    assert not [line for line in told if " move " in line]
