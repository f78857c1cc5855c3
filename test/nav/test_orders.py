"""Stops, releases and instructions, in every order in which the topics can bring them to two nodes.

However they overtake each other: the drafter's loop and the navigator end with a decision that is
due and would move, or with a sentence that says to publish again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from edge_cloud_spec.nav.decision_loop import SETTLE_S, DecisionLoop, Event, Seen
from edge_cloud_spec.nav.events import EStop, Instruction, Show, Tick
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.status import Status

BOX, CUP = "find the red box", "find the blue box"
Order = bool | str  # of e_stop, or an instruction


class Graph:
    """The loop, a navigator, and what is under way to each; ``said`` is the loop's last line."""

    def __init__(self, orders: dict[str, list[Order]]) -> None:
        self.now, self.said = 100.0, ""
        self.loop: DecisionLoop[str] = DecisionLoop()
        self.navigator, self._statuses = Navigator(stops=7), [Status("idle", stops=7)]
        self.queues: dict[tuple[str, str], list[Order]] = {}
        for channel in ("loop", "navigator"):
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
        self.now += 0.001
        if key[0] == "status":
            status = self._statuses[-1]  # latched, depth 1
            self._statuses.clear()
            self._hear(status)
        else:
            self._tell(key[0], self.queues[key].pop(0))

    def _tell(self, channel: str, order: Order) -> None:
        event = EStop(order) if isinstance(order, bool) else Instruction(order)
        if channel == "loop":
            self._hear(event)
            return
        shown = self.navigator.on(event, self.now)
        self._statuses += [each.status for each in shown if isinstance(each, Show)]

    def _hear(self, event: Event[str]) -> None:
        for action in self.loop.on(event, self.now):
            self.said = str(action)

    def conclude(self) -> str:
        """What it has come to once nothing is under way any more."""
        for _ in range(3):
            self.now += SETTLE_S
            self._hear(Tick())
        self._hear(Seen("frame"))
        decide = self.loop.take("r1", self.now)
        if decide is not None:
            assert decide.stops == self.navigator.stops
            assert self.said == f"following {decide.instruction}"
            return f"decides on {decide.instruction}"
        assert not self.said.startswith("following"), "it stands, and says that it follows"
        assert not self.loop.instruction
        return self.said


def every_order(orders: dict[str, list[Order]]) -> Iterator[str]:
    """What each order of deliveries comes to."""
    choices: list[int] = []
    while True:
        graph = Graph(orders)
        taken: list[tuple[int, int]] = []
        while graph.open:
            at = choices[len(taken)] if len(taken) < len(choices) else 0
            taken.append((at, len(graph.open)))
            graph.deliver(graph.open[at])
        yield graph.conclude()
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        choices = [at for at, _ in taken[:-1]] + [taken[-1][0] + 1]


SCRIPTS: dict[str, dict[str, list[Order]]] = {
    "instruction after a release": {"e_stop": [True, False], "operator": [CUP]},
    "the same one again": {"e_stop": [True, False], "operator": [BOX]},
    "stop by another": {"guard": ["stop"], "operator": [CUP]},
    "pressed twice": {"e_stop": [True, True, False], "operator": [CUP]},
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_in_every_order_a_decision_is_due_or_the_refusal_is_said(script: str) -> None:
    ends = Counter(every_order(SCRIPTS[script]))
    said = SCRIPTS[script]["operator"][0]
    assert ends.pop(f"decides on {said}") > 10
    assert set(ends) <= {
        "idle e_stop; publish the instruction again to go on",
        "failed the robot was stopped; publish the instruction again",
        "idle told to stop",
    }
    assert ends.total() > 10, "some overtake each other at one node only"


def test_what_comes_in_the_order_it_was_published_is_decided_on() -> None:
    graph = Graph(SCRIPTS["instruction after a release"])
    for sender in ("e_stop", "e_stop", "operator"):
        for channel in ("navigator", "loop"):
            graph.deliver((channel, sender))
            if ("status", "") in graph.open:
                graph.deliver(("status", ""))
    assert graph.conclude() == f"decides on {CUP}"
