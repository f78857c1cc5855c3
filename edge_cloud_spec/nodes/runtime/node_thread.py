"""A node with its own context and thread, inside a program that does other work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence

import rclpy
from rclpy.context import Context
from rclpy.exceptions import InvalidHandle
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from ...options import check_namespace

CLOSED_CHECK_S = 0.2  # s after which a closed thread has noticed it, even where no message comes
JOIN_S = 3.0


class NodeThread:
    """``node`` exists at once; its callbacks run between ``start`` and ``close``.

    It handles neither the program's signals nor its ``--ros-args``, only what is given here.
    ``renames``: topics by the node's own names. ``domain`` None: the environment's. The thread ends
    before the executor does: rclpy's ``shutdown`` destroys the guard condition of an executor that
    still spins.
    """

    def __init__(
        self,
        name: str,
        namespace: str = "",
        domain: int | None = None,
        renames: Mapping[str, str] | None = None,
        ros_args: Sequence[str] = (),
    ) -> None:
        check_namespace(namespace)
        self._context = Context()
        rclpy.init(
            args=[],
            context=self._context,
            domain_id=domain,
            signal_handler_options=SignalHandlerOptions.NO,
        )
        renamed = [part for pair in (renames or {}).items() for part in ("-r", ":=".join(pair))]
        given = ["--ros-args", *renamed, "--", *ros_args]
        self.node = Node(name, context=self._context, namespace=namespace, cli_args=given)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._closed = False
        self._thread = threading.Thread(target=self._spin, name=name, daemon=True)

    def start(self) -> None:
        """Start calling back."""
        self._thread.start()

    def close(self) -> None:
        """End the thread after the current callback, then the node."""
        self._closed = True
        if self._thread.is_alive():
            self._executor.wake()
            self._thread.join(JOIN_S)
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            while not self._closed and self._context.ok():
                with contextlib.suppress(InvalidHandle):  # another thread destroyed an entity
                    self._executor.spin_once(timeout_sec=CLOSED_CHECK_S)
