"""The recorder node: records all topics of a running graph into a bag, without affecting it.

``python -m edge_cloud_spec.observe.recorder --ros-args -p folder:=DIR``, the launch argument
``record:=DIR``, or ``edge-cloud-spec record``.
"""

from __future__ import annotations

import argparse
import math
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from rclpy.node import Node

from ..errors import UserError
from ..health import Health, Level
from ..nodes.runtime.diagnostics import Diagnostics
from ..nodes.runtime.node_thread import NodeThread
from ..nodes.runtime.parameters import Parameters
from ..nodes.runtime.run import spin
from ..options import described
from ..share import path_of
from ..signals import SignalEvent, signals_as_event
from .topic_bag import TopicBag, subscribe, subscribe_raw_camera

SHOW_S = 5.0  # between two lines about how much there is


def record(node: Node, folder: Path) -> TopicBag:
    """Record the topics through ``node`` until the bag is closed or its disk is full.

    The node's health tells which. Raises UserError if no bag can be created.
    """
    bag = TopicBag(node, folder)
    subscribe(node, bag.take)
    subscribe_raw_camera(node, bag.take)

    def health() -> Health:
        if bag.problem:
            return Health(Level.ERROR, bag.problem, check="recording")
        return Health(Level.OK, f"recording to {folder}: {bag.text}")

    Diagnostics(node).report(health)
    node.get_logger().info(f"recording to {folder}")
    return bag


class RecorderNode(Node):
    """The recorder as a process of the graph; it keeps running when its disk is full."""

    def __init__(self) -> None:
        super().__init__("recorder")
        folder = Parameters(self, RecorderSettings()).value.folder
        self._bag = record(self, bag_folder(folder))

    def close(self) -> None:
        """End the bag."""
        self._bag.close()
        if self._bag.problem:
            self.get_logger().error(self._bag.problem)


def bag_folder(given: str = "") -> Path:
    """``given``, or by default a folder named for the current time."""
    return path_of(given) if given else Path("bags") / datetime.now().strftime("%Y%m%d-%H%M%S")


@dataclass(frozen=True)
class RecorderSettings:
    """Where the recorder writes."""

    folder: str = described("", "of the bag; empty: bags/ and the time", fixed=True)


def add_record_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``edge-cloud-spec record``."""
    parser.add_argument("--out", type=path_of, metavar="DIR", help="the bag (default bags/TIME)")
    parser.add_argument("--namespace", default="", metavar="NS", help="of the graph's nodes")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="end after so many (default: at Ctrl-C)"
    )


def run_record(args: argparse.Namespace) -> int:
    """Record until Ctrl-C; returns 0.

    Raises UserError if the bag could not be created, or its disk failed.
    """
    if not 0 <= args.seconds < math.inf:
        raise UserError(f"--seconds is 0 or more, not {args.seconds:g}")
    folder = args.out or bag_folder()
    with signals_as_event() as ended:
        with closing(NodeThread("recorder", args.namespace)) as thread:
            bag = record(thread.node, folder)
            thread.start()
            print(f"recording to {folder}; Ctrl-C ends it", flush=True)
            _show(bag, args.seconds, ended)
        bag.close()
    if bag.problem:
        raise UserError(bag.problem)
    print(f"recorded {folder}: {bag.text}")
    return 0


def _show(bag: TopicBag, seconds: float, ended: SignalEvent) -> None:
    begun = shown = time.monotonic()
    while not (ended.wait(0.2) or bag.problem or (seconds and time.monotonic() - begun > seconds)):
        if time.monotonic() - shown > SHOW_S:
            shown = time.monotonic()
            print(f"  {bag.text}", flush=True)


main = partial(spin, RecorderNode)  # runs it until a signal

if __name__ == "__main__":
    main()
