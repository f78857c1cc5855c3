"""Each file of ``examples/`` does what its first lines say, run as a reader would run it."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.checkpoints import checkpoint, jpeg
from helpers.cloud.grpc_cloud import Cloud
from helpers.graph.ros_domain import ros_domain

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load import load
from edge_cloud_spec.share import rules_text
from edge_cloud_spec.wire.channel import DEFAULT_ADDRESS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
INSTRUCTION = "find the silver bottle"
REPLY_TIMEOUT = 60.0  # s; only a hung test takes that long


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.jpg"
    path.write_bytes(jpeg(1))
    return path


def decode_picture(*arguments: str) -> subprocess.CompletedProcess[str]:
    return example("decode_picture.py", *arguments)


def example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )


@pytest.mark.skipif(not (EMBEDDED / "target").is_dir(), reason="no embedded pair in this checkout")
def test_a_picture_is_decoded_and_a_cloud_that_is_not_there_is_no_success(picture: Path) -> None:
    done = decode_picture(str(picture), INSTRUCTION)
    assert done.returncode == 0, done.stderr
    answer, cost = done.stdout.strip().splitlines()
    assert re.fullmatch(r"action: \w.*", answer)
    tokens, rounds = map(int, re.findall(r"(\d+) (?:tokens|rounds)", cost))
    assert 0 < rounds <= tokens
    assert decode_picture(str(picture), "find\x01it").returncode != 0


@pytest.mark.skipif(not (EMBEDDED / "target").is_dir(), reason="no embedded pair in this checkout")
def test_the_readmes_lines_decode_a_picture_and_drive_a_robot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    robot = runpy.run_path(str(EXAMPLES / "own_robot.py"))["SimulatedRobot"](25)
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    target = load(EMBEDDED / "target", threads=1)
    with Cloud(Worker(target, target.spec(rules_text(), 128))) as cloud:
        assert DEFAULT_ADDRESS in lines
        ours = {"camera": robot.camera, "drive": robot.drive}
        exec(lines.replace(DEFAULT_ADDRESS, cloud.address), ours)
    said = r"action: [^<]+; reason: blue box [^<]+;done find the blue box\n"
    assert re.fullmatch(said, capsys.readouterr().out)


@pytest.mark.skipif(not (EMBEDDED / "target").is_dir(), reason="no embedded pair in this checkout")
def test_a_robot_of_ones_own_finds_its_thing() -> None:
    target = load(EMBEDDED / "target", threads=1)
    with Cloud(Worker(target, target.spec(rules_text(), 128))) as cloud:
        done = example("own_robot.py", "--seed", "27", "--cloud", cloud.address)
    assert (done.returncode, done.stdout) == (0, "done drive to the silver can\n"), done.stderr


def test_the_examples_preset_decodes_to_the_words_of_another_preset(
    picture: Path, tmp_path: Path
) -> None:
    """It is exact: greedy and coupled answers are the target's own, whatever is drafted."""
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    drafter = str(checkpoint("qwen3_vl", 2, 384))
    answers: dict[tuple[str, ...], set[str]] = {}
    with Cloud(Worker(target, target.spec("You guide a robot.", 20))) as cloud:
        for preset in ("dsd", str(EXAMPLES / "preset.yaml")):
            for options in (("--seed", "3"), ("--rule", "coupled"), ("--rule", "rejection")):
                told = tmp_path / "outcome.json"
                given = ["--cloud", cloud.address, "--drafter", drafter, "--preset", preset]
                command = ["decode", str(picture), INSTRUCTION, *given, *options]
                assert main([*command, "--json", str(told)]) == 0
                answers.setdefault(options, set()).add(json.loads(told.read_text())["answer"])
    assert [len(found) for found in answers.values()][:2] == [1, 1]
    assert answers["--seed", "3"] != answers["--rule", "coupled"]


@pytest.fixture
def start(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[list[str], Path], subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))

    def begin(command: list[str], output: Path) -> subprocess.Popen[bytes]:
        with output.open("wb") as file:
            running.append(subprocess.Popen([sys.executable, *command], stdout=file))
        return running[-1]

    with ros_domain():
        yield begin
        for process in running:
            process.kill()
            process.wait()


def test_decisions_of_a_graph_are_printed(
    start: Callable[[list[str], Path], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """A real navigator moves on verified words, not on others; what it does is what is printed."""
    pytest.importorskip("rclpy")
    from helpers.graph.peer import Peer

    from edge_cloud_spec.msg import NavStatus, VerifiedTokens
    from edge_cloud_spec.nav.status import Status
    from edge_cloud_spec.nodes.runtime.qos import LATCHED

    printed = tmp_path / "decisions.txt"
    start(["-m", "edge_cloud_spec.nodes.navigator"], tmp_path / "navigator.txt")
    watcher = start([str(EXAMPLES / "watch_decisions.py")], printed)
    with Peer("drafter") as node:
        states = node.collect(NavStatus, "nav_status", LATCHED)
        words = node.create_publisher(VerifiedTokens, "verified_tokens", 10)

        def settle(request: str, text: str, verified: bool) -> None:
            message = VerifiedTokens(request_id=request, text=text, answer=text, verified=verified)
            message.header.stamp = node.get_clock().now().to_msg()
            message.stops = Status.read(states[-1]).stops
            message.tokens, message.finished, message.finish_reason = [1, 2], True, "end"
            words.publish(message)
            node.until(lambda: Status.read(states[-1]).request == request)

        node.until(lambda: states and words.get_subscription_count() == 2)
        unverified = turns = 0
        while "NOT VERIFIED" not in printed.read_text():  # it may find this publisher late
            unverified += 1
            settle(f"u{unverified}", "action: move forward small;", verified=False)
            node.spin(0.1)
            assert unverified < 100
        while " turn +" not in printed.read_text():  # the navigator may find its listener late
            turns += 1
            settle(f"r{turns}", "action: turn left small;", verified=True)
            node.until(lambda: Status.read(states[-1]).state == "idle")
            assert turns < 20
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(timeout=REPLY_TIMEOUT) == 0
    lines = printed.read_text().splitlines()
    assert "u1 NOT VERIFIED, end: action: move forward small;" in [
        re.sub(r"^u\d+", "u1", line) for line in lines
    ]
    assert f"r{turns} verified, end: action: turn left small;" in lines
    assert f"r{turns} turn +7 degrees" in lines
    assert not [line for line in lines if " move " in line and "NOT VERIFIED" not in line]
