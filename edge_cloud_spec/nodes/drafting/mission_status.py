"""The mission under a lock, and the topic ``instruction_status``, which says what becomes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rclpy.node import Node
from std_msgs.msg import String

from ...nav.events import Instruction
from ...nav.mission import End, Event, Mission, MissionSettings
from ..runtime.qos import LATCHED


class MissionStatus:
    """For any thread; each event and what is said of it are one step.

    ``on_end`` is called within that step, so that an instruction that comes at the same time is not
    mistaken for the one that ended. It must not call back. ``settings`` is read at each event.
    """

    def __init__(
        self, node: Node, settings: Callable[[], MissionSettings], on_end: Callable[[End], None]
    ) -> None:
        self._lock = threading.Lock()
        self._mission, self._settings, self._on_end = Mission(), settings, on_end
        self._publisher = node.create_publisher(String, "instruction_status", LATCHED)
        self._logger = node.get_logger()
        self._said = ""
        self.blind = ""  # why there is no picture to decide on; said at the next event

    @property
    def trouble(self) -> str:
        """Why the last decision failed; empty after one that did not."""
        return self._mission.trouble

    def say(self, state: str, detail: str = "") -> None:
        """Follow no instruction, and say this in place of the mission's own state."""
        with self._lock:
            self._mission.on(Instruction("stop"), time.monotonic())
            self._publish(f"{state} {detail}".strip())

    def on(self, event: Event) -> None:
        """Take an event; publish the state where the event changed it, or is an instruction."""
        with self._lock:
            self._mission.settings = self._settings()
            end = self._mission.on(event, time.monotonic())
            if end is not None:
                self._on_end(end)
                self._publish(str(end))
            elif self._mission.instruction:
                trouble = self._mission.held or self.blind or self._mission.trouble
                line = f"following {self._mission.instruction}{trouble and f': {trouble}'}"
                if line != self._said or isinstance(event, Instruction):
                    self._publish(line)

    def _publish(self, line: str) -> None:
        if line.partition(": ")[0] != self._said.partition(": ")[0]:  # else only the trouble is new
            self._logger.info(f"instruction_status: {line}")
        self._said = line
        self._publisher.publish(String(data=line))
