"""The live rig: our programs in a ROS domain of their own, and an observing node (the bystander).

The bystander records what is published, and acts as the operator. Its node has its own thread, so
that a busy bench delays no message.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import QoSProfile
from rclpy.time import Time
from std_msgs.msg import String

from edge_cloud_spec.bringup.graph import GraphSettings, Value, graph
from edge_cloud_spec.edge.link.state import LinkReport
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.msg import DecodeRequest, DecodeStats, NavAction, VerifiedTokens
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.nav.status import UNKNOWN, GoalStatus, NavigatorStatus
from edge_cloud_spec.nodes.nav_messages import to_reading
from edge_cloud_spec.nodes.runtime.node_thread import NodeThread
from edge_cloud_spec.nodes.runtime.qos import DECODE, RELIABLE
from edge_cloud_spec.nodes.topics import TOPICS
from edge_cloud_spec.observe.topic_bag import timed
from edge_cloud_spec.wire.codec import decode_client, decode_server, read_client, read_server
from edge_cloud_spec.wire.messages import DraftMessage, Opened, Verdict

from ..running.processes import Processes
from ..running.running_graph import command, free_address, free_domain, is_serving, this_machine
from .judge import (
    Asked,
    BaseCommand,
    BaseMotion,
    Command,
    Event,
    Instructed,
    OnWire,
    Reported,
)

RIG_STARTUP_TIMEOUT_S = 240.0  # on two busy cores, starting takes long
RIG_POLL_S = 0.02  # s between two looks at what is waited for


class LiveRig:
    """Starts and kills programs, until ``close``; their output is written to files in ``logs``.

    ``settings``: the graph's, whose cloud is the rig's verifier; ``folder`` is deleted with the
    rig.
    """

    def __init__(self, settings: GraphSettings, logs: Path | None = None) -> None:
        """logs: a folder; None: output is not kept."""
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        self._logs = logs or self.folder / "logs"
        self._running: dict[str, Processes] = {}
        self.verifier_address = free_address()
        self.settings = replace(settings, cloud=self.verifier_address)
        domain = free_domain()
        os.environ.update(this_machine())
        self._environment = {
            "ROS_DOMAIN_ID": str(domain),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        self._thread = NodeThread("bystander", domain=domain)
        self.node = self._thread.node
        self._thread.start()

    def close(self) -> None:
        """End all programs, and the node."""
        for name in list(self._running):
            self.kill(name, signal.SIGINT)
        self._thread.close()
        self._temporary.cleanup()

    @property
    def running(self) -> set[str]:
        """The names of the running programs."""
        return set(self._running)

    def start(self, name: str, argv: Sequence[str]) -> None:
        """Start a program under this name."""
        self._running[name] = Processes({name: argv}, self._environment, self._logs)
        self._running[name].__enter__()

    def start_verifier(self, **options: str) -> None:
        """Start the verifier that the nodes reach, and wait until it serves."""
        self.start("verifier", self.verifier_command(self.verifier_address, **options))
        self.wait_for(lambda: is_serving(self.verifier_address), "the verifier is up")

    def node_command(self, name: str, **parameters: Value) -> list[str]:
        """The command line of a node of the graph; ``model__path`` stands for ``model.path``."""
        (spec,) = (spec for spec in graph(self.settings) if name in (spec.name, *spec.nodes))
        given = tuple((key.replace("__", "."), value) for key, value in parameters.items())
        return command(replace(spec, parameters=(*spec.parameters, *given)), self.settings)

    def verifier_command(self, address: str, **options: str) -> list[str]:
        """The command line of a verifier; by default with the embedded target."""
        given = {"target": str(EMBEDDED / "target"), "threads": "1", "max_tokens": "48"}
        given |= {"address": address, **options}
        argv = [sys.executable, "-m", "edge_cloud_spec.nodes.cloud_verifier"]
        for option, value in given.items():
            argv += [f"--{option.replace('_', '-')}", value]
        return argv

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send this signal to a program, and wait until it has ended."""
        processes = self._running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(processes.pids[name], number)
        processes.end()

    def pid(self, name: str) -> int:
        """A program's process id."""
        return self._running[name].pids[name]

    def ended(self, name: str) -> str:
        """How a program has ended by itself; empty while it runs."""
        try:
            self._running[name].check()
        except UserError as error:
            return str(error)
        return ""

    def wait_for(
        self, condition: Callable[[], object], what: str, timeout: float = RIG_STARTUP_TIMEOUT_S
    ) -> None:
        """Wait until the condition holds; raises UserError if it does not within ``timeout``."""
        checked = time.monotonic()
        end = checked + timeout
        while not condition():
            time.sleep(RIG_POLL_S)
            if (now := time.monotonic()) > checked + 1.0:
                checked = now
                for processes in self._running.values():
                    processes.check()
                if now > end:
                    raise UserError(f"{what}: not within {timeout:g} s (logs: {self._logs})")

    def subscribers(self, topic: str) -> set[str]:
        """The names of the nodes that subscribe to a topic."""
        found = self.node.get_subscriptions_info_by_topic(self.node.resolve_topic_name(topic))
        return {info.node_name for info in found}

    def publishers(self, topic: str, node: str) -> set[bytes]:
        """The ids of this node's publishers on a topic."""
        found = self.node.get_publishers_info_by_topic(self.node.resolve_topic_name(topic))
        return {bytes(info.endpoint_gid) for info in found if info.node_name == node}


STANDING = (0.02, 0.02)  # m/s, rad/s under which the base stands, as the simulator has it
MANY = QoSProfile(depth=1000)
FOREIGN = 0.001  # m/s upward, by which the bench's own Twists are known: no navigator commands it
PRINTED_TOPICS = ("nav_status", "instruction_status", "link_state")


class Watch:
    """Records ``events`` since ``forget``, and the newest of each kind; ``at`` is when it was
    published."""

    def __init__(
        self, rig: LiveRig, odometry: str = "odom", left_out: Collection[str] = ()
    ) -> None:
        """odometry: the topic with the base's true motion. left_out: topics that are not
        recorded."""
        self._node = rig.node
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self.lines = dict.fromkeys(PRINTED_TOPICS, "")
        self.nav_status = NavigatorStatus("stopped")
        self.instruction_status = GoalStatus(UNKNOWN)
        self.last_motion = 0.0  # when the last velocity that moves was published
        self.last_command: Command | None = None
        self.stands_since = math.inf  # by the base's own odometry; infinite while it moves
        self.begun: dict[str, float] = {}  # requests, and when each was published
        self.stats: dict[str, DecodeStats] = {}  # of those that have ended
        self.instruction = ""
        self._instruction = rig.node.create_publisher(String, "instruction", RELIABLE)
        takes: dict[str, Callable[[float, Any], None]] = {
            "decode_request": self._on_request,
            "draft": partial(self._on_wire, lambda data: decode_client(read_client(data))),
            "verdict": partial(self._on_wire, lambda data: decode_server(read_server(data))),
            "nav_command": self._on_command,
            "nav_status": self._on_nav_status,
            "cmd_vel": self._on_twist,
            "decode_stats": self._on_stats,
            "/diagnostics": self._on_diagnostics,
            "odom": self._on_odometry,
            "instruction_status": self._on_instruction_status,
            "link_state": self._on_link_state,
        }
        for topic, take in takes.items():
            if topic not in left_out:
                kind, qos = TOPICS[topic]
                qos = MANY if qos in (RELIABLE, DECODE) else qos
                name = odometry if topic == "odom" else topic
                rig.node.create_subscription(kind, name, timed(partial(_at, take)), qos)

    @property
    def events(self) -> list[Event]:
        """The events recorded since ``forget``."""
        with self._lock:
            return list(self._events)

    def forget(self, before: float) -> None:
        """Drop the events from before this time, except the operator's."""
        with self._lock:
            self._events = [
                event
                for event in self._events
                if event.at >= before or isinstance(event, Instructed)
            ]

    def note(self, event: Event) -> None:
        """Record an event; from any thread."""
        with self._lock:
            self._events.append(event)

    def instruct(self, text: str) -> None:
        """Publish an instruction, as an operator does."""
        self.instruction = text
        self.note(Instructed(time.time(), text))
        self._instruction.publish(String(data=text))

    def answer(self, request: str, text: str) -> VerifiedTokens:
        """A forged message: a complete verified answer to the last instruction, on a current
        frame."""
        reading = to_reading(CLAUSES.read(text))
        message = VerifiedTokens(request_id=request, text=text, answer=text, tokens=[1], **reading)
        message.verified = message.finished = True
        message.goal_id = self.instruction_status.goal_id
        message.instruction = self.instruction
        message.stops = self.nav_status.stops
        message.header.stamp = self._node.get_clock().now().to_msg()
        return message

    def _on_nav_status(self, at: float, message: Any) -> None:
        self.nav_status = NavigatorStatus.read(message)
        self._line(at, "nav_status", str(self.nav_status), self.nav_status)

    def _on_instruction_status(self, at: float, message: Any) -> None:
        self.instruction_status = GoalStatus.read(message)
        self._line(at, "instruction_status", str(self.instruction_status))

    def _on_link_state(self, at: float, message: Any) -> None:
        self._line(at, "link_state", str(LinkReport.read(message)))

    def _line(
        self, at: float, topic: str, text: str, status: NavigatorStatus | None = None
    ) -> None:
        self.lines[topic] = text
        self.note(Reported(at, topic, text, status))

    # Messages

    def _on_request(self, at: float, message: Any) -> None:
        if message.kind == DecodeRequest.OPEN:
            self.begun.setdefault(message.request_id, at)
            self.note(Asked(at, message.request_id, message.instruction, stamp_of(message)))

    def _on_wire(self, read: Callable[[bytes], Any], at: float, message: Any) -> None:
        with contextlib.suppress(ValueError):
            found = read(message.payload.tobytes())
            if isinstance(found, DraftMessage | Opened | Verdict):
                self.note(OnWire(at, message.request_id, found))

    def _on_stats(self, at: float, message: Any) -> None:
        self.stats[message.request_id] = message

    def _on_command(self, at: float, message: Any) -> None:
        self.last_command = Command(
            at,
            message.request_id,
            message.text,
            stamp_of(message),
            Time.from_msg(message.expiry).nanoseconds / 1e9,
            message.verified,
            message.action.verb != NavAction.STOP,
        )
        self.note(self.last_command)

    def _on_twist(self, at: float, message: Any) -> None:
        foreign = abs(message.linear.z - FOREIGN) < FOREIGN / 10
        moves = _moves(message)
        if moves and not foreign:
            self.last_motion = at
        self.note(BaseCommand(at, moves, foreign))

    def _on_odometry(self, at: float, message: Any) -> None:
        moves = _moves(message.twist.twist)
        self.stands_since = math.inf if moves else min(self.stands_since, at)
        self.note(BaseMotion(at, moves))

    def _on_diagnostics(self, at: float, message: Any) -> None:
        for status in message.status:
            if status.level != DiagnosticStatus.OK:
                self._line(at, status.name, status.message)
            else:
                self.lines[status.name] = status.message


def stamp_of(message: Any) -> int:
    """The stamp in a message's header, ns."""
    stamp: int = Time.from_msg(message.header.stamp).nanoseconds
    return stamp


def _moves(twist: Any) -> bool:
    speed = max(abs(twist.linear.x), abs(twist.linear.y))
    return bool(speed > STANDING[0] or abs(twist.angular.z) > STANDING[1])


def _at(take: Callable[[float, Any], None], message: Any, sent: int) -> None:
    take(sent / 1e9, message)
