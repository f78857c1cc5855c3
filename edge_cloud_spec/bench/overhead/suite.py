"""``bench overhead``: what a round takes that is no model's, beside bare rclpy and gRPC.

Ours is the path as it ships: drafter, cloud bridge and verifier as processes, a draft on its topic,
over gRPC, and the verdict back; with a small random pair, whose passes the nodes themselves measure
and take off. The bare path takes turns with it, block by block, so that both see the same machine.
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
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.msg import DecodeStats, Draft, Verdict, VerifiedTokens

from ...errors import UserError
from ...harness.random_checkpoint import TINY, make_pair
from ...harness.verifier_process import VerifierProcess
from ...nodes.graph import GraphSettings
from ..command import Row
from ..ros_graph import RosGraph, node_command
from .baseline import Sizes

Times = dict[str, list[float]]  # ms of each round; idle: bare, and nobody computes in between

UNCOUNTED = 1  # first rounds of a decode: the cloud still takes the picture in
PICTURE = 96  # pixels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--blocks", type=int, default=30, help="of either (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of a block (default %(default)s)")


def run(args: argparse.Namespace) -> list[Row]:
    """One row: ours and the bare path, in ms a round."""
    if args.blocks < 1 or args.tokens < 16:
        raise UserError("--blocks must be 1 or more, --tokens 16 or more")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pair = make_pair(folder, TINY, TINY, agreement=0.8, seed=args.seed)
        with _ours(pair, args.tokens, folder) as ours:
            sizes = ours.sizes()
            with _bare(ours.rig, sizes) as bare:
                bare.block(20, (0.0, 0.0))
                times: Times = {"ours": [], "bare": [], "idle": []}
                for block in range(args.blocks):
                    mine, passes = ours.block()
                    times["ours"] += mine
                    times["bare"] += bare.block(len(mine), passes)
                    times["idle"] += bare.block(len(mine), (0.0, 0.0))
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


class _Ours:
    """The real path. A decode is a block, begun by one camera frame."""

    def __init__(self, rig: RosGraph, seed: int = 0) -> None:
        self.rig = rig
        self._rng = np.random.default_rng(seed)
        self._stats: list[DecodeStats] = []
        node = rig.node
        self._camera = node.create_publisher(
            CompressedImage, "camera/image_raw/compressed", qos_profile_sensor_data
        )
        self._instruction = node.create_publisher(String, "instruction", 10)
        node.create_subscription(DecodeStats, "decode_stats", self._stats.append, 10)

    def begin(self) -> None:
        """Wait for the nodes and give the instruction."""
        self.rig.until(
            lambda: (
                "drafter" in self.rig.listeners("instruction")
                and "cloud_bridge" in self.rig.listeners("draft")
                and "drafter" in self.rig.listeners("verdict")
            ),
            "the drafter and the cloud bridge are up",
        )
        self.rig.hear(1.0)
        self._instruction.publish(String(data="find the silver bottle"))
        self.rig.hear(0.5)
        self._decode()

    def sizes(self) -> Sizes:
        """The medians of what a round's messages weigh, from a decode of its own."""
        heard: dict[Any, list[bytes]] = {}
        kinds = {Draft: "draft", Verdict: "verdict", VerifiedTokens: "verified_tokens"}
        subscriptions = [
            self.rig.node.create_subscription(
                kind, topic, heard.setdefault(kind, []).append, 1000, raw=True
            )
            for kind, topic in kinds.items()
        ]
        self.rig.hear(1.0)
        self._decode()
        self.rig.hear(0.5)
        for subscription in subscriptions:
            self.rig.node.destroy_subscription(subscription)
        raw = {kind: int(np.median([len(data) for data in heard[kind]])) for kind in kinds}
        payload = {
            kind: int(np.median([len(deserialize_message(d, kind).payload) for d in heard[kind]]))
            for kind in (Draft, Verdict)
        }
        return Sizes(
            raw[Draft], raw[Verdict], raw[VerifiedTokens], payload[Draft], payload[Verdict]
        )

    def block(self) -> tuple[list[float], tuple[float, float]]:
        """A decode: ms of each round that no model accounts for, and s of a draft and its check."""
        stats = self._decode()
        passes = stats.draft_ms / stats.rounds / 1e3, stats.verify_ms / stats.rounds / 1e3
        return list(stats.overhead_ms)[UNCOUNTED:], passes

    def _decode(self) -> DecodeStats:
        self._stats.clear()
        pixels = self._rng.integers(0, 255, (PICTURE, PICTURE, 3), np.uint8)
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "JPEG")
        message = CompressedImage(format="jpeg", data=data.getvalue())
        message.header.stamp = self.rig.node.get_clock().now().to_msg()
        self._camera.publish(message)
        self.rig.until(lambda: self._stats, "a decode's figures")
        stats = self._stats[-1]
        if stats.finish_reason not in ("end", "length"):
            raise UserError(f"a decode ended with {stats.finish_reason}")
        return stats


class _Bare:
    """The bare path's robot, which plays rounds on demand."""

    def __init__(self, robot: subprocess.Popen[str]) -> None:
        self._robot = robot

    def block(self, rounds: int, passes: tuple[float, float]) -> list[float]:
        """Ms of each round; ``passes`` are the seconds of a draft and of its check."""
        assert self._robot.stdin is not None and self._robot.stdout is not None
        self._robot.stdin.write(f"{rounds} {passes[0]} {passes[1]}\n")
        self._robot.stdin.flush()
        times: list[float] = json.loads(self._robot.stdout.readline())
        return times


@contextmanager
def _ours(pair: tuple[Path, Path], tokens: int, folder: Path) -> Iterator[_Ours]:
    target, drafter = pair
    options = ["--target", str(target), "--threads", "1", "--max-tokens", str(tokens)]
    with VerifierProcess(options) as cloud, RosGraph(folder / "logs") as rig:
        settings = GraphSettings(cloud=cloud.address, sim=False, drafter=str(drafter))
        rig.start("cloud_bridge", node_command("cloud_bridge", settings))
        parameters = {"retry": 0.1, "max_tokens": tokens}
        rig.start("drafter", node_command("drafter", settings, **parameters))
        ours = _Ours(rig)
        ours.begin()
        yield ours


@contextmanager
def _bare(rig: RosGraph, sizes: Sizes) -> Iterator[_Bare]:
    parts: list[subprocess.Popen[str]] = []

    def start(part: str, *options: str) -> tuple[subprocess.Popen[str], str]:
        argv = [sys.executable, "-m", f"{__package__}.baseline", part, json.dumps(asdict(sizes))]
        process = subprocess.Popen(
            [*argv, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=rig.environment,
        )
        parts.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    try:
        _, port = start("cloud")
        start("bridge", "--address", f"127.0.0.1:{port}")
        robot, _ = start("robot")
        yield _Bare(robot)
    finally:
        for process in reversed(parts):
            process.kill()
            process.communicate()
