"""``bench overhead``: a round's time outside the models, beside bare rclpy and gRPC.

Prints percentiles of both in ms, and their ratio. Ours is the path as it ships: drafter, cloud
bridge and verifier as processes, a draft on its topic, over gRPC, and the verdict back; with a
small random pair, whose passes the nodes themselves measure and subtract. The bare path takes turns
with it, block by block, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.msg import DecodeStats

from ...bringup.graph import GraphSettings, Value
from ...errors import UserError
from ...nodes.topics import TOPICS
from ...wire.messages import COMPLETE
from ..harness.random_checkpoint import TINY, make_pair
from ..sim.camera import encode_jpeg
from . import bare as bare_path
from .bare import Sizes
from .command import Options, Row
from .live import ENDLESS, LiveRig

UNCOUNTED = 1  # first rounds of a decode: the cloud still encodes the picture
PICTURE = 96  # pixels
CAMERA = "camera/image_raw/compressed"
WIRE = ("draft", "verdict")
SIZED = (*WIRE, "verified_tokens")  # topics, in the order of ``Sizes``


OPTIONS: Options = {
    "--blocks": {"type": int, "default": 30, "help": "of either (default %(default)s)"},
    "--tokens": {"type": int, "default": 64, "help": "of a block (default %(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """One row: ours and the bare path, in ms a round."""
    if args.blocks < 1 or args.tokens < 16:
        raise UserError("--blocks must be 1 or more, --tokens 16 or more")
    times: dict[str, list[float]] = {"ours": [], "bare": []}  # ms of each round
    with closing(LiveRig(GraphSettings())) as rig:
        pair = make_pair(rig.folder, TINY, TINY, agreement=0.8, seed=args.seed)
        ours = _ProjectPath(rig, pair, args.tokens, args.seed)
        sizes = ours.sizes()
        with _bare(rig.environment, sizes) as bare:
            bare(20, (0.0, 0.0))
            for block in range(args.blocks):
                rounds, passes = ours.block()
                times["ours"] += rounds
                times["bare"] += bare(len(rounds), passes)
                medians = (f"{name} {np.median(ms):.2f} ms" for name, ms in times.items())
                print(f"block {block + 1}/{args.blocks}: {', '.join(medians)}", flush=True)
    row: Row = {}
    for name, ms in times.items():
        row |= {f"{name}_ms_p{p}": float(np.percentile(ms, p)) for p in (50, 99)}
    row["ratio"] = row["ours_ms_p50"] / row["bare_ms_p50"]
    row["rounds"] = len(times["ours"])
    return [row | {f"{name}_bytes": size for name, size in asdict(sizes).items()}]


class _ProjectPath:
    """The path as it ships, up and warm. A block is a decode, started by one camera frame."""

    def __init__(self, rig: LiveRig, pair: tuple[Path, Path], tokens: int, seed: int) -> None:
        self._rig, self._rng = rig, np.random.default_rng(seed)
        self._stats: list[DecodeStats] = []
        kind, qos = TOPICS[CAMERA]
        self._camera = rig.node.create_publisher(kind, CAMERA, qos)
        instruction = rig.node.create_publisher(String, "instruction", 10)
        rig.node.create_subscription(DecodeStats, "decode_stats", self._stats.append, 10)
        target, drafter = map(str, pair)
        # A round is a draft and its verdict: auto has few of them, or none.
        rig.settings = replace(rig.settings, preset="dsd", sim=False, drafter=drafter)
        rig.start_verifier(target=target, max_tokens=str(tokens))
        rig.start("cloud_bridge", rig.node_command("cloud_bridge"))
        answers: dict[str, Value] = {"retry": 0.1, "explain": "full", "max_tokens": tokens}
        rig.start("drafter", rig.node_command("drafter", **answers, **ENDLESS))
        rig.wait_for(
            lambda: (
                "drafter" in rig.subscribers("instruction") & rig.subscribers("verdict")
                and "cloud_bridge" in rig.subscribers("draft")
            ),
            "the drafter and the cloud bridge are up",
        )
        time.sleep(1.0)
        instruction.publish(String(data="find the silver bottle"))
        time.sleep(0.5)
        self._decode()

    def sizes(self) -> Sizes:
        """The median sizes of a round's messages, from a decode of its own."""
        received: dict[str, list[bytes]] = {topic: [] for topic in SIZED}
        subscriptions = [
            self._rig.node.create_subscription(
                TOPICS[topic][0], topic, received[topic].append, 1000, raw=True
            )
            for topic in SIZED
        ]
        time.sleep(1.0)
        self._decode()
        time.sleep(0.5)
        for subscription in subscriptions:
            self._rig.node.destroy_subscription(subscription)
        found = [int(np.median([len(data) for data in received[topic]])) for topic in SIZED]
        for topic in WIRE:
            messages = (deserialize_message(data, TOPICS[topic][0]) for data in received[topic])
            found.append(int(np.median([len(message.payload) for message in messages])))
        return Sizes(*found)

    def block(self) -> tuple[list[float], tuple[float, float]]:
        """A decode: ms of each round outside the models, and s of a draft and verify pass."""
        stats = self._decode()
        passes = stats.draft_ms / stats.rounds / 1e3, stats.verify_ms / stats.rounds / 1e3
        return list(stats.overhead_ms)[UNCOUNTED:], passes

    def _decode(self) -> DecodeStats:
        self._stats.clear()
        pixels = self._rng.integers(0, 255, (PICTURE, PICTURE, 3), np.uint8)
        message = CompressedImage(format="jpeg", data=encode_jpeg(pixels, 75))
        message.header.stamp = self._rig.node.get_clock().now().to_msg()
        self._camera.publish(message)
        self._rig.wait_for(lambda: self._stats, "a decode's statistics")
        stats = self._stats[-1]
        if stats.finish_reason not in COMPLETE:
            raise UserError(f"a decode ended with {stats.finish_reason}")
        return stats


Block = Callable[[int, tuple[float, float]], list[float]]


@contextmanager
def _bare(environment: Mapping[str, str], sizes: Sizes) -> Iterator[Block]:
    """Runs so many rounds of the bare path; its passes take so many s. Gives ms of each round."""
    with ExitStack() as parts:

        def start(part: str, *options: str) -> tuple[Any, Any, str]:
            argv = [sys.executable, "-m", bare_path.__name__, part, json.dumps(asdict(sizes))]
            process: Any = parts.enter_context(
                subprocess.Popen(
                    [*argv, *options],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            parts.callback(process.kill)
            return process.stdin, process.stdout, process.stdout.readline().strip()

        _, _, port = start("cloud")
        start("bridge", "--address", f"127.0.0.1:{port}")
        tell, told, _ = start("robot")

        def block(rounds: int, passes: tuple[float, float]) -> list[float]:
            print(rounds, *passes, file=tell, flush=True)
            times: list[float] = json.loads(told.readline())
            return times

        yield block
