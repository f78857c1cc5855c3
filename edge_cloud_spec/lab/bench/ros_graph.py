"""Nodes as processes in a ROS domain of their own, and the benchmark's own node among them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import try_shutdown

from ...bringup.graph import GraphSettings, Value, command, graph
from ...bringup.processes import Processes, Program
from ...bringup.running_graph import free_domain
from ...errors import UserError

STANDING = (0.02, 0.02)  # m/s, rad/s under which the base stands, as the simulator has it
STARTUP_TIMEOUT = 240.0  # s; on two busy cores, starting takes long


class RosGraph:
    """A context manager: ``node`` is the benchmark's, ``start`` and ``kill`` are for processes.

    All end with the context. The processes' output is written to files in ``logs``.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, Processes] = {}

    def __enter__(self) -> RosGraph:
        self.domain = free_domain()
        self._environment = {
            "ROS_DOMAIN_ID": str(self.domain),
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        self._context = Context()
        rclpy.init(
            args=[],
            context=self._context,
            domain_id=self.domain,
            signal_handler_options=SignalHandlerOptions.NO,
        )
        self.node = Node("bench", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self._running):
            self.kill(name, signal.SIGINT)
        self._executor.shutdown()
        self.node.destroy_node()
        try_shutdown(context=self._context)

    @property
    def environment(self) -> dict[str, str]:
        """For other processes in the same ROS domain."""
        return {**os.environ, **self._environment}

    @property
    def running(self) -> set[str]:
        """Names of the programs that run."""
        return set(self._running)

    def start(self, name: str, argv: Sequence[str]) -> None:
        """Start a program under this name."""
        self._running[name] = Processes([Program(name, argv)], self._environment, self._logs)
        self._running[name].__enter__()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send it this signal, and wait until it has ended."""
        processes = self._running.pop(name)
        with suppress(ProcessLookupError):
            os.kill(processes.pids[name], number)
        processes.end()

    def pid(self, name: str) -> int:
        """The number of a program's process."""
        return self._running[name].pids[name]

    def ended(self, name: str) -> str:
        """How a program has ended by itself; empty while it runs."""
        try:
            self._running[name].check()
        except UserError as error:
            return str(error)
        return ""

    def wait_for(
        self, condition: Callable[[], object], what: str, timeout: float = STARTUP_TIMEOUT
    ) -> None:
        """Spin until the condition holds; raises UserError where it does not within ``timeout``."""
        end = time.monotonic() + timeout
        checked = time.monotonic()
        while not condition():
            self._executor.spin_once(timeout_sec=0.1)
            if (now := time.monotonic()) > checked + 1.0:
                checked = now
                for processes in self._running.values():
                    processes.check()
                if now > end:
                    raise UserError(f"{what}: not within {timeout:g} s (logs: {self._logs})")

    def spin(self, seconds: float) -> None:
        """Handle messages for so many seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)

    def subscribers(self, topic: str) -> set[str]:
        """Names of the nodes that subscribe to a topic."""
        found = self.node.get_subscriptions_info_by_topic(f"/{topic}")
        return {info.node_name for info in found}


def node_command(name: str, settings: GraphSettings, **parameters: Value) -> list[str]:
    """The command line of one node of the graph; ``model__path`` gives ``model.path``."""
    (spec,) = (spec for spec in graph(settings) if spec.name == name)
    given = tuple((key.replace("__", "."), value) for key, value in parameters.items())
    return command(replace(spec, parameters=(*spec.parameters, *given)), settings)
