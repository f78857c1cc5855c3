"""``bench overhead``: a round's time outside the models, beside bare rclpy and gRPC.

Prints percentiles of both in ms, and their ratio. Ours is the path as it ships: drafter, cloud
bridge and verifier as processes, a draft on its topic, over gRPC, and the verdict back; with a
small random pair, whose passes the nodes themselves measure and subtract. The bare path takes turns
with it, block by block, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.msg import DecodeStats, Draft, Verdict, VerifiedTokens

from ...bringup.graph import GraphSettings, Value
from ...errors import UserError
from ...nodes.runtime.qos import SENSOR_DATA
from ...wire.messages import COMPLETE
from ..harness.random_checkpoint import TINY, make_pair
from ..harness.server import VerifierProcess
from . import bare as bare_path
from .bare import Sizes
from .command import Options, Row
from .ros_graph import RosGraph, node_command

Times = dict[str, list[float]]  # ms of each round; idle: bare, without passes in between

UNCOUNTED = 1  # first rounds of a decode: the cloud still encodes the picture
PICTURE = 96  # pixels


OPTIONS: Options = {
    "--blocks": {"type": int, "default": 30, "help": "of either (default %(default)s)"},
    "--tokens": {"type": int, "default": 64, "help": "of a block (default %(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """One row: ours and the bare path, in ms a round."""
    if args.blocks < 1 or args.tokens < 16:
        raise UserError("--blocks must be 1 or more, --tokens 16 or more")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pair = make_pair(folder, TINY, TINY, agreement=0.8, seed=args.seed)
        with _ours(pair, args.tokens, folder) as ours:
            sizes = ours.sizes()
            with _bare(ours.ros, sizes) as bare:
                bare.block(20, (0.0, 0.0))
                times: Times = {"ours": [], "bare": [], "idle": []}
                for block in range(args.blocks):
                    rounds, passes = ours.block()
                    times["ours"] += rounds
                    times["bare"] += bare.block(len(rounds), passes)
                    times["idle"] += bare.block(len(rounds), (0.0, 0.0))
                    print(f"block {block + 1}/{args.blocks}: {_medians(times)}", flush=True)
    return [_row(times, sizes)]


def _medians(times: Times) -> str:
    return ", ".join(f"{name} {np.median(ms):.2f} ms" for name, ms in times.items())


def _row(times: Times, sizes: Sizes) -> Row:
    row: Row = {}
    for name, ms in times.items():
        row |= {f"{name}_ms_p{p}": float(np.percentile(ms, p)) for p in (50, 99)}
    row["ratio"] = row["ours_ms_p50"] / row["bare_ms_p50"]
    row["rounds"] = len(times["ours"])
    return row | {f"{name}_bytes": size for name, size in asdict(sizes).items()}


class _ProjectPath:
    """The path as it ships. A block is a decode, started by one camera frame."""

    def __init__(self, ros: RosGraph, seed: int = 0) -> None:
        self.ros = ros
        self._rng = np.random.default_rng(seed)
        self._stats: list[DecodeStats] = []
        node = ros.node
        self._camera = node.create_publisher(
            CompressedImage, "camera/image_raw/compressed", SENSOR_DATA
        )
        self._instruction = node.create_publisher(String, "instruction", 10)
        node.create_subscription(DecodeStats, "decode_stats", self._stats.append, 10)

    def start(self) -> None:
        """Wait for the nodes, publish the instruction, decode once."""
        self.ros.wait_for(
            lambda: (
                "drafter" in self.ros.subscribers("instruction")
                and "cloud_bridge" in self.ros.subscribers("draft")
                and "drafter" in self.ros.subscribers("verdict")
            ),
            "the drafter and the cloud bridge are up",
        )
        self.ros.spin(1.0)
        self._instruction.publish(String(data="find the silver bottle"))
        self.ros.spin(0.5)
        self._decode()

    def sizes(self) -> Sizes:
        """The median sizes of a round's messages, from a decode of its own."""
        received: dict[Any, list[bytes]] = {}
        kinds = {Draft: "draft", Verdict: "verdict", VerifiedTokens: "verified_tokens"}
        subscriptions = [
            self.ros.node.create_subscription(
                kind, topic, received.setdefault(kind, []).append, 1000, raw=True
            )
            for kind, topic in kinds.items()
        ]
        self.ros.spin(1.0)
        self._decode()
        self.ros.spin(0.5)
        for subscription in subscriptions:
            self.ros.node.destroy_subscription(subscription)
        raw = {kind: int(np.median([len(data) for data in received[kind]])) for kind in kinds}
        payload = {
            kind: int(
                np.median([len(deserialize_message(d, kind).payload) for d in received[kind]])
            )
            for kind in (Draft, Verdict)
        }
        return Sizes(
            raw[Draft], raw[Verdict], raw[VerifiedTokens], payload[Draft], payload[Verdict]
        )

    def block(self) -> tuple[list[float], tuple[float, float]]:
        """A decode: ms of each round outside the models, and s of a draft and verify pass."""
        stats = self._decode()
        passes = stats.draft_ms / stats.rounds / 1e3, stats.verify_ms / stats.rounds / 1e3
        return list(stats.overhead_ms)[UNCOUNTED:], passes

    def _decode(self) -> DecodeStats:
        self._stats.clear()
        pixels = self._rng.integers(0, 255, (PICTURE, PICTURE, 3), np.uint8)
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "JPEG")
        message = CompressedImage(format="jpeg", data=data.getvalue())
        message.header.stamp = self.ros.node.get_clock().now().to_msg()
        self._camera.publish(message)
        self.ros.wait_for(lambda: self._stats, "a decode's statistics")
        stats = self._stats[-1]
        if stats.finish_reason not in COMPLETE:
            raise UserError(f"a decode ended with {stats.finish_reason}")
        return stats


class _BarePath:
    """The bare path's robot, which runs rounds on demand."""

    def __init__(self, robot: subprocess.Popen[str]) -> None:
        self._robot = robot

    def block(self, rounds: int, passes: tuple[float, float]) -> list[float]:
        """Ms of each round; ``passes`` are the seconds of a draft and of a verify pass."""
        assert self._robot.stdin is not None and self._robot.stdout is not None
        self._robot.stdin.write(f"{rounds} {passes[0]} {passes[1]}\n")
        self._robot.stdin.flush()
        times: list[float] = json.loads(self._robot.stdout.readline())
        return times


@contextmanager
def _ours(pair: tuple[Path, Path], tokens: int, folder: Path) -> Iterator[_ProjectPath]:
    target, drafter = pair
    options = ["--target", str(target), "--threads", "1", "--max-tokens", str(tokens)]
    with VerifierProcess(options) as cloud, RosGraph(folder / "logs") as ros:
        # A round is a draft and its verdict: auto has few of them, or none.
        settings = GraphSettings(cloud=cloud.address, preset="dsd", sim=False, drafter=str(drafter))
        ros.start("cloud_bridge", node_command("cloud_bridge", settings))
        endless: dict[str, Value] = {
            "mission__failed_after": 10_000,
            "mission__max_decisions": 100_000,
        }
        answers: dict[str, Value] = {"retry": 0.1, "explain": "full", "max_tokens": tokens}
        ros.start("drafter", node_command("drafter", settings, **answers, **endless))
        ours = _ProjectPath(ros)
        ours.start()
        yield ours


@contextmanager
def _bare(ros: RosGraph, sizes: Sizes) -> Iterator[_BarePath]:
    parts: list[subprocess.Popen[str]] = []

    def start(part: str, *options: str) -> tuple[subprocess.Popen[str], str]:
        argv = [sys.executable, "-m", bare_path.__name__, part, json.dumps(asdict(sizes))]
        process = subprocess.Popen(
            [*argv, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ros.environment,
        )
        parts.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    try:
        _, port = start("cloud")
        start("bridge", "--address", f"127.0.0.1:{port}")
        robot, _ = start("robot")
        yield _BarePath(robot)
    finally:
        for process in reversed(parts):
            process.kill()
            process.communicate()
