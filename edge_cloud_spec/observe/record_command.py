"""``edge-cloud-spec record``: all topics of a graph that runs, into a bag, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from ..errors import UserError
from ..signals import signals_as_interrupt
from .recorder import RecorderNode, bag_folder

SHOW_S = 5.0  # between two lines about how much there is


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
