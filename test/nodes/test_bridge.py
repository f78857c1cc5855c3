"""The cloud bridge as a node: what the drafter says reaches the cloud in the order of its words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import grpc
import pytest

rclpy = pytest.importorskip("rclpy")
from rclpy.node import Node  # noqa: E402

from edge_cloud_spec.decoding.digest import PrefixDigest  # noqa: E402
from edge_cloud_spec.decoding.draft import Draft as TheDraft  # noqa: E402
from edge_cloud_spec.decoding.policy import GREEDY  # noqa: E402
from edge_cloud_spec.edge.link import route  # noqa: E402
from edge_cloud_spec.msg import DecodeRequest, Draft, Verdict  # noqa: E402
from edge_cloud_spec.nodes import cloud_bridge  # noqa: E402
from edge_cloud_spec.nodes.bridge_messages import to_draft, to_request  # noqa: E402
from edge_cloud_spec.nodes.cloud_bridge import CloudBridge  # noqa: E402
from edge_cloud_spec.nodes.runtime.qos import DECODE  # noqa: E402
from edge_cloud_spec.nodes.runtime.subscription_thread import SubscriptionThread  # noqa: E402
from edge_cloud_spec.wire.channel import METHOD_NAME, SERVICE  # noqa: E402
from edge_cloud_spec.wire.codec import decode_client  # noqa: E402
from edge_cloud_spec.wire.messages import (  # noqa: E402
    ClientMessage,
    Close,
    DraftMessage,
    Generate,
    Generation,
    Open,
)

PATIENCE = 60.0  # s; only a hung test takes that long


class Recorder:
    """A verifier that says nothing, and keeps what came on each stream."""

    def __init__(self) -> None:
        self.streams: list[list[ClientMessage]] = []
        self.ended = 0
        self._server = grpc.server(ThreadPoolExecutor(32))
        method = grpc.stream_stream_rpc_method_handler(self._decode)
        handler = grpc.method_handlers_generic_handler(SERVICE, {METHOD_NAME: method})
        self._server.add_generic_rpc_handlers((handler,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _decode(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        heard: list[ClientMessage] = []
        self.streams.append(heard)
        for data in requests:
            heard.append(decode_client(data))
        self.ended += 1
        yield from ()

    def close(self) -> None:
        self._server.stop(0).wait(PATIENCE)


class Robot:
    """Plays the drafter: says the numbered messages of a request over the two topics."""

    def __init__(self, node: Node, bridge: CloudBridge) -> None:
        self.bridge = bridge
        self._requests = node.create_publisher(DecodeRequest, "decode_request", 1000)
        self._drafts = node.create_publisher(Draft, "draft", 1000)
        self.faults: list[Verdict] = []
        hearing = self.hearing = SubscriptionThread(node)
        hearing.subscribe(Verdict, "verdict", self.faults.append, DECODE)
        hearing.start()
        topics = (self._requests, self._drafts)
        until(lambda: all(topic.get_subscription_count() for topic in topics))
        until(lambda: node.count_publishers("verdict") > 0)

    def say(self, request: int, number: int, last: int) -> None:
        """Message ``number`` of a request: an Open, drafts with requests between, a Close."""
        message = message_of(request, number, last)
        drafts = isinstance(message, DraftMessage)
        said = to_draft(message, [], 0.0) if drafts else to_request(message, "dsd")
        said.request_id, said.sequence = f"request {request}", number
        (self._drafts if drafts else self._requests).publish(said)


def message_of(request: int, number: int, last: int) -> ClientMessage:
    base = PrefixDigest(0, request)
    if number == 0:
        return Open(request, "find", b"", "action first", GREEDY, "greedy")
    if number == last:
        return Close(request)
    if number % 3:
        return DraftMessage(base, TheDraft((1,)), number)
    return Generate(base, Generation(until=number))


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.01)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.close()


@pytest.fixture
def robot(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Robot]:
    # This robot says nothing twice, and what it said is dropped where a link comes up late.
    monkeypatch.setattr(route, "UNREACHABLE_S", PATIENCE)
    given = ["--ros-args", "-p", f"cloud:={recorder.address}"]
    rclpy.init(args=given)
    bridge, node = CloudBridge(), Node("robot")
    bridge.bring_up()
    robot = Robot(node, bridge)
    yield robot
    robot.hearing.close()
    bridge.close()
    for each in (bridge, node):
        each.destroy_node()
    rclpy.shutdown()


@pytest.mark.parametrize("seed", range(4))
def test_messages_go_out_by_sequence_in_whatever_order_the_topics_bring_them(
    robot: Robot, recorder: Recorder, seed: int
) -> None:
    """Three requests at a time, each of up to 20 messages, some of them said twice."""
    random = Random(seed)
    lasts = [random.randint(3, 19) for _ in range(3)]
    said = [(request, number) for request, last in enumerate(lasts) for number in range(last)]
    said += [each for each in said if random.random() < 0.3]
    random.shuffle(said)
    for request, number in said:
        robot.say(request, number, lasts[request])
    until(lambda: sum(map(len, recorder.streams)) >= sum(lasts))
    assert recorder.ended == 0
    for request, last in enumerate(lasts):
        robot.say(request, last, last)
    until(lambda: recorder.ended == 3)
    for heard in recorder.streams:
        request = heard[0].nonce if isinstance(heard[0], Open) else -1
        last = lasts[request]
        assert [kind_and_number(message) for message in heard] == [
            kind_and_number(message_of(request, number, last)) for number in range(last + 1)
        ]


def kind_and_number(message: ClientMessage) -> tuple[str, int, int]:
    """What tells the messages of this test apart, whatever else the bridge puts into one."""
    match message:
        case Open(nonce):
            return "open", nonce, 0
        case DraftMessage(base, _, number):
            return "draft", base.hash, number
        case Generate(base, Generation(until=number)):
            return "generate", base.hash, number
        case Close(resampled):
            return "close", resampled or 0, 0
    raise AssertionError(message)


def test_a_message_that_comes_after_the_end_opens_no_stream(
    robot: Robot, recorder: Recorder
) -> None:
    """Said twice, or overtaken by the end: it would be a session that nobody closes."""
    robot.say(0, 0, 2)
    until(lambda: len(recorder.streams) == 1)
    for number in (1, 2, 0, 1, 2):
        robot.say(0, number, 2)
    robot.say(1, 0, 2)  # another request; what is before it on its topic has been handled

    def heard() -> list[ClientMessage]:
        return [message for stream in recorder.streams for message in stream]

    until(lambda: any(isinstance(message, Open) and message.nonce == 1 for message in heard()))
    until(lambda: Close(0) in heard())
    kinds = [[type(message) for message in stream] for stream in recorder.streams]
    assert kinds == [[Open, DraftMessage, Close], [Open]]


def test_a_request_with_a_gap_ends_with_a_fault_and_not_with_silence(
    robot: Robot, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many wait as may; the one that is due must not be turned away for that."""
    most = 8
    monkeypatch.setattr(cloud_bridge, "MAX_WAITING", most)
    robot.say(0, 0, 999)
    until(lambda: len(recorder.streams) == 1)
    for number in range(2, most + 2):
        robot.say(0, number, 999)
    until(lambda: len(robot.bridge._streams["request 0"]._waiting) == most)
    robot.say(0, 1, 999)
    until(lambda: sum(map(len, recorder.streams)) == most + 2)
    assert not robot.faults
    for number in range(most + 3, 2 * most + 4):
        robot.say(0, number, 999)
    until(lambda: bool(robot.faults))
    assert "got lost on its way to the bridge" in robot.faults[0].text
    until(lambda: recorder.ended == 1)


def test_a_request_from_before_a_restart_of_the_bridge_is_no_answer_that_is_missed(
    robot: Robot,
) -> None:
    """It was waited for as long as the bridge ran, and link_state said lost of a good link."""
    for number in (4, 9):
        robot.say(0, number, 9)
    until(lambda: len(getattr(robot.bridge._streams.get("request 0"), "_waiting", ())) == 2)
    assert not robot.bridge._monitor._watch.waiting
    robot.say(1, 0, 9)  # a request of its own is waited for
    until(lambda: robot.bridge._monitor._watch.waiting)
