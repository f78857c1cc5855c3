"""The running system that faults are put into: real processes, a link, and the bystander.

Simulator, bridge, navigator, drafter and verifier are processes; camera and odometry go through
the bystander's relays, the link through a proxy. The bench is the supervisor of its processes.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any

from ....bringup.graph import GraphSettings
from ....bringup.running_graph import free_address, is_serving
from ....errors import UserError
from ....models import EMBEDDED
from ...harness.emulated_link import LinkProfile
from ...harness.proxy import MessageFaults, MessageProxy, Proxy
from ...sim.kinds import KINDS
from ...sim.room import make_room
from ..leaks import memory_mb
from ..ros_graph import RosGraph, node_command
from .watch import ODOMETRY, TRUE, Watch, gone

NODES = ("simulator", "cloud_bridge", "navigator", "drafter", "monitor")
TOKEN = "a token of the bench"
PATIENCE = 3.0  # s; the drafter's, shorter than its default so that a row takes seconds
UP_TIMEOUT = 120.0  # s
MATCHED = 0.5  # s from discovery until messages arrive
HEARD_ON = {
    "simulator": TRUE[ODOMETRY],
    "cloud_bridge": "verdict",
    "navigator": "nav_command",
    "drafter": "decode_request",
    "monitor": "/diagnostics",
}
INSTRUCTED = 2.0  # s that an instruction has to be followed
POISONED = "edge_cloud_spec.lab.bench.faults.poisoned"


class Rig:
    """Made by ``running_rig``. ``watch`` sees and records; the methods change what runs."""

    def __init__(self, ros: RosGraph, watch: Watch, folder: Path, seed: int) -> None:
        self.ros, self.watch, self.folder, self.seed = ros, watch, folder, seed
        self.verifier_address = free_address()
        self.proxy = Proxy(self.verifier_address, LinkProfile(delay_ms=1.0))
        self._messages: MessageProxy | None = None
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN)
        (folder / "verifier.token").write_text(TOKEN)
        self.numbers = count()  # for files of which each trial has its own
        self.hung: set[str] = set()
        self.respawned: list[str] = []  # nodes that ended by themselves, and how
        self.forged: list[object] = []  # wire messages of the bench that the judge must not believe
        self.judged = time.time()  # what was published until then
        self.forged_at = 0.0  # when the first one was published
        self.endings = ExitStack()  # of what a fault has started, until it is cleared
        self._tokenizer = _tokenizer()
        self._instructed = -INSTRUCTED
        things = [thing.name for thing in make_room(seed).things if thing.name in KINDS]
        self._instructions = cycle([f"find the {name}" for name in things])

    def close(self) -> None:
        """End the faults, so that the programs can end."""
        for name in list(self.hung):
            self.unhang(name)
        self.endings.close()
        self.proxy.close()
        if self._messages is not None:
            self._messages.close()

    @property
    def messages(self) -> MessageProxy:
        """A proxy of single messages to the verifier; started when a fault first needs it."""
        if self._messages is None:
            self._messages = MessageProxy(self.verifier_address, MessageFaults(), self.seed)
        return self._messages

    # Processes

    def start(self, name: str, cloud: str = "", **parameters: str | float) -> None:
        """Start one of our nodes, or the verifier."""
        self.ros.start(name, self.command(name, cloud, **parameters))

    def restart(self, name: str, cloud: str = "", **parameters: str | float) -> None:
        """Start a node whose process has ended, and wait until the bystander hears it.

        Until then no picture comes, so that nothing is decided which the judge cannot see.
        """
        topic, camera = HEARD_ON[name], self.watch.camera
        before, change = self.watch.publishers(topic, name), camera.change
        camera.change = gone
        self.start(name, cloud, **parameters)
        self.ros.wait_for(
            lambda: self.watch.publishers(topic, name) - before, f"{name} is back", UP_TIMEOUT
        )
        self.ros.spin(MATCHED)
        camera.change = change

    def command(self, name: str, cloud: str = "", **parameters: str | float) -> list[str]:
        """The command line of a node of this rig."""
        if name == "verifier":
            return self.verifier_command(self.verifier_address)
        settings = GraphSettings(
            cloud=cloud or self.proxy.address, token_file=str(self.token_file), seed=self.seed
        )
        if name == "drafter":
            argv = node_command(name, settings, patience=PATIENCE, retry=0.5, **parameters)
            return self._poisoned(argv, name)
        argv = node_command(name, settings, **parameters)
        if name == "simulator":
            for topic, true in TRUE.items():
                argv += ["-r", f"{topic}:={true}"]
        return argv

    def verifier_command(self, address: str, **options: str) -> list[str]:
        """The command line of a verifier with the embedded target; ``options`` come last."""
        given = {"target": str(EMBEDDED / "target"), "threads": "1", "max_tokens": "48"}
        given |= {"token_file": str(self.folder / "verifier.token"), "address": address, **options}
        settings = GraphSettings(local_address=address)
        argv = node_command("cloud_verifier", settings)[:3]
        for option, value in given.items():
            argv += [f"--{option.replace('_', '-')}", value]
        return self._poisoned(argv, "verifier")

    def _poisoned(self, argv: list[str], name: str) -> list[str]:
        python, dash_m, module, *rest = argv
        return [python, dash_m, POISONED, str(self.switch(name)), module, *rest]

    def poison(self, name: str, failure: str) -> None:
        """Let each pass of this program's model fail so (``poisoned.FAILURES``); empty: no more."""
        self.switch(name).write_text(failure)

    def switch(self, name: str) -> Path:
        """The file that says how passes of this program's model fail."""
        return self.folder / f"{name}.switch"

    def kill(self, name: str) -> None:
        """End it with SIGKILL."""
        self.ros.kill(name)
        if name == "drafter":
            self.watch.excuse()

    def hang(self, name: str) -> None:
        """Stop the process with SIGSTOP."""
        os.kill(self.ros.pid(name), signal.SIGSTOP)
        self.hung.add(name)

    def unhang(self, name: str) -> None:
        """Let it go on."""
        os.kill(self.ros.pid(name), signal.SIGCONT)
        self.hung.discard(name)

    def start_other(self, name: str, argv: list[str], up: Callable[[], bool]) -> None:
        """Start a program that runs until the fault is cleared; returns when it is up."""
        self.ros.start(name, argv)
        self.endings.callback(self.ros.kill, name)
        self.ros.wait_for(up, f"{name} is up", UP_TIMEOUT)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def resources(self) -> dict[str, tuple[int, int, float]]:
        """By program: its process, its threads, and its memory in MB."""
        found = {}
        for name in self.ros.running:
            pid = self.ros.pid(name)
            threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
            found[name] = (pid, threads, memory_mb(pid))
        return found

    # The mission

    def keep_instructed(self) -> None:
        """Give the next instruction once the last one has ended."""
        state = self.watch.lines.get("instruction_status", "").partition(" ")[0]
        heard = time.monotonic() > self._instructed + INSTRUCTED
        if state not in ("following", "failed") and heard:
            self.instruct_next()

    def instruct_next(self) -> None:
        """Send the robot to the next thing of the room."""
        self._instructed = time.monotonic()
        self.watch.instruct(next(self._instructions))

    def wait_for(self, condition: Callable[[], object], what: str, timeout: float) -> None:
        """Keep the robot busy, and its nodes up, until the condition holds.

        Raises UserError after the timeout.
        """
        end, looked = time.monotonic() + timeout, 0.0
        while not condition():
            self.keep_instructed()
            self.ros.spin(0.05)
            if (now := time.monotonic()) > looked + 1.0:
                looked = now
                self._respawn()
            if now > end:
                raise UserError(f"{what}: not within {timeout:g} s")

    def _respawn(self) -> None:
        """Start nodes that have ended by themselves, as launch does (its ``respawn``)."""
        for name in self.ros.running & set(NODES):
            if problem := self.ros.ended(name):
                self.respawned.append(f"{name}: {problem}")
                self.kill(name)
                self.restart(name)

    def drive(self, timeout: float = 90.0) -> None:
        """Wait until the robot moves on a new action."""
        since = time.time()
        state = self.watch.lines.get("instruction_status", "")
        if state.startswith("failed") or not state:
            self.instruct_next()
        self.wait_for(lambda: self.moved_since(since), "the robot moves on a new decision", timeout)

    def moved_since(self, since: float) -> bool:
        """Whether an action that was announced after ``since`` moves the robot."""
        command = self.watch.last_command
        return (
            command is not None
            and command.moves
            and command.at > since
            and self.watch.last_motion > command.at
        )


@dataclass(frozen=True)
class InjectedFault:
    """``inject`` and ``clear`` change the rig, and return at once or when that is done; a fault
    without ``clear`` ends by itself.

    ``injected``, ``robot`` and ``reads`` are the row of ``docs/faults.md``: what is put in, what
    the robot does, and a pattern of the sentence that the owner reads (on ``/diagnostics``,
    ``link_state``, ``instruction_status`` or ``nav_status``), which must be published while the
    fault lasts. ``stops``: the robot stands until it is cleared, so it must come to stand and stay
    so for ``lasts`` seconds; otherwise the fault is cleared after that time, whatever the robot
    does. ``reported_s``: the promise is a report within so many seconds, not that nothing moves.
    ``instructed_again``: the operator's next instruction ends it. ``soak``: of those that the soak
    draws from. ``quick``: of those that ``make test`` runs.
    """

    name: str
    injected: str
    robot: str
    inject: Callable[[Rig], None]
    clear: Callable[[Rig], None] = lambda rig: None
    lasts: float = 2.0
    stops: bool = True
    reads: str = ""
    reported_s: float | None = None
    instructed_again: bool = False
    soak: bool = True
    quick: bool = False


@contextmanager
def running_rig(seed: int, logs: Path | None = None) -> Iterator[Rig]:
    """The system, up and connected; ended with the context. Raises UserError.

    ``logs``: where the programs' output is kept; None: it is not.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ros = stack.enter_context(RosGraph(logs or folder / "logs"))
        rig = Rig(ros, stack.enter_context(Watch(ros.domain)), folder, seed)
        stack.callback(rig.close)
        for node in ("verifier", *NODES):
            rig.start(node)
        ros.wait_for(lambda: is_up(rig), "the nodes are up")
        yield rig


def is_up(rig: Rig) -> bool:
    """Whether every part of the system is there and sees the others."""
    watch = rig.watch
    return (
        {"drafter", "navigator"} <= watch.subscribers("instruction")
        and "cloud_bridge" in watch.subscribers("draft")
        and "simulator" in watch.subscribers("cmd_vel")
        and {"instruction_status", "nav_status"} <= set(watch.lines)
        and is_serving(rig.verifier_address)
    )


def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(EMBEDDED / "drafter")
