"""The drafter's threads: what its loop decides reaches the decode that is under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty
from typing import Any

import pytest

pytest.importorskip("rclpy")
import rclpy
from builtin_interfaces.msg import Time
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Bool, Header, String

from edge_cloud_spec.edge.events import Cut, Emit
from edge_cloud_spec.edge.rounds import DecodeStats
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.nav import decision_loop
from edge_cloud_spec.nav.decision_loop import FULL, NONE, UNTIL_NEXT
from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.nodes.drafter import DrafterNode

PATIENCE = 60.0  # s; only what is wrong takes that long
CUP = "find the blue box"


class Scripted:
    """A runner that says an action, then reads its inbox until it is told to end."""

    target = ""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens, self.on_pass = tokens, None
        self.begun, self.said, self.ends = 0, threading.Semaphore(0), list[str]()
        self.go_on = threading.Event()

    def run(
        self, request: Any, decode: Any, nonce: int, connect: Any, emit: Any, inbox: Any
    ) -> Outcome:
        emit(Emit(0, self.tokens, True))
        self.begun += 1
        self.said.release()
        reason = "end"
        while reason == "end" and not self.go_on.is_set():
            try:
                reason = "cut" if isinstance(inbox.get(timeout=0.01), Cut) else "aborted"
            except Empty:
                continue
        self.ends.append(reason)
        return Outcome(reason, "", self.tokens, 1.0, DecodeStats())


class ScriptedDrafter(DrafterNode):
    """The real node with another runner, whose callbacks the test calls."""

    def load(self) -> None:
        super().load()
        text = "action: search;"
        tokens = self._model.tokenizer(text, add_special_tokens=False)["input_ids"]
        self._runner = self.runner = Scripted(tuple(tokens))  # type: ignore[assignment]

    def frame(self) -> None:
        self._on_compressed(CompressedImage(header=Header(stamp=Time(sec=1)), data=b"x"))

    def status(self, state: str, request: str = "-") -> None:
        self._on_status(String(data=str(Status(state, request, stops=7))))

    def begin_decision(self) -> str:
        """A decision is under way, and has said its action; its request."""
        self._on_instruction(String(data=CUP))
        self.status("idle")
        self.frame()
        assert self.runner.said.acquire(timeout=PATIENCE)
        return self._loop._request


@pytest.fixture
def node(domain: int, request: pytest.FixtureRequest) -> Iterator[ScriptedDrafter]:
    rclpy.init()
    node = ScriptedDrafter()
    node.set_parameters([Parameter("explain", value=request.param)])
    node.bring_up()
    yield node
    node.runner.go_on.set()
    node.close()
    node.destroy_node()
    rclpy.shutdown()


def ended(node: ScriptedDrafter) -> list[str]:
    """How decodes ended, once the one under way has."""
    assert node._idle.wait(PATIENCE)
    return node.runner.ends


@pytest.mark.parametrize("node", [NONE], indirect=True)
def test_without_explanations_a_decode_ends_at_its_action(node: ScriptedDrafter) -> None:
    node.begin_decision()
    assert ended(node) == ["cut"]


@pytest.mark.parametrize("node", [UNTIL_NEXT], indirect=True)
def test_an_explanation_is_cut_off_when_the_next_decision_has_its_frame(
    node: ScriptedDrafter,
) -> None:
    request = node.begin_decision()
    node.status("ready", request)
    assert not node.runner.ends, "there is no frame from after that"
    node.frame()
    assert node.runner.said.acquire(timeout=PATIENCE), "the next one begins"
    assert node.runner.ends == ["cut"]


@pytest.mark.parametrize("node", [FULL], indirect=True)
def test_what_the_operator_says_ends_a_decode_that_explains_itself(node: ScriptedDrafter) -> None:
    request = node.begin_decision()
    node.status("ready", request)
    node.frame()
    assert not node.runner.ends, "the explanation is wanted"
    node._on_instruction(String(data="stop"))
    assert ended(node) == ["aborted"]


@pytest.mark.parametrize("node", [FULL], indirect=True)
def test_an_e_stop_that_comes_amid_an_instruction_ends_it(
    node: ScriptedDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, threads = decision_loop.check_instruction, list[threading.Thread]()

    def check_meanwhile(*given: Any) -> str:
        threads.append(threading.Thread(target=node._on_e_stop, args=(Bool(data=True),)))
        threads[0].start()
        threads[0].join(0.2)
        return check(*given)

    monkeypatch.setattr(decision_loop, "check_instruction", check_meanwhile)
    node._on_instruction(String(data=CUP))
    threads[0].join()
    node.status("idle")
    node.frame()
    assert not node._loop.instruction and not node.runner.begun
