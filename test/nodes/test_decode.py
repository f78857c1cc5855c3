"""The decode path through real nodes: verifier, bridge and drafter as processes, topics between."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import rclpy
from PIL import Image
from rcl_interfaces.srv import SetParameters
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.decoding.noise import decision_seed
from edge_cloud_spec.demo.decision import Decision
from edge_cloud_spec.demo.observer import Observer
from edge_cloud_spec.demo.player import Player
from edge_cloud_spec.demo.recording import RecordedFrame, Recording
from edge_cloud_spec.harness.random_checkpoint import make_checkpoint
from edge_cloud_spec.msg import DecodeStats, Draft, Verdict, VerifiedTokens
from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.nodes.qos import LATCHED

DOMAIN = str(1 + os.getpid() % 100)  # nobody else's on this machine
INSTRUCTION = "find the silver bottle"


def frame(seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (96, 96, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG")
    return data.getvalue()


class Watcher:
    """A node in this process that plays the camera and hears everything."""

    def __init__(self) -> None:
        self.context = Context()
        rclpy.init(context=self.context)
        self.node = Node("watcher", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.heard: dict[str, list] = {}
        self.picture: bytes | None = frame()
        self.camera = self.node.create_publisher(
            CompressedImage, "camera/image_raw/compressed", qos_profile_sensor_data
        )
        self.instruction = self.node.create_publisher(String, "instruction", 10)
        self.parameters = self.node.create_client(SetParameters, "drafter/set_parameters")
        self.status = self.node.create_publisher(String, "nav_status", LATCHED)
        self.node.create_timer(0.1, self._publish_frame)
        for topic, kind in (
            ("draft", Draft),
            ("verdict", Verdict),
            ("verified_tokens", VerifiedTokens),
            ("decode_stats", DecodeStats),
            ("instruction_status", String),
        ):
            heard = self.heard.setdefault(topic, [])
            self.node.create_subscription(kind, topic, heard.append, 100)

    def _publish_frame(self) -> None:
        if self.picture is not None:
            message = CompressedImage(format="jpeg", data=self.picture)
            message.header.stamp = self.node.get_clock().now().to_msg()
            self.camera.publish(message)

    def until(self, what: Callable[[], object], seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "nothing came of it"
            self.executor.spin_once(timeout_sec=0.1)

    def ask(self, text: str) -> None:
        self.until(lambda: self.instruction.get_subscription_count() > 0)
        self.instruction.publish(String(data=text))

    def set(self, **parameters: object) -> None:
        values = [Parameter(k, value=v).to_parameter_msg() for k, v in parameters.items()]
        self.until(self.parameters.service_is_ready)
        done = self.parameters.call_async(SetParameters.Request(parameters=values))
        self.until(done.done)
        assert all(result.successful for result in done.result().results)

    def sampled(self, count: int) -> list[DecodeStats]:
        """The next decisions' figures; the instruction is given and taken back."""
        self.heard["decode_stats"].clear()
        self.ask(INSTRUCTION)
        self.until(lambda: len(self.heard["decode_stats"]) >= count)
        self.ask("stop")
        self.heard["instruction_status"].clear()
        self.until(lambda: self.said("idle told to stop"))
        return self.heard["decode_stats"][:count]

    def finished(self) -> list[VerifiedTokens]:
        return [m for m in self.heard["verified_tokens"] if m.finished]

    def said(self, start: str) -> bool:
        return any(m.data.startswith(start) for m in self.heard["instruction_status"])

    def close(self) -> None:
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


class Cloud:
    """``edge-cloud-spec serve`` as a process, killed and started at will on one port."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        command = ["serve", "--target", str(self._target), "--address", self.address]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edge_cloud_spec.cli", *command, "--max-tokens", "12"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.match(r"serving on (\S+)", line):
                self.address = match[1]
                return
        raise AssertionError("the verifier did not start")

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(timeout=20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return make_checkpoint(folder / "t", seed=1), make_checkpoint(folder / "d", seed=2)


@pytest.fixture(scope="module")
def cloud(checkpoints: tuple[Path, Path]) -> Iterator[Cloud]:
    cloud = Cloud(checkpoints[0])
    yield cloud
    assert cloud.end() == 0


def _node(module: str, **parameters: object) -> subprocess.Popen[bytes]:
    given = [part for k, v in parameters.items() for part in ("-p", f"{k}:={v}")]
    command = [sys.executable, "-m", f"edge_cloud_spec.nodes.{module}", "--ros-args", *given]
    return subprocess.Popen(command)


@pytest.fixture(scope="module")
def watcher(checkpoints: tuple[Path, Path], cloud: Cloud) -> Iterator[Watcher]:
    os.environ["ROS_DOMAIN_ID"] = DOMAIN
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    processes = [
        _node("cloud_bridge", cloud=cloud.address),
        _node(
            "drafter",
            **{"model.path": checkpoints[1], "patience": 4.0, "retry": 0.2, "preset": "dsd"},
        ),
    ]
    watcher = Watcher()
    yield watcher
    watcher.close()
    for process in processes:
        process.send_signal(signal.SIGINT)
    assert [process.wait(timeout=20) for process in processes] == [0, 0]


def test_an_instruction_becomes_verified_words_in_order(watcher: Watcher) -> None:
    watcher.ask(INSTRUCTION)
    watcher.until(watcher.finished)
    last = watcher.finished()[0]
    mine = [m for m in watcher.heard["verified_tokens"] if m.request_id == last.request_id]
    assert last.finish_reason in ("end", "length")
    assert all(m.verified and m.instruction == INSTRUCTION for m in mine)
    position = 0
    for message in mine:
        assert message.position == position
        position += len(message.tokens)
    assert "".join(m.text for m in mine) == last.answer
    drafts = [m for m in watcher.heard["draft"] if m.request_id == last.request_id]
    assert drafts and all(len(d.words) >= 1 for d in drafts)
    watcher.until(lambda: watcher.heard["decode_stats"])
    assert watcher.heard["decode_stats"][0].tokens == position


@pytest.mark.parametrize("text", ["", "  ", "x" * 100_000, "find\x01it", "\ufffd\ufffd"])
def test_an_unusable_instruction_fails_with_a_reason_and_the_node_goes_on(
    watcher: Watcher, text: str
) -> None:
    watcher.heard["instruction_status"].clear()
    watcher.ask(text)
    watcher.until(lambda: watcher.said("failed the instruction"))
    watcher.heard["verified_tokens"].clear()
    watcher.ask(INSTRUCTION)
    watcher.until(watcher.finished)


def test_an_instruction_that_is_not_utf8_moves_nothing_and_the_node_goes_on(
    watcher: Watcher,
) -> None:
    watcher.ask("stop")
    watcher.heard["verified_tokens"].clear()
    text = b"find \xff\xfe\x00"
    cdr = b"\x00\x01\x00\x00" + len(text).to_bytes(4, "little") + text
    watcher.instruction.publish(cdr)
    watcher.ask(INSTRUCTION)
    watcher.until(watcher.finished)
    assert {m.instruction for m in watcher.heard["verified_tokens"]} == {INSTRUCTION}


@pytest.mark.parametrize("picture", [frame()[:300], b"", b"no picture"])
def test_an_unusable_frame_moves_nothing_and_the_node_goes_on(
    watcher: Watcher, picture: bytes
) -> None:
    watcher.picture = picture
    watcher.heard["verified_tokens"].clear()
    watcher.ask(INSTRUCTION)
    watcher.until(lambda: any(m.finish_reason == "bad_request" for m in watcher.finished()))
    bad = next(m for m in watcher.finished() if m.finish_reason == "bad_request")
    assert bad.answer == ""
    watcher.picture = frame()
    watcher.heard["verified_tokens"].clear()
    watcher.until(lambda: any(m.finish_reason in ("end", "length") for m in watcher.finished()))


def test_a_killed_cloud_moves_nothing_and_comes_back_by_itself(
    watcher: Watcher, cloud: Cloud
) -> None:
    watcher.ask(INSTRUCTION)
    watcher.heard["verified_tokens"].clear()
    watcher.until(watcher.finished)
    cloud.end(signal.SIGKILL)
    watcher.until(lambda: any(v.kind == Verdict.LINK_LOST for v in watcher.heard["verdict"]))
    cloud.start()
    watcher.heard["verified_tokens"].clear()
    watcher.until(lambda: any(m.finish_reason in ("end", "length") for m in watcher.finished()))


def test_stop_ends_the_instruction_at_once(watcher: Watcher) -> None:
    watcher.ask(INSTRUCTION)
    watcher.heard["instruction_status"].clear()
    watcher.ask("stop")
    watcher.until(lambda: watcher.said("idle told to stop"))


def test_each_decision_is_sampled_with_a_seed_of_its_own_and_can_be_made_again(
    watcher: Watcher,
) -> None:
    """One picture, one instruction: what stands still is not decided alike for ever."""
    watcher.set(rule="coupled", temperature=1.0, seed=7, first_decision=5)
    watcher.heard["verified_tokens"].clear()
    stats = watcher.sampled(4)
    assert [s.seed for s in stats] == [decision_seed(7, number) for number in (5, 6, 7, 8)]
    answers = {m.request_id: m.answer for m in watcher.finished()}
    first = [answers[s.request_id] for s in stats]
    assert len(set(first)) > 1
    watcher.set(first_decision=6)
    again = watcher.sampled(2)
    answers = {m.request_id: m.answer for m in watcher.finished()}
    assert [answers[s.request_id] for s in again] == first[1:3]


def test_words_carry_the_count_of_stops_that_was_heard_before_their_frame(
    watcher: Watcher,
) -> None:
    watcher.ask("stop")
    count = 5_000_000_000

    def settle() -> None:
        """As a navigator that refuses everything does it."""
        request = watcher.finished()[-1].request_id if watcher.finished() else "-"
        watcher.status.publish(String(data=str(Status("idle", request, "refused", count))))

    timer = watcher.node.create_timer(0.2, settle)
    watcher.until(lambda: watcher.status.get_subscription_count() > 0)
    for _ in range(2):
        settle()
        watcher.ask(INSTRUCTION)
        watcher.until(lambda n=count: any(m.stops == n for m in watcher.finished()))
        heard = watcher.heard["verified_tokens"]
        first = next(n for n, m in enumerate(heard) if m.stops == count)
        begun = {m.request_id for m in heard[:first]}
        assert all(m.stops == count for m in heard[first:] if m.request_id not in begun)
        count += 2
    timer.cancel()
    watcher.ask("stop")


def test_a_replay_decides_with_the_recorded_seeds(watcher: Watcher) -> None:
    """Last in this file, since the player stays the navigator that the drafter heard."""
    watcher.set(rule="coupled", temperature=1.0, seed=3, first_decision=0)
    watcher.picture = None
    picture = CompressedImage(format="jpeg", data=frame())
    with Observer(int(DOMAIN), None) as observer:

        def heard() -> list[Decision]:
            """Whole decisions; of the first the observer may still miss the beginning."""
            made = observer.read(lambda run_log: [*run_log.decisions.values()])
            whole = [d for d in made if d.finish in ("end", "length") and d.stats]
            return [d for d in whole if len(d.tokens) == d.stats["tokens"]]

        watcher.picture = frame()
        watcher.ask(INSTRUCTION)
        watcher.until(lambda: len(heard()) >= 6)
        watcher.heard["instruction_status"].clear()
        watcher.ask("stop")
        watcher.until(lambda: watcher.said("idle told to stop"))
        watcher.picture = None
        kept = heard()[1:6:2]  # the others are lost
        assert len(kept) > 1 and len({d.answer for d in kept}) > 1
        frames = []
        for i, decision in enumerate(kept):
            picture.header.stamp.sec, picture.header.stamp.nanosec = divmod(decision.stamp, 10**9)
            frames.append(RecordedFrame(1.0 + i, decision.stamp, serialize_message(picture)))
        recording = Recording(
            tuple(frames), ((0.5, INSTRUCTION),), tuple(kept), "dsd", "coupled", {}, ""
        )
        rows = [*Player(observer, recording).play()]
    assert len(rows) == len(kept) and all(row.equal for row in rows)
