"""Running one node as a program: an executor in a thread, signals in the main thread."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from ...errors import UserError

EXIT_TIMEOUT = 10.0  # s for threads to end after the node was closed


def spin(make: Callable[[], Node]) -> int:
    """Make a node and serve it until SIGINT or SIGTERM; returns the exit status.

    ``close()`` of the node, if it has one, is called while ROS still works, so that a node can
    publish its last messages. A launch sends SIGINT twice: the second one comes during the shutdown
    and does nothing. A UserError from ``make`` ends the program with status 2 and one sentence;
    what a callback raises is logged and the node continues.

    One thread serves all callbacks: rclpy's multi-threaded executor submits a callback that its
    pool has not started to the pool again and again, and on a busy machine an e_stop then waits for
    a second behind thousands of those. What may not wait for another callback has a
    ``SubscriptionThread``.
    """
    stop = threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask_to_stop)
    try:
        _init()
        node = make()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        rclpy.try_shutdown()
        return 2
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    thread = threading.Thread(target=_serve, args=(executor, node, stop), name="executor")
    thread.start()
    try:
        while not stop.wait(1.0) and rclpy.ok():
            pass
    finally:
        stop.set()
        close = getattr(node, "close", None)
        if close is not None:
            close()
        _exit_within(EXIT_TIMEOUT)
        executor.shutdown(timeout_sec=2.0)
        thread.join(2.0)
        node.destroy_node()
        rclpy.try_shutdown()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a late one must not interrupt the exit
    return 0


def _exit_within(seconds: float) -> None:
    """End the program by force if a callback that does not return holds it for this long."""

    def force_exit() -> None:
        print("error: a callback did not end; exiting without it", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, force_exit)
    timer.daemon = True
    timer.start()


def _init() -> None:
    try:
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:  # the classes differ between distributions
        first = str(error).strip().partition("\n")[0]
        raise UserError(f"ROS does not take the arguments or a parameter file: {first}") from error


def _serve(executor: SingleThreadedExecutor, node: Node, stop: threading.Event) -> None:
    while not stop.is_set() and rclpy.ok():
        try:
            executor.spin()
        except ExternalShutdownException:
            return
        except UserError as error:
            node.get_logger().error(str(error))
        except Exception as error:
            if stop.is_set():
                return
            node.get_logger().error(f"a callback failed, going on: {error!r}")
            node.get_logger().debug(traceback.format_exc())
            stop.wait(0.01)  # a callback that always fails must not occupy the processor
