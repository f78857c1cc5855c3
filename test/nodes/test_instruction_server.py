"""The action NavigateByInstruction, by rclpy's own client, where this test plays the drafter."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from action_msgs.msg import GoalStatus
from diagnostic_msgs.msg import DiagnosticArray
from helpers.graph import humble
from helpers.graph.peer import Peer
from rcl_interfaces.msg import Log
from rclpy.action import ActionClient
from std_msgs.msg import Bool, String

from edge_cloud_spec.action import NavigateByInstruction
from edge_cloud_spec.msg import InstructionStatus, VerifiedTokens
from edge_cloud_spec.nav import status
from edge_cloud_spec.nodes.runtime.qos import LATCHED, RELIABLE, SENSOR_DATA

BOX, BALL = "find the red box", "find the yellow ball"
ANSWER_TIMEOUT, SHORTEST = 2.0, 0.5  # s; where no answer comes


class Drafter(Peer):
    """The drafter's side of the topics, and a client of the action."""

    def __init__(self) -> None:
        super().__init__("bench")
        self.heard: list[str] = []
        self.feedback: list[Any] = []
        self.answers = True  # whether an instruction is taken, and a stop obeyed
        self.create_subscription(String, "instruction", self._on_instruction, 10)
        self.status = self.create_publisher(InstructionStatus, "instruction_status", LATCHED)
        self.words = self.create_publisher(VerifiedTokens, "verified_tokens", 10)
        self.client = ActionClient(self, NavigateByInstruction, "navigate_by_instruction")
        self.operator = self.create_publisher(String, "instruction", 10)

    def _on_instruction(self, message: String) -> None:
        self.heard.append(message.data)
        if self.answers:
            stop = message.data == "stop"
            self.say(*(("stopped", "", "told to stop") if stop else ("following", message.data)))

    def say(self, state: str, instruction: str = "", detail: str = "") -> None:
        """The goal is named after the instruction."""
        said = status.GoalStatus(state, instruction, detail, f"of {instruction}")
        self.status.publish(InstructionStatus(**said.fields))

    def known(self) -> object:
        return self.heard, self.feedback

    def close(self) -> None:
        self.client.destroy()  # or its participant stays in the domain
        super().close()

    def wait_for(self, future: Any) -> Any:
        self.until(future.done)
        return future.result()

    def ask(self, text: str, follows: bool = False) -> Any:
        """The handle of a goal, once the drafter heard of it, and ``follows`` it."""
        goal, before = NavigateByInstruction.Goal(instruction=text), self.heard.count(text)
        sent = self.client.send_goal_async(goal, lambda m: self.feedback.append(m.feedback))
        handle = self.wait_for(sent)
        self.until(lambda: self.heard.count(text) > before)
        self.until(lambda: not follows or any(f.state == "following" for f in self.feedback))
        return handle

    def finds(self, text: str) -> None:
        """A goal that is followed to its end."""
        handle = self.ask(text)
        self.say("done", text)
        assert self.result(handle) == (GoalStatus.STATUS_SUCCEEDED, "found", text)

    def publish(self, text: str) -> None:
        """An instruction from an operator, once the server hears them."""
        self.until(lambda: self.operator.get_subscription_count() == 3)
        self.operator.publish(String(data=text))

    def settle(self) -> None:
        """Wait until the server has taken what was published so far: before each answer it takes
        one message of a topic, whose queue holds ten."""
        for _ in range(RELIABLE.depth):
            self.set_timeout(ANSWER_TIMEOUT)

    def set_timeout(self, seconds: float) -> None:
        given = {"answer_timeout": seconds}
        assert self.set_parameters_of("instruction_server", given) == [""]

    def result(self, handle: Any) -> tuple[int, str, str]:
        reply = self.wait_for(handle.get_result_async())
        return reply.status, reply.result.outcome, reply.result.message


MODULE = "edge_cloud_spec.nodes.instruction_server"
BOTH = pytest.mark.parametrize(
    "server", [["-m", MODULE], humble.program(MODULE)], ids=["installed", "humble"], indirect=True
)


@pytest.fixture(scope="module")
def server(domain: int, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, *getattr(request, "param", ["-m", MODULE])]
    given = ["--ros-args", "-p", f"answer_timeout:={ANSWER_TIMEOUT}"]
    process = subprocess.Popen([*command, *given])
    yield process
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 0


@pytest.fixture
def drafter(server: subprocess.Popen[bytes]) -> Iterator[Drafter]:
    with Drafter() as drafter:
        drafter.until(drafter.client.server_is_ready)
        for publisher in (drafter.status, drafter.words):
            drafter.until(publisher.get_subscription_count)
        drafter.until(lambda: drafter.count_publishers("instruction") == 2)  # ours, and its own
        drafter.match("instruction_server")
        drafter.set_timeout(ANSWER_TIMEOUT)
        yield drafter


@BOTH
def test_a_goal_becomes_an_instruction_with_feedback_and_a_result(drafter: Drafter) -> None:
    drafter.say("done", BOX)  # of an earlier instruction
    handle = drafter.ask(BOX, follows=True)
    words = VerifiedTokens(request_id="r1", goal_id=f"of {BOX}", answer="action: search;")
    words.finished, words.finish_reason = True, "cut"
    for reason in ("timeout", "overloaded", "aborted", "bad_request"):  # no answer came of these
        failed = VerifiedTokens(request_id=reason, goal_id=f"of {BOX}", finished=True)
        failed.finish_reason = reason
        drafter.words.publish(failed)
    drafter.words.publish(words)
    drafter.until(lambda: drafter.feedback[-1].words == "action: search;")
    assert drafter.feedback[-1].decisions == 1
    drafter.say("done", BOX)
    assert drafter.result(handle) == (GoalStatus.STATUS_SUCCEEDED, "found", BOX)


@pytest.mark.parametrize(
    ("said", "outcome", "message"),
    [
        (("not_found", BOX, "why"), "not_found", f"{BOX}: why"),
        (("following", BALL), "cancelled", f"another instruction came: {BALL}"),
    ],
)
def test_an_end_without_success_aborts_with_its_sentence(
    drafter: Drafter, said: tuple[str, ...], outcome: str, message: str
) -> None:
    handle = drafter.ask(BOX, follows=True)
    drafter.say(*said)
    assert drafter.result(handle) == (GoalStatus.STATUS_ABORTED, outcome, message)


@pytest.mark.parametrize(
    ("answers", "said"),
    [(True, "told to stop"), (False, "stop was published, but no drafter confirmed it")],
)
def test_a_cancel_publishes_stop_and_is_done_when_the_drafter_obeyed_or_does_not_answer(
    drafter: Drafter, answers: bool, said: str
) -> None:
    handle = drafter.ask(BOX, follows=True)
    drafter.answers = answers
    drafter.set_timeout(ANSWER_TIMEOUT if answers else SHORTEST)
    drafter.wait_for(handle.cancel_goal_async())
    assert drafter.result(handle) == (GoalStatus.STATUS_CANCELED, "cancelled", said)
    assert drafter.heard == [BOX, "stop"]


def test_the_next_goal_takes_the_place_of_the_first(drafter: Drafter) -> None:
    first, second = drafter.ask(BOX), drafter.ask(BALL)
    assert drafter.result(first)[:2] == (GoalStatus.STATUS_ABORTED, "cancelled")
    drafter.say("done", BALL)
    assert drafter.result(second)[1] == "found"
    assert drafter.heard == [BOX, BALL], "no stop between them"


def test_a_goal_that_no_drafter_takes_fails_and_is_taken_back(drafter: Drafter) -> None:
    drafter.answers = False
    drafter.set_timeout(SHORTEST)
    handle = drafter.ask(BOX)
    ended, outcome, message = drafter.result(handle)
    assert (ended, outcome) == (GoalStatus.STATUS_ABORTED, "failed") and "no drafter" in message
    drafter.until(lambda: drafter.heard == [BOX, "stop"])


@pytest.mark.parametrize("stop", ["stop", "Halte-là !"])
def test_the_goal_stop_stops_and_is_followed_by_nothing(drafter: Drafter, stop: str) -> None:
    """A rejected goal has no reason; its result says it."""
    ended, outcome, message = drafter.result(drafter.ask(stop))
    assert (ended, outcome) == (GoalStatus.STATUS_ABORTED, "cancelled") and stop in message
    assert drafter.heard == [stop] and not drafter.feedback


@pytest.mark.parametrize(
    "why",
    [
        "no decision on 'find it': 127.0.0.1:50151: the token is refused",
        "camera: the pictures on /camera/image_raw cannot be used: encoding 'yuv422'",
        "the navigator refused it: the camera's stamps are 3600.00 s ahead",
        "the link is lost: no answer within 2 s",
        "the robot is held: odometry is missing",
    ],
)
def test_what_keeps_a_goal_from_its_decisions_is_fed_back_in_place_of_words(
    drafter: Drafter, why: str
) -> None:
    """With a wrong token, thirteen messages had no words, and nothing else."""
    handle = drafter.ask(BOX, follows=True)
    drafter.say("following", BOX, why)
    drafter.until(lambda: drafter.feedback[-1].words == why)
    words = VerifiedTokens(request_id="r1", goal_id=f"of {BOX}", answer="action: search;")
    drafter.words.publish(words)
    drafter.until(lambda: drafter.feedback[-1].words == "action: search;")
    assert {f.state for f in drafter.feedback} <= {"waiting", "following"}
    drafter.say("done", BOX)
    assert drafter.result(handle)[1] == "found"


def start_again(drafter: Drafter) -> None:
    """As a drafter that has loaded its models, after one that was not active."""
    drafter.answers = True
    drafter.say("idle")


def not_up(drafter: Drafter) -> None:
    drafter.answers = False
    drafter.say("inactive")
    drafter.settle()


@BOTH
def test_an_instruction_from_before_the_drafter_is_up_is_said_again_when_it_is(
    drafter: Drafter,
) -> None:
    not_up(drafter)
    drafter.publish(BALL)
    drafter.publish(BOX)
    drafter.until(lambda: drafter.heard == [BALL, BOX])
    drafter.settle()
    start_again(drafter)
    drafter.until(lambda: drafter.heard == [BALL, BOX, BOX])
    start_again(drafter)
    drafter.finds(BALL)
    assert drafter.heard[3:] == [BALL], "once, though it started twice"


def test_a_goal_waits_for_a_drafter_that_is_not_up(drafter: Drafter) -> None:
    not_up(drafter)
    drafter.set_timeout(SHORTEST)
    handle = drafter.ask(BOX)
    time.sleep(SHORTEST)
    looks = drafter.collect(DiagnosticArray, "/diagnostics", RELIABLE)
    waits = "the drafter has not started yet"
    drafter.until(lambda: looks and any(each.words == waits for each in drafter.feedback))
    drafter.set_timeout(ANSWER_TIMEOUT)
    start_again(drafter)
    drafter.until(lambda: any(f.state == "following" for f in drafter.feedback))
    drafter.say("done", BOX)
    assert drafter.result(handle) == (GoalStatus.STATUS_SUCCEEDED, "found", BOX)
    assert drafter.heard == [BOX, BOX]


@BOTH
@pytest.mark.parametrize("stop", ["e_stop", "stop", "best effort"])
def test_what_is_kept_is_forgotten_at_a_stop(drafter: Drafter, stop: str) -> None:
    """A robot moves only for an instruction that came after the release; and an ordinary publisher
    of e_stop, which does not fit the subscription for latched ones, is not said to be unheard."""
    not_up(drafter)
    logs = drafter.collect(Log, "/rosout", 100)
    drafter.until(lambda: drafter.count_publishers("/rosout") >= 2)
    published = 0
    while not any("is kept" in log.msg for log in logs):
        drafter.publish(BOX)
        published += 1
        drafter.spin(0.2)
    drafter.until(lambda: drafter.heard.count(BOX) == published)
    e_stop = drafter.create_publisher(Bool, "e_stop", 10)
    drafter.until(lambda: e_stop.get_subscription_count() >= 2)
    if stop == "e_stop":
        e_stop.publish(Bool(data=True))
        drafter.until(lambda: any("e_stop came" in log.msg for log in logs))
        e_stop.publish(Bool(data=False))
    elif stop == "stop":
        drafter.publish(stop)
        drafter.until(lambda: stop in drafter.heard)
    else:
        lossy = drafter.create_publisher(String, "instruction", SENSOR_DATA)
        kept = f"{BALL!r} is kept"
        drafter.until(
            lambda: any(kept in log.msg for log in logs),  # the server has found this publisher
            meanwhile=lambda: lossy.publish(String(data=BALL)),
        )
        lossy.publish(String(data=BOX))
        lossy.publish(String(data="停下！"))
    drafter.settle()
    start_again(drafter)
    drafter.finds(BALL)
    assert drafter.heard.count(BOX) == published
    ours = [log.msg for log in logs if log.name == "instruction_server"]
    assert ours and not [said for said in ours if "incompatible QoS" in said]


def test_a_client_that_goes_leaves_its_goal_to_the_missions_own_end(
    drafter: Drafter, server: subprocess.Popen[bytes]
) -> None:
    drafter.ask(BOX)
    drafter.client.destroy()
    drafter.say("given_up", BOX, "not reached after 100 decisions")
    other = drafter.client = ActionClient(drafter, NavigateByInstruction, "navigate_by_instruction")
    drafter.until(other.server_is_ready)
    drafter.finds(BALL)
    assert drafter.heard == [BOX, BALL] and server.poll() is None
