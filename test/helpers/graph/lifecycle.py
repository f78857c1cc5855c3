"""A lifecycle manager's side of a managed node in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

PATIENCE = 90.0  # s; only a hung test takes that long

CONFIGURE = Transition.TRANSITION_CONFIGURE
ACTIVATE = Transition.TRANSITION_ACTIVATE
DEACTIVATE = Transition.TRANSITION_DEACTIVATE
CLEAN_UP = Transition.TRANSITION_CLEANUP
SHUT_DOWN = Transition.TRANSITION_UNCONFIGURED_SHUTDOWN
NO_SUCH = 250
UNCONFIGURED = State.PRIMARY_STATE_UNCONFIGURED
INACTIVE = State.PRIMARY_STATE_INACTIVE
ACTIVE = State.PRIMARY_STATE_ACTIVE
FINALIZED = State.PRIMARY_STATE_FINALIZED


class Manager:
    """Calls the services that ``ros2 lifecycle`` calls."""

    def __init__(self, name: str, node: Node, executor: SingleThreadedExecutor) -> None:
        self.executor = executor
        self._change = node.create_client(ChangeState, f"{name}/change_state")
        self._get = node.create_client(GetState, f"{name}/get_state")
        self._is_answered = False  # whether the node's answers to transitions reach us

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end
            self.executor.spin_once(timeout_sec=0.05)

    @property
    def state(self) -> int:
        return int(self._call(self._get, GetState.Request()).current_state.id)

    def change(self, transition: int) -> bool:
        """Whether the node has made this transition."""
        if not self._is_answered:
            self._call(self._change, _transition(NO_SUCH))
            self._is_answered = True
        return bool(self._call(self._change, _transition(transition), again=False).success)

    def _call(self, client: Any, request: Any, again: bool = True) -> Any:
        """An answer is lost where the server has not found the client yet; what changes nothing may
        be asked again."""
        self.until(client.service_is_ready)
        future = client.call_async(request)
        end = time.monotonic() + (3.0 if again else PATIENCE)
        while not future.done():
            if time.monotonic() > end:
                assert again, "no answer"
                return self._call(client, request)
            self.executor.spin_once(timeout_sec=0.05)
        return future.result()


def _transition(number: int) -> Any:
    return ChangeState.Request(transition=Transition(id=number))


class ManagedProcess:
    """A node that waits to be configured."""

    def __init__(self, module: str, *arguments: str, autostart: bool = False) -> None:
        module = "lab.simulator.simulator" if module == "simulator" else f"nodes.{module}"
        waits = () if autostart else ("autostart:=false",)
        given = [part for argument in (*waits, *arguments) for part in ("-p", argument)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"edge_cloud_spec.{module}", "--ros-args", *given],
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def threads(self) -> int:
        return self._status("Threads")

    @property
    def memory(self) -> int:
        """Resident memory, kB."""
        return self._status("VmRSS")

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
        assert match is not None
        return int(match[1])

    def end(self) -> tuple[int, str]:
        """The exit status after SIGINT, and what was written on stderr."""
        self.process.send_signal(2)
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
