"""The running system for fault injection: real processes, a link, and an observing node
(bystander).

Simulator, bridge, navigator, drafter and verifier are processes; camera and odometry go through
relays, the link through a proxy. The bench supervises its processes.
"""

from __future__ import annotations

import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, cycle
from pathlib import Path
from typing import Any

from std_msgs.msg import Bool

from edge_cloud_spec.bringup.graph import GraphSettings, Value
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.nav.status import FOLLOWING, GOAL_FAILED, UNKNOWN
from edge_cloud_spec.nodes.runtime.qos import LATCHED, SENSOR_DATA
from edge_cloud_spec.nodes.topics import TOPICS

from ...harness.emulated_link import LinkProfile
from ...harness.proxy import MessageFaults, MessageProxy, Proxy
from ...sim.kinds import THING_KINDS
from ...sim.room import make_room
from ..judge import replaced_motions
from ..live import LiveRig, Watch, stamp_of

RIG_NODES = ("simulator", "cloud_bridge", "navigator", "stop_guard", "drafter", "monitor")
TOKEN = "a token of the bench"
RIG_REPLY_TIMEOUT_S = 3.0  # the drafter's, shorter than its default so that a row takes seconds
UP_TIMEOUT = 120.0  # s
DRIVE_TIMEOUT = 90.0  # s
DRIVES_ON = 10.0  # s in which one motion replaces another, if decisions are quick enough
MATCHED = 0.5  # s from discovery until messages arrive
CAMERA_TOPIC, ODOMETRY_TOPIC = "camera/image_raw/compressed", "odom"
TRUE = {CAMERA_TOPIC: "true/camera", ODOMETRY_TOPIC: "true/odom"}  # what the simulator publishes
REPORTS_ON = {
    "simulator": TRUE[ODOMETRY_TOPIC],
    "cloud_bridge": "verdict",
    "navigator": "nav_command",
    "drafter": "decode_request",
    "stop_guard": "cmd_vel",
    "monitor": "/diagnostics",
}
INSTRUCTED = 2.0  # s that an instruction has to be followed
POISONED = "edge_cloud_spec_lab.bench.faults.poisoned"
KEPT_STAMPS = 2000

Change = Callable[[Any], Any]


class Relay:
    """Republishes a topic of the simulator; ``change`` maps each message to what is published
    instead."""

    def __init__(self, rig: LiveRig, topic: str) -> None:
        self.change: Change | None = None
        self._taken: OrderedDict[int, float] = OrderedDict()
        kind = TOPICS[topic][0]
        self._publisher = rig.node.create_publisher(kind, topic, SENSOR_DATA)
        rig.node.create_subscription(kind, TRUE[topic], self._on_message, SENSOR_DATA)

    def taken_at(self, stamp: int) -> float | None:
        """When the message with this stamp was really taken, s of the machine's clock; None if
        unknown.

        It does not depend on what the stamp says.
        """
        return self._taken.get(stamp)

    def _on_message(self, message: Any) -> None:
        taken, change = stamp_of(message) / 1e9, self.change
        changed = message if change is None else change(message)
        if changed is None:
            return
        # The same stamp again is the same message: the first counts.
        self._taken.setdefault(stamp_of(changed), taken)
        if len(self._taken) > KEPT_STAMPS:
            self._taken.popitem(last=False)
        self._publisher.publish(changed)


def gone(message: object) -> None:
    """A ``change`` that publishes nothing."""


class Rig(LiveRig):
    """Made by ``running_rig``. ``watch`` observes and records; the methods change what runs."""

    def __init__(self, seed: int, logs: Path | None) -> None:
        super().__init__(GraphSettings(seed=seed), logs)
        self.proxy = Proxy(self.verifier_address, LinkProfile(delay_ms=1.0))
        self.token_file = self.folder / "token"
        for file in (self.token_file, self.folder / "verifier.token"):
            file.write_text(TOKEN)
        self.settings = replace(
            self.settings, cloud=self.proxy.address, token_file=str(self.token_file)
        )
        self.watch = Watch(self, TRUE[ODOMETRY_TOPIC])
        self.camera, self.odometry = Relay(self, CAMERA_TOPIC), Relay(self, ODOMETRY_TOPIC)
        self.e_stop = self.node.create_publisher(Bool, "e_stop", LATCHED)
        self.seed = seed
        self.numbers = count()  # for files of which each trial has its own
        self.hung: set[str] = set()
        self.forged: list[object] = []  # wire messages of the bench that the judge must not believe
        self.verified_until = time.time()  # what was published until then
        self.forged_at = 0.0  # when the first one was published
        self.endings = ExitStack()  # of what a fault has started, until it is cleared
        self._instructed = -INSTRUCTED
        things = (thing.name for thing in make_room(seed).things)
        self._instructions = cycle([f"find the {name}" for name in things if name in THING_KINDS])

    def close(self) -> None:
        """End all faults, then the programs."""
        for name in list(self.hung):
            self.unhang(name)
        self.endings.close()
        self.proxy.close()
        if "messages" in vars(self):
            self.messages.close()
        super().close()

    @cached_property
    def messages(self) -> MessageProxy:
        """A proxy of single messages to the verifier; started when a fault first needs it."""
        return MessageProxy(self.verifier_address, MessageFaults(), self.seed)

    # Processes

    def start_node(self, name: str, **parameters: Value) -> None:
        """Start one of our nodes, or the verifier."""
        if name == "verifier":
            self.start(name, self.verifier_command(self.verifier_address))
        elif name == "drafter":
            own = {"reply_timeout": RIG_REPLY_TIMEOUT_S, "retry": 0.5}
            self.start(name, self._poisoned(name, self.node_command(name, **own, **parameters)))
        else:
            argv = self.node_command(name, **parameters)
            for topic, true in TRUE.items() if name == "simulator" else ():
                argv += ["-r", f"{topic}:={true}"]
            self.start(name, argv)

    def restart(self, name: str, **parameters: Value) -> None:
        """Start a node whose process has ended, and wait until the bystander receives from it.

        No pictures are published until then, so that no decision escapes the judge.
        """
        before, change = self.publishers(REPORTS_ON[name], name), self.camera.change
        self.camera.change = gone
        self.start_node(name, **parameters)
        self.wait_for(
            lambda: self.publishers(REPORTS_ON[name], name) - before, f"{name} is back", UP_TIMEOUT
        )
        time.sleep(MATCHED)
        self.camera.change = change

    def verifier_command(self, address: str, **options: str) -> list[str]:
        """The command line of a verifier that can be poisoned."""
        options = {"token_file": str(self.folder / "verifier.token"), **options}
        return self._poisoned("verifier", super().verifier_command(address, **options))

    def _poisoned(self, name: str, argv: list[str]) -> list[str]:
        python, dash_m, module, *rest = argv
        return [python, dash_m, POISONED, str(self._switch(name)), module, *rest]

    def poison(self, name: str, failure: str) -> None:
        """Make each pass of this program's model fail in this way (``poisoned.FAILURES``); empty:
        stop."""
        self._switch(name).write_text(failure)

    def _switch(self, name: str) -> Path:
        """The file that tells this program's model how to fail."""
        return self.folder / f"{name}.switch"

    def hang(self, name: str) -> None:
        """Stop the process with SIGSTOP."""
        os.kill(self.pid(name), signal.SIGSTOP)
        self.hung.add(name)

    def unhang(self, name: str) -> None:
        """Let the process continue."""
        os.kill(self.pid(name), signal.SIGCONT)
        self.hung.discard(name)

    def start_other(self, name: str, argv: list[str], up: Callable[[], bool]) -> None:
        """Start a program that runs until the fault is cleared; returns once ``up()`` is true."""
        self.start(name, argv)
        self.endings.callback(self.kill, name)
        self.wait_for(up, f"{name} is up", UP_TIMEOUT)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(EMBEDDED / "drafter")

    def threads(self) -> dict[tuple[str, int], int]:
        """The number of threads of each program, by name and process id."""
        pids = {name: self.pid(name) for name in self.running}
        tasks = {name: Path(f"/proc/{pid}/task") for name, pid in pids.items()}
        return {(name, pids[name]): len(list(tasks[name].iterdir())) for name in pids}

    # The mission

    def instruct_next(self) -> None:
        """Instruct the robot to find the next thing in the room."""
        self._instructed = time.monotonic()
        self.watch.instruct(next(self._instructions))

    def drive_until(self, condition: Callable[[], object], what: str, timeout: float) -> None:
        """Keep the robot following instructions, and its nodes running, until the condition holds.

        Raises UserError after the timeout.
        """
        end, looked = time.monotonic() + timeout, 0.0
        while not condition():
            time.sleep(0.05)
            now = time.monotonic()
            state = self.watch.instruction_status.state
            if state not in (FOLLOWING, GOAL_FAILED) and now > self._instructed + INSTRUCTED:
                self.instruct_next()
            if now > looked + 1.0:
                looked = now
                self._respawn()
            if now > end:
                raise UserError(f"{what}: not within {timeout:g} s")

    def _respawn(self) -> None:
        """Start nodes that have ended by themselves, as launch does (its ``respawn``)."""
        for name in self.running & set(RIG_NODES):
            if self.ended(name):
                self.kill(name)
                self.restart(name)

    def drive(self) -> None:
        """Wait until the robot moves on a new action, which replaced another one if possible."""
        since = time.time()
        if self.watch.instruction_status.state in (GOAL_FAILED, UNKNOWN):
            self.instruct_next()
        self.drive_until(
            lambda: self.moved_since(since), "the robot moves on a new decision", DRIVE_TIMEOUT
        )
        with suppress(UserError):  # on a slow machine each decision ends when its motion has
            self.drive_until(
                lambda: replaced_motions(self.watch.events, since), "it drives on", DRIVES_ON
            )
            self.drive_until(lambda: self.moved_since(since), "it moves", DRIVE_TIMEOUT)

    def moved_since(self, since: float) -> bool:
        """Whether an action announced after ``since`` moves the robot now."""
        command = self.watch.last_command
        return (
            command is not None
            and command.moves
            and command.at > since
            and self.watch.last_motion > command.at
        )


@dataclass(frozen=True)
class InjectedFault:
    """A fault: ``inject`` and ``clear`` change the rig, and return when that is done; a fault
    without ``clear`` ends by itself.

    ``injected``, ``robot`` and ``reads`` are its row in ``docs/faults.md``: what is injected, what
    the robot does, and a pattern of the sentence (on ``/diagnostics``, ``link_state``,
    ``instruction_status`` or ``nav_status``) that must be published while the fault lasts.
    ``stops``: the robot must stop, and stand until the fault is cleared after ``lasts`` seconds;
    otherwise the fault is cleared after that time, whatever the robot does. ``reported_s``: a
    report is due within so many seconds, while motion may go on. ``instructed_again``: only another
    instruction ends its effect. ``quick``: ``make test`` runs it.
    """

    name: str
    injected: str
    robot: str
    inject: Callable[[Rig], object]
    clear: Callable[[Rig], object] = lambda rig: None
    lasts: float = 2.0
    stops: bool = True
    reads: str = ""
    reported_s: float | None = None
    instructed_again: bool = False
    quick: bool = False


@contextmanager
def running_rig(seed: int, logs: Path | None) -> Iterator[Rig]:
    """A context with the whole system, running and connected. Raises UserError.

    ``logs``: where the programs' output is kept; None: nowhere.
    """
    with closing(Rig(seed, logs)) as rig:
        rig.start_verifier()
        for node in RIG_NODES:
            rig.start_node(node)
        rig.wait_for(
            lambda: (
                {"drafter", "navigator"} <= rig.subscribers("instruction")
                and "cloud_bridge" in rig.subscribers("draft")
                and "simulator" in rig.subscribers("cmd_vel")
                and rig.watch.lines["instruction_status"]
                and rig.watch.lines["nav_status"]
            ),
            "the nodes are up",
        )
        yield rig
