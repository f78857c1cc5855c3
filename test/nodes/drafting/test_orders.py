"""Stops, releases and instructions, in every order in which the topics can bring them to two nodes.

However they overtake each other: the real drafter's callbacks and the real navigator end with a
decision that is due and would move, or with a sentence that says to publish again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy")
import rclpy
from builtin_interfaces.msg import Time
from rclpy.logging import LoggingSeverity
from std_msgs.msg import Bool, String

from edge_cloud_spec.nav.decision_schedule import SETTLE_S
from edge_cloud_spec.nav.events import EStop, Instruction, Show
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.nodes import drafter as drafting
from edge_cloud_spec.nodes.drafter import DrafterNode
from edge_cloud_spec.nodes.drafting import decision_gate
from edge_cloud_spec.nodes.drafting.decision_gate import CameraFrame, DecisionGate

BOX, CUP = "find the red box", "find the blue box"
Order = bool | str  # of e_stop, or an instruction


class Clock:
    """In place of the module ``time``."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def node(domain: int) -> Iterator[DrafterNode]:
    """A drafter whose model thread has ended: what is due stays due."""
    rclpy.init()
    node = DrafterNode()
    node.get_logger().set_level(LoggingSeverity.FATAL)
    node.bring_up()
    node._gate.close()
    yield node
    node.close()
    node.destroy_node()
    rclpy.shutdown()


class Graph:
    """The drafter, a navigator, and what is under way to each; ``lines`` are the drafter's."""

    def __init__(self, node: DrafterNode, clock: Clock, orders: dict[str, list[Order]]) -> None:
        self.node, self.clock, self.lines = node, clock, list[str]()
        node._gate, node._e_stop, node._early = DecisionGate(), False, None
        node._mission._publish = self.lines.append  # type: ignore[method-assign]
        self.navigator, self._statuses = Navigator(stops=7), [Status("idle", stops=7)]
        self.queues: dict[tuple[str, str], list[Order]] = {}
        for channel in ("drafter", "navigator"):
            self._tell(channel, BOX)
            for sender, said in orders.items():
                self.queues[channel, sender] = list(said)
        self.deliver(("status", ""))

    @property
    def open(self) -> list[tuple[str, str]]:
        """From whom a message can come next."""
        return [key for key, left in self.queues.items() if left] + (
            [("status", "")] if self._statuses else []
        )

    def deliver(self, key: tuple[str, str]) -> None:
        self.clock.now += 0.001
        if key[0] == "status":
            status = self._statuses[-1]  # latched, depth 1
            self._statuses.clear()
            self.node._on_status(String(data=str(status)))
        else:
            self._tell(key[0], self.queues[key].pop(0))

    def _tell(self, channel: str, order: Order) -> None:
        if channel == "navigator":
            event = EStop(order) if isinstance(order, bool) else Instruction(order)
            shown = self.navigator.on(event, self.clock.now)
            self._statuses += [each.status for each in shown if isinstance(each, Show)]
        elif isinstance(order, bool):
            self.node._on_e_stop(Bool(data=order))
        else:
            self.node._on_instruction(String(data=order))

    def conclude(self) -> str:
        """What it has come to once nothing is under way any more."""
        for _ in range(3):
            self.clock.now += SETTLE_S
            self.node._refuse_what_waits_in_vain()
        gate, said = self.node._gate, self.lines[-1]
        gate.update_frame(CameraFrame(b"", Time()))
        if gate.next_is_due:
            task = gate._schedule.take(self.clock.now)
            assert task is not None and task.stops == self.navigator.stops
            assert said == f"following {task.instruction}"
            return f"decides on {task.instruction}"
        assert not said.startswith("following"), "it stands, and says that it follows"
        assert not gate.instruction and not self.node._mission._mission.instruction
        return said


def every_order(
    node: DrafterNode, clock: Clock, orders: dict[str, list[Order]]
) -> Iterator[tuple[list[tuple[str, str]], str]]:
    """Each order of deliveries, and what it comes to."""
    path: list[tuple[str, str]] = []
    choices: list[int] = []
    while True:
        graph, path = Graph(node, clock, orders), []
        taken: list[tuple[int, int]] = []
        while graph.open:
            at = choices[len(taken)] if len(taken) < len(choices) else 0
            taken.append((at, len(graph.open)))
            path.append(graph.open[at])
            graph.deliver(path[-1])
        yield path, graph.conclude()
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        choices = [at for at, _ in taken[:-1]] + [taken[-1][0] + 1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (drafting, decision_gate):
        monkeypatch.setattr(module, "time", clock)
    return clock


SCRIPTS: dict[str, dict[str, list[Order]]] = {
    "instruction after a release": {"e_stop": [True, False], "operator": [CUP]},
    "the same one again": {"e_stop": [True, False], "operator": [BOX]},
    "stop by another": {"guard": ["stop"], "operator": [CUP]},
    "pressed twice": {"e_stop": [True, True, False], "operator": [CUP]},
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_in_every_order_a_decision_is_due_or_the_refusal_is_said(
    script: str, node: DrafterNode, clock: Clock
) -> None:
    ends: dict[str, int] = {}
    for _, end in every_order(node, clock, SCRIPTS[script]):
        ends[end] = ends.get(end, 0) + 1
    said = SCRIPTS[script]["operator"][0]
    assert ends.pop(f"decides on {said}") > 10
    assert set(ends) <= {
        "idle e_stop; publish the instruction again to go on",
        "failed the robot was stopped; publish the instruction again",
        "idle told to stop",
    }
    assert sum(ends.values()) > 10, "some overtake each other at one node only"


def test_what_comes_in_the_order_it_was_published_is_decided_on(
    node: DrafterNode, clock: Clock
) -> None:
    orders = SCRIPTS["instruction after a release"]
    graph = Graph(node, clock, orders)
    for key in (
        *[(n, s) for s in ("e_stop", "e_stop", "operator") for n in ("navigator", "drafter")],
    ):
        graph.deliver(key)
        if ("status", "") in graph.open:
            graph.deliver(("status", ""))
    assert graph.conclude() == f"decides on {CUP}"


def test_an_e_stop_that_comes_amid_an_instruction_ends_it(
    node: DrafterNode, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, check, threads = Graph(node, clock, {}), drafting.check_instruction, []

    def check_meanwhile(*given: Any) -> str:
        threads.append(threading.Thread(target=node._on_e_stop, args=(Bool(data=True),)))
        threads[0].start()
        threads[0].join(0.2)
        return check(*given)

    monkeypatch.setattr(drafting, "check_instruction", check_meanwhile)
    node._on_instruction(String(data=CUP))
    threads[0].join()
    assert node._gate.instruction == node._mission._mission.instruction == ""
    assert graph.lines[-1].startswith("idle e_stop")
