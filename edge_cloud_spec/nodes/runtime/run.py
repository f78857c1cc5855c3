"""Runs nodes as a program: an executor in a thread, signals in the main thread."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING, NoReturn, cast

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from ...errors import CANNOT_START, TRACEBACKS, UserError, sentence
from ...signals import SignalEvent, signals_as_event
from .heartbeat import HANG_CHECK_S, Pulse, watch
from .parameters import refuse_unknown_parameters
from .parent import end_with_launch, leave
from .qos import STEADY
from .transport import udp_alone

if TYPE_CHECKING:
    from .managed_node import ManagedNode

EXIT_TIMEOUT = 3.0  # s for a node to close and its threads to end; our launch kills after 4.8

FORCED = "error: a callback, or the making of the node, did not end; exiting without it"


def spin(*makes: Callable[[], Node]) -> NoReturn:
    """Make a node, or several, and serve them until SIGINT, SIGTERM or SIGHUP; ends the program.

    A managed node is configured and activated first, unless its parameter ``autostart`` is false.
    The node's ``close()``, if any, is called while ROS still works, so that it can publish last
    messages. Signals may come at any moment, and several at once: a terminal and a launch both send
    SIGINT, and a launch again. The program ends within ``EXIT_TIMEOUT`` after the first, wherever
    it is. A UserError from ``make``, or at configuring, ends the program with status 2 and one
    sentence; an exception in a callback is logged, its traceback in ROS's log
    folder (``keep_tracebacks``), and the node continues. A thread that hangs ends
    the program with status 3 (``heartbeat.watch``).

    One thread serves all callbacks: rclpy's multi-threaded executor submits a callback that its
    pool has not started again and again, and on a busy machine an e_stop then waits for a second
    behind thousands of those. Callbacks that must not wait for others have a
    ``SubscriptionThread``.
    """
    with signals_as_event() as stop:
        threading.Thread(target=_exit_after, args=(stop,), daemon=True).start()
        end_with_launch()
        try:
            with udp_alone():
                _init()
                nodes = [make() for make in makes]
            for node in nodes:
                if _managed(node) is None:  # which does this when it is configured
                    refuse_unknown_parameters(node)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            rclpy.try_shutdown()
            leave(CANNOT_START)
        keep_tracebacks(nodes[0].get_name())
        pulses = getattr(nodes[0], "pulses", [Pulse("executor")])
        nodes[0].create_timer(HANG_CHECK_S, pulses[0].beat, clock=STEADY)
        watch(pulses, stop)
        service = _Service(nodes, stop)
        service.start()
        try:
            while not stop.wait(1.0) and rclpy.ok():
                pass
        finally:
            stop.set()
            for node in nodes:
                getattr(node, "close", lambda: None)()
            service.close()
            for node in nodes:
                node.destroy_node()
            rclpy.try_shutdown()
        leave(service.status)


def keep_tracebacks(name: str) -> None:
    """Write tracebacks to ``NAME_PID_tracebacks.log`` beside ROS's own logs, 2 MB at most."""
    path = f"{rclpy.logging.get_logging_directory()}/{name}_{os.getpid()}_tracebacks.log"
    kept = RotatingFileHandler(path, maxBytes=2**20, backupCount=1, delay=True)
    kept.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    kept.addFilter(lambda made: not (made.exc_info and isinstance(made.exc_info[1], UserError)))
    TRACEBACKS.addHandler(kept)
    TRACEBACKS.setLevel(logging.DEBUG)


class _Service(threading.Thread):
    """A thread that brings up a managed node and serves the nodes' callbacks until ``stop``."""

    def __init__(self, nodes: Sequence[Node], stop: SignalEvent) -> None:
        super().__init__(name="executor")
        self.status = 0
        self._node, self._stop_event = nodes[0], stop  # a managed one has the program to itself
        self._executor = SingleThreadedExecutor()
        for node in nodes:
            self._executor.add_node(node)

    def run(self) -> None:
        node, stop = self._node, self._stop_event
        managed = _managed(node)
        if managed is not None and managed.autostart and not stop.is_set():
            try:
                managed.bring_up()
            except UserError as error:
                if not stop.is_set():  # else that is why
                    print(f"error: {error}", file=sys.stderr, flush=True)
                    self.status = CANNOT_START
                    stop.set()
        while not stop.is_set() and rclpy.ok():
            try:
                self._executor.spin()
            except ExternalShutdownException:
                return
            except Exception as error:
                if stop.is_set():
                    return
                problem = sentence(error) or f"a callback failed, going on: {error!r}"
                node.get_logger().error(problem)
                TRACEBACKS.debug(problem, exc_info=True)
                stop.wait(0.01)  # a callback that always fails must not occupy the processor

    def close(self) -> None:
        """End the thread; a node that loads a model is not waited for, and the program ends."""
        self._executor.shutdown(timeout_sec=1.0)
        self.join(1.0)  # together less than EXIT_TIMEOUT
        if self.is_alive() and getattr(self._node, "in_transition", False):
            os._exit(self.status)


def _managed(node: Node) -> ManagedNode | None:
    """The node, if it is a managed one. Others do without rclpy's lifecycle, and its 5 MB."""
    return cast("ManagedNode", node) if hasattr(node, "bring_up") else None


def _exit_after(stop: SignalEvent) -> None:
    """Exit by force if a callback, or DDS where a node is made, blocks the end of the program."""
    stop.wait()
    time.sleep(EXIT_TIMEOUT)
    print(FORCED, file=sys.stderr, flush=True)
    os._exit(1)


def _init() -> None:
    try:
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:  # the classes differ between distributions
        first = str(error).strip().partition("\n")[0]
        raise UserError(f"ROS does not take the arguments or a parameter file: {first}") from error
