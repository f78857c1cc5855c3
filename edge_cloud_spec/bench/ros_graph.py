"""Nodes as processes on a ROS domain of their own, and one node of the bench's among them."""

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

from ..demo.running_graph import free_domain
from ..errors import UserError
from ..nodes.graph import GraphSettings, Value, command, graph
from ..nodes.processes import Processes, Program

PATIENCE = 240.0  # s; on two cores that are busy with something else, starting takes long


class RosGraph:
    """A context: ``node`` is ours, ``start`` and ``kill`` are for the others; all end with it.

    What the processes say goes to files in ``logs``.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, Processes] = {}

    def __enter__(self) -> RosGraph:
        domain = free_domain()
        self._environment = {
            "ROS_DOMAIN_ID": str(domain),
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        self._context = Context()
        rclpy.init(
            args=[],
            context=self._context,
            domain_id=domain,
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
        """For processes that are to be in the same ROS domain."""
        return {**os.environ, **self._environment}

    @property
    def names(self) -> set[str]:
        """Of the programs that run."""
        return set(self._running)

    def start(self, name: str, argv: Sequence[str]) -> None:
        """Start a program under this name."""
        self._running[name] = Processes([Program(name, argv)], self._environment, self._logs)
        self._running[name].__enter__()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End it with this signal, and wait until it is gone."""
        processes = self._running.pop(name)
        with suppress(ProcessLookupError):
            os.kill(processes.pids[name], number)
        processes.end()

    def until(self, condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        """Hear messages until this holds; raises UserError when it does not come to pass."""
        end = time.monotonic() + patience
        looked = time.monotonic()
        while not condition():
            self._executor.spin_once(timeout_sec=0.1)
            if (now := time.monotonic()) > looked + 1.0:
                looked = now
                for processes in self._running.values():
                    processes.check()
                if now > end:
                    raise UserError(f"{what}: not within {patience:g} s (logs: {self._logs})")

    def hear(self, seconds: float) -> None:
        """Hear messages for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)

    def listeners(self, topic: str) -> set[str]:
        """Names of the nodes that subscribe to a topic."""
        found = self.node.get_subscriptions_info_by_topic(f"/{topic}")
        return {info.node_name for info in found}


def node_command(name: str, settings: GraphSettings, **parameters: Value) -> list[str]:
    """The command line of one node of the graph; ``model__path`` gives ``model.path``."""
    (spec,) = (spec for spec in graph(settings) if spec.name == name)
    given = tuple((key.replace("__", "."), value) for key, value in parameters.items())
    return command(replace(spec, parameters=(*spec.parameters, *given)), settings)
