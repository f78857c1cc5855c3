"""How much of an answer is decoded: the model's thread cuts an explanation off, and goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
from builtin_interfaces.msg import Time

from edge_cloud_spec.edge.events import Cut, Emit
from edge_cloud_spec.edge.measures import DecodeStats
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.nav.explain import FULL, NONE, UNTIL_NEXT
from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.nodes.drafting.decision_gate import CameraFrame, DecisionGate
from edge_cloud_spec.nodes.drafting.decision_thread import DecisionMade, DecisionThread
from edge_cloud_spec.nodes.drafting.drafter_settings import DrafterSettings

PATIENCE = 60.0  # s; only what is wrong takes that long
ACTION = "action: search;"


class Scripted:
    """A runner that says ``pieces``, then reads its inbox until it is told to end."""

    def __init__(self) -> None:
        self.pieces: tuple[str, ...] = (ACTION,)
        self.on_pass: Any = None
        self.said, self.go_on = threading.Event(), threading.Event()

    def run(
        self, request: Any, decode: Any, nonce: int, connect: Any, emit: Any, inbox: Any
    ) -> Any:
        for number, piece in enumerate(self.pieces):
            emit(Emit(number, (len(piece),), True))
        self.said.set()
        reason = "end"
        while not self.go_on.is_set():
            try:
                reason = "cut" if isinstance(inbox.get(timeout=0.01), Cut) else "aborted"
                break
            except Empty:
                continue
        return Outcome(reason, "", (1,), 1.0, DecodeStats())


class Spoken:
    """The words of a request."""

    def __init__(self, pieces: Callable[[], tuple[str, ...]]) -> None:
        self._pieces, self.answer, self.finished = pieces, "", ""

    def emit(self, emit: Emit) -> None:
        self.answer += self._pieces()[emit.position]

    def finish(self, reason: str) -> None:
        self.finished = reason


class Bench:
    """The model's thread with its gate; ``made`` are the decisions that ended."""

    def __init__(self, explain: str) -> None:
        self.runner = Scripted()
        self.gate = DecisionGate(on_next=lambda: self.thread.on_next())
        self.made: list[DecisionMade] = []
        self.requests: list[str] = []
        self._ended = threading.Condition()
        settings = DrafterSettings(explain=explain)
        link = SimpleNamespace(begin=lambda: False, check=lambda: None, end=lambda: None)
        self.thread = DecisionThread(
            self.runner,  # type: ignore[arg-type]
            self.gate,
            SimpleNamespace(),  # type: ignore[arg-type]
            link,  # type: ignore[arg-type]
            settings=lambda: settings,
            number=lambda: 0,
            speaks=lambda: True,
            words=lambda request, task: Spoken(lambda: self.runner.pieces),  # type: ignore[arg-type,return-value]
            on_begin=lambda request, task: self.requests.append(request),
            on_end=self._on_end,
            on_problem=lambda request, problem: pytest.fail(problem),
        )
        self.thread.start()
        self.gate.set_instruction("find it")
        self.gate.update_status(Status("idle", stops=7))
        self.frame()
        assert self.runner.said.wait(PATIENCE)

    def frame(self) -> None:
        self.gate.update_frame(CameraFrame(b"", Time(sec=1)))

    def status(self, state: str) -> None:
        self.gate.update_status(Status(state, self.requests[0], stops=7))

    def _on_end(self, made: DecisionMade) -> None:
        with self._ended:
            self.made.append(made)
            self._ended.notify()

    def ended(self, count: int) -> DecisionMade:
        with self._ended:
            assert self._ended.wait_for(lambda: len(self.made) >= count, PATIENCE)
        return self.made[count - 1]

    def close(self) -> None:
        self.gate.close()
        self.gate.clear_instruction()
        self.runner.go_on.set()
        self.thread.join(PATIENCE)
        assert not self.thread.alive


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param)
    yield bench
    bench.close()


@pytest.mark.parametrize("bench", [NONE], indirect=True)
def test_without_explanations_a_decode_ends_at_its_action(bench: Bench) -> None:
    made = bench.ended(1)
    assert made.outcome.reason == "cut" and made.outcome.completed and made.answer == ACTION


@pytest.mark.parametrize("bench", [UNTIL_NEXT], indirect=True)
def test_an_explanation_is_cut_off_when_the_next_decision_has_its_frame(bench: Bench) -> None:
    bench.frame()
    bench.status("moving")
    bench.frame()
    bench.status("ready")
    assert not bench.made, "there is no frame from after that"
    bench.frame()
    assert bench.ended(1).outcome.reason == "cut"
    bench.runner.go_on.set()
    assert bench.ended(2).request_id == bench.requests[1] != bench.requests[0]


@pytest.mark.parametrize("bench", [FULL], indirect=True)
def test_an_explanation_that_is_wanted_is_not_cut_off(bench: Bench) -> None:
    bench.status("moving")
    bench.status("idle")
    bench.frame()
    assert bench.gate.next_is_due and not bench.made
    bench.runner.go_on.set()
    assert bench.ended(1).outcome.reason == "end"


@pytest.mark.parametrize("bench", [UNTIL_NEXT], indirect=True)
def test_what_the_operator_says_ends_a_decision_without_an_answer(bench: Bench) -> None:
    bench.thread.abort("another instruction came")
    outcome = bench.ended(1).outcome
    assert outcome.reason == "aborted" and not outcome.completed
