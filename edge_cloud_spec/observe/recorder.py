"""The recorder node: all topics of a running graph into a bag; it disturbs nothing.

``python -m edge_cloud_spec.observe.recorder --ros-args -p folder:=DIR``, the launch argument
``record:=DIR``, or ``edge-cloud-spec record``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from ..bounds import described
from ..errors import UserError
from ..nodes.health import Health, Level
from ..nodes.runtime.diagnostics import Diagnostics
from ..nodes.runtime.parameters import Parameters
from ..nodes.runtime.run import spin
from ..signals import signals_as_interrupt
from .topic_bag import RAW_CAMERA, TopicBag, subscribe

COMPRESSED_CAMERA = "camera/image_raw/compressed"
LOOK_S = 1.0  # between two looks for a camera that is raw only
SHOW_S = 5.0  # between two lines about how much there is


class RecorderNode(Node):
    """Records until it is closed, or until its disk is full; then it says so, and stays.

    Raises UserError where no bag can be begun.
    """

    def __init__(
        self, folder: Path | None = None, context: Context | None = None, namespace: str = ""
    ) -> None:
        super().__init__("recorder", context=context, namespace=namespace or None)
        settings = Parameters(self, RecorderSettings()).value
        self.bag = TopicBag(self, folder or bag_folder(settings.folder))
        self._reported = False
        self._raw = False
        subscribe(self, self._take)
        Diagnostics(self).report(self.health)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(LOOK_S, self._look, clock=steady)
        self.get_logger().info(f"recording to {self.bag.folder}")

    def _take(self, topic: str, cdr: bytes, stamp: int) -> None:
        self.bag.write(topic, cdr, stamp)
        if self.bag.problem and not self._reported:
            self._reported = True
            self.get_logger().error(self.bag.problem)

    def _look(self) -> None:
        """A raw camera is recorded only where it is the only one: it is thirty times as large."""
        wanted = self.count_publishers(RAW_CAMERA) and not self.count_publishers(COMPRESSED_CAMERA)
        if wanted and not self._raw:
            self._raw = True
            subscribe(self, self._take, (RAW_CAMERA,))

    def health(self) -> Health:
        """How the recording is."""
        if self.bag.problem:
            return Health(Level.ERROR, self.bag.problem)
        return Health(Level.OK, f"recording to {self.bag.folder}: {self.bag.text}")

    def close(self) -> None:
        """End the bag."""
        self.bag.close()
        if self.bag.problem and not self._reported:
            self.get_logger().error(self.bag.problem)


def bag_folder(given: str = "") -> Path:
    """The folder to record to: this one, or one named for the time."""
    return Path(given) if given else Path("bags") / datetime.now().strftime("%Y%m%d-%H%M%S")


@dataclass(frozen=True)
class RecorderSettings:
    """Where the recorder writes."""

    folder: str = described("", "of the bag; empty: bags/ and the time", fixed=True)


def add_record_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``edge-cloud-spec record``."""
    parser.add_argument("--out", type=Path, metavar="DIR", help="the bag (default bags/TIME)")
    parser.add_argument("--namespace", default="", metavar="NS", help="of the graph's nodes")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="end after so many (default: at Ctrl-C)"
    )


def run_record(args: argparse.Namespace) -> int:
    """Record; 0 when a bag with messages was ended in order.

    1: nothing was published. Raises UserError where the bag could not be begun or was ended by
    its disk.
    """
    folder = args.out or bag_folder()
    context, executor = Context(), None
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = RecorderNode(folder, context, args.namespace)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        print(f"recording to {folder}; Ctrl-C ends it", flush=True)
        try:
            with contextlib.suppress(KeyboardInterrupt), signals_as_interrupt():
                _spin(executor.spin_once, node, args.seconds)
        finally:
            node.close()
    finally:
        if executor is not None:
            executor.shutdown()
        rclpy.try_shutdown(context=context)
    if node.bag.problem:
        raise UserError(node.bag.problem)
    print(f"recorded {folder}: {node.bag.text}")
    if not node.bag.messages:
        domain = os.environ.get("ROS_DOMAIN_ID", "0")
        print(f"nothing was published in ROS domain {domain}, namespace /{args.namespace}")
    return int(not node.bag.messages)


def _spin(spin_once: Callable[..., None], node: RecorderNode, seconds: float) -> None:
    begun = shown = time.monotonic()
    while not node.bag.problem:
        spin_once(timeout_sec=0.2)
        now = time.monotonic()
        if now - shown > SHOW_S:
            shown = now
            print(f"  {node.bag.text}", flush=True)
        if seconds and now - begun > seconds:
            return


def main() -> int:
    """Run the node until a signal."""
    return spin(RecorderNode)


if __name__ == "__main__":
    sys.exit(main())
