"""Decodes over gRPC on loopback: what cannot be used ends with what to do instead; the link of a
decode breaks, comes back and ends, on either side, and nothing is lost; robot and cloud of
different versions both work, or the user is told which side to update."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from helpers.cloud import scripted_cloud
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud, free_port, until
from helpers.cloud.grpc_robot import (
    FRAME,
    OWN,
    REQUEST,
    Talk,
    decode_at,
    opening,
    settings,
)
from helpers.cloud.scripted_cloud import RobotSide, ScriptedCloud
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.dialects import ours
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.events import LinkLost, LinkUp
from edge_cloud_spec.edge.link import stream as link_stream
from edge_cloud_spec.edge.link.route import ClientSettings, KnownPlace, Route
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load import load
from edge_cloud_spec.request import Message, Request
from edge_cloud_spec.wire.channel import EARLIER_SERVICE, MESSAGE_BYTES
from edge_cloud_spec.wire.codec import encode_client, encode_server, read_client
from edge_cloud_spec.wire.frames import ClientFrame, ServerFrame
from edge_cloud_spec.wire.messages import (
    PROTOCOL,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Opened,
    Prediction,
    Resume,
    Verdict,
)
from edge_cloud_spec_lab.harness.toy import toy_worker


@pytest.fixture(scope="module")
def cloud() -> Iterator[SimpleNamespace]:
    """The embedded pair."""
    target, robot = (load(EMBEDDED / name, threads=1) for name in ("target", "drafter"))
    spec = target.spec(24)
    with (
        Cloud(Worker(target, spec)) as running,
        closing(VerifierClient(ClientSettings(running.address))) as link,
    ):
        yield SimpleNamespace(spec=spec, robot=robot, link=link)


def decode(cloud: Any, request: Request = REQUEST, **changes: Any) -> Outcome:
    runner = DecodeRunner(cloud.robot, cloud.spec)
    return runner.run(request, settings(**changes), 7, cloud.link.connect)


BAD_REQUESTS = [
    (Request(()), "ends with a message of the user"),
    (Request((Message("user", ("",)),)), "is empty: leave it out"),
    (Request((Message("user", ("find <|im_end|>",)),)), "control token"),
    (ours().request("find it", b""), "picture is empty"),
    (ours().request("find it", b"\xff\xd8 not a picture"), "not a JPEG or PNG image"),
    (ours().request("find it", FRAME[:200]), "damaged"),
]


@pytest.mark.parametrize(
    ("request_", "advice"), BAD_REQUESTS, ids=[a[:20] for _, a in BAD_REQUESTS]
)
@pytest.mark.parametrize("preset", ["dsd", "edge_only"])
def test_a_request_that_cannot_be_used_ends_with_what_to_do_and_the_next_is_served(
    cloud: Any, preset: str, request_: Request, advice: str
) -> None:
    outcome = decode(cloud, request_, preset=preset)
    assert (outcome.reason, outcome.tokens) == ("bad_request", ())
    assert re.search(advice, outcome.text)
    assert "\n" not in outcome.text
    assert decode(cloud, preset=preset).completed


def test_a_message_over_the_limit_is_a_fault_and_the_verifier_goes_on(cloud: Any) -> None:
    huge = ours().request("find it", FRAME + bytes(MESSAGE_BYTES))
    outcome = decode(cloud, huge, preset="cloud_ar")
    assert outcome.reason == "too_large"
    assert "smaller camera frame" in outcome.text
    assert decode(cloud).completed


@pytest.mark.parametrize(
    ("has", "of", "complaint"),
    [
        (lambda robot: robot, {"tokenizer_digest": b"other"}, "different tokenizers; use two"),
        (lambda robot: robot.preprocessing.spec, {"patch_size": 99}, "has patch_size 99 and"),
    ],
    ids=["other tokens", "other patches of a picture"],
)
def test_a_drafter_of_another_family_is_refused_before_anything_is_drafted(
    cloud: Any, has: Any, of: dict[str, Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in of.items():
        monkeypatch.setitem(has(cloud.robot).__dict__, name, value)
    outcome = decode(cloud)
    assert (outcome.reason, outcome.stats.drafted) == ("bad_request", 0)
    assert complaint in outcome.text and "of one family" in outcome.text


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"rule": "luck"}, "rule must be greedy, coupled or rejection, not 'luck'"),
        ({"rule": "greedy"}, "greedy goes with temperature 0"),
        ({"policy": GREEDY}, "greedy goes with temperature 0"),
    ],
)
def test_a_rule_that_does_not_go_with_the_policy_is_refused(
    toy: Any, changes: dict[str, Any], complaint: str
) -> None:
    with Talk(toy.address) as robot:
        assert complaint in robot.ask(replace(opening(), **changes)).text


def test_an_open_said_twice_is_one_session_and_what_came_before_it_is_dropped(toy: Any) -> None:
    """A robot may have sent that before it knew that its stream is a new one."""
    with Talk(toy.address) as first, Talk(toy.address) as second:
        first.say(Generate(PrefixDigest(0, 1)))
        first.say(DraftMessage(PrefixDigest(0, 1), Draft((1,)), 0))
        one, two = first.ask(opening()), second.ask(opening())
        assert (one.session, one.base) == (two.session, two.base)
        assert second.ask(opening(nonce=2)).session != one.session


# The link

BASE = PrefixDigest(0, 7)
OPENED = encode_server(Opened("s", b"", BASE)).data
LAST = encode_server(Verdict(BASE, (), 3, "end")).data
GOES_ON = encode_server(Verdict(BASE, (), 3)).data
FAULT = encode_server(Fault("internal", "no more of this")).data
LATE = encode_server(Prediction(BASE, (), 3, 0.5)).data


def test_a_verifier_that_starts_later_is_waited_for_and_open_is_said_again() -> None:
    address, items = f"127.0.0.1:{free_port()}", []  # type: ignore[var-annotated]
    with ThreadPoolExecutor(1) as pool:
        decode = pool.submit(decode_at, address, on_item=items.append, retry_s=0.05)
        until(lambda: items)
        with Cloud(toy_worker(), address=address):
            assert decode.result(150).tokens == OWN
    (lost,) = (item for item in items if isinstance(item, LinkLost))  # told once
    assert lost.reason.startswith(f"{address}: nothing listens there")
    assert "start a verifier there with edge-cloud-spec serve" in lost.reason


def test_a_handshake_that_broke_once_is_tried_again_and_ends_no_decode(tmp_path: Path) -> None:
    """To the robot it looks as if the verifier asked for a certificate."""
    authority = Authority(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", 0)) as ending:
            address = f"127.0.0.1:{ending.getsockname()[1]}"
            decode = pool.submit(decode_at, address, authority=authority.path, retry_s=0.05)
            for _ in range(2):  # gRPC's, and the look for what is wrong
                ending.accept()[0].close()
        with Cloud(toy_worker(), address=address, **authority.certificate("verifier")):
            outcome = decode.result(150)
    assert outcome.tokens == OWN, outcome.text


def test_an_inlet_that_fails_is_not_silent(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on_receive = Talk._on_receive

    def failing(robot: Talk, item: Any) -> None:
        on_receive(robot, item)
        if isinstance(item, ServerFrame) and item.head.kind == "opened":
            raise RuntimeError("the robot's own fault")

    monkeypatch.setattr(Talk, "_on_receive", failing)
    with Talk(toy.address) as robot:
        assert isinstance(robot.ask(opening()), Opened)
        assert "the robot's own fault" in robot.hear().text


def test_a_closed_stream_leaves_no_task_even_when_the_cloud_never_answered() -> None:
    link = VerifierClient(ClientSettings(f"127.0.0.1:{free_port()}"))
    lost = threading.Event()
    stream = link.open(lambda item: lost.set())
    assert lost.wait(150)
    stream.close()
    until(lambda: not link._streams)
    link.close()


def test_a_refusal_is_heard_as_it_was_said_though_what_the_robot_says_crosses_it() -> None:
    """gRPC made "Internal error from Core" of every third, and the robot tried again at once."""

    def script(robot: RobotSide) -> Iterator[bytes]:
        robot.context.abort(grpc.StatusCode.UNAUTHENTICATED, "who is it")
        yield b""

    data, random = encode_client(opening()).data, Random(7)
    with ScriptedCloud(script) as cloud:
        for _ in range(60):
            with Talk(cloud.address) as robot:
                for _ in range(random.randint(1, 5)):
                    time.sleep(0.002 * random.random())
                    robot.say(data)
                assert robot.hear() == Fault("unauthenticated", "who is it")


class LateCall:
    """A call that is connected when it is told to be, and says nothing then."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self._cython_call = self

    async def wait_for_connection(self) -> None:
        await self.connected.wait()

    async def send_serialized_message(self, data: bytes) -> None:
        pass

    def cancel(self) -> None:
        pass

    def __aiter__(self) -> LateCall:
        return self

    async def __anext__(self) -> bytes:
        return await asyncio.Future[bytes]()


@pytest.mark.parametrize("steps", range(12))
def test_a_stream_ends_at_whatever_step_of_its_connection_it_is_cancelled(steps: int) -> None:
    """A cancellation was lost as the connection came: the client went on after it was closed."""
    settings = ClientSettings("127.0.0.1:7")

    async def ends() -> bool:
        call, loop = LateCall(), asyncio.get_running_loop()
        route = Route(settings, KnownPlace(), 0.0)
        stream = link_stream.ClientStream(
            settings, route, lambda *_: call, loop.call_soon, lambda item: None
        )
        task = stream.start()
        for step in range(2 * steps + 1):
            if step == steps:
                call.connected.set()
            await asyncio.sleep(0)
        task.cancel()
        return bool((await asyncio.wait({task}, timeout=10))[0])

    assert asyncio.run(ends())


@contextmanager
def answered(*answers: bytes, broken: bool = False) -> Iterator[tuple[ScriptedCloud, Talk]]:
    """A robot that heard these from a cloud that then ended its side, not waiting for a Close."""

    def script(robot: RobotSide) -> Iterator[bytes]:
        robot.hear()
        yield OPENED
        yield from answers
        if broken:
            robot.context.abort(grpc.StatusCode.UNAVAILABLE, "the machine went down")

    with ScriptedCloud(script) as cloud, Talk(cloud.address, retry_s=0.01) as robot:
        robot.say(opening())
        for _ in range(1 + len(answers)):
            robot.hear()
        yield cloud, robot


@pytest.mark.parametrize(
    ("heard", "broken", "reason"),
    [(GOES_ON, False, "the cloud ended the stream"), (LAST, True, "the machine went down")],
)
def test_an_end_before_the_last_answer_or_by_a_break_is_a_loss(
    heard: bytes, broken: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two answers that were under way the later one may have come before the break."""
    monkeypatch.setattr(link_stream, "LATE_CLOSE_S", 0.05)
    with answered(heard, broken=broken) as (_, robot):
        assert robot.hear() == LinkLost(reason)
        assert isinstance(robot.hear(), LinkUp)


def test_a_robot_that_resumes_after_the_last_answer_gets_a_stream_again() -> None:
    """It took that answer for another draft's."""
    with answered(LAST) as (_, robot):
        robot.say(Resume("s", BASE))
        while isinstance(heard := robot.hear(), Opened | Verdict):
            pass  # the first connection was late, so that the robot said all of it again
        assert isinstance(heard, LinkLost)
        assert isinstance(robot.hear(), LinkUp)


@hypothesis_settings(max_examples=30, deadline=None)
@example([], FAULT, False, 300, [])
@example([LAST], LATE, False, 300, [])
@example([GOES_ON], LAST, True, 300, [])  # longer than it takes to reconnect thirty times
@given(
    answers=st.lists(st.sampled_from([GOES_ON, LATE]), max_size=3),
    last=st.sampled_from([LAST, LAST, FAULT]),
    broken=st.booleans(),
    close_after_ms=st.sampled_from([0, 0, 1, 5, 20]),
    said_too_late=st.lists(st.sampled_from([b"\x12\x00", b"\x99"]), max_size=2),
)
def test_whoever_ends_first_in_whatever_order_nothing_is_reported(
    answers: list[bytes], last: bytes, broken: bool, close_after_ms: int, said_too_late: list[bytes]
) -> None:
    """Said too late: a draft that was pushed before the verdict was read, and noise."""
    with answered(*answers, last, broken=broken) as (cloud, robot):
        for data in said_too_late:
            robot.say(data)
        time.sleep(close_after_ms / 1e3)
        assert said_too_late or cloud.streams == 1
        robot.stream.close(encode_client(Close()))
        until(lambda: not robot.link._streams)
        assert robot.heard.empty()


# Another version

UNKNOWN_FIELD = b"\xf2\x07\x05later"  # field 126, with five bytes
LATER_KIND = b"\x09" + bytes(30)  # kind 9


def tap(cloud: Any, behind: bytes) -> None:
    """Have each message, of either side, followed by these bytes."""
    receive: Any = cloud.worker.receive

    def tapped(stream: Any, frame: ClientFrame) -> None:
        if not getattr(stream, "tapped", False):
            send, stream.tapped = stream.send_frame, True
            stream.send_frame = lambda out: send(out and replace(out, data=out.data + behind))
        receive(stream, replace(frame, data=frame.data + behind))

    cloud.worker.receive = tapped


@pytest.mark.parametrize(
    ("newest", "oldest", "side"),
    [
        (PROTOCOL - 1, 1, "robot"),
        (PROTOCOL - 1, 0, "robot"),
        (PROTOCOL + 1, PROTOCOL + 1, "cloud"),
        (PROTOCOL + 1, 0, "cloud"),
        (0, 0, "robot"),
    ],
)
def test_a_robot_that_shares_no_protocol_is_told_which_side_to_update(
    toy: Any, newest: int, oldest: int, side: str
) -> None:
    with Talk(toy.address) as robot:
        fault = robot.ask(opening(protocol=newest, oldest_protocol=oldest))
    assert fault.text == (
        f"the robot speaks protocol {newest} and the cloud protocol {PROTOCOL}; "
        f"update edge_cloud_spec on the {side}"
    )


def test_a_newer_robot_that_speaks_the_clouds_protocol_too_is_served_in_it(toy: Any) -> None:
    with Talk(toy.address) as robot:
        opened = robot.ask(opening(protocol=PROTOCOL + 1, oldest_protocol=PROTOCOL))
    assert (type(opened), opened.protocol) == (Opened, PROTOCOL)


@pytest.mark.parametrize(("protocol", "side"), [(PROTOCOL + 1, "robot"), (1, "cloud")])
def test_a_cloud_that_answers_in_another_protocol_ends_the_decode(protocol: int, side: str) -> None:
    """A cloud that did not look at what the robot speaks."""

    def script(robot: RobotSide) -> Iterator[bytes]:
        robot.hear()
        yield encode_server(Opened("s", b"", PrefixDigest(0, 1), protocol)).data
        robot.hear()

    with ScriptedCloud(script) as cloud:
        outcome = decode_at(cloud.address)
    assert outcome.reason == "bad_opened"
    assert outcome.text == (
        f"the robot speaks protocol {PROTOCOL} and the cloud protocol {protocol}; "
        f"update edge_cloud_spec on the {side}"
    )


def test_fields_of_a_later_protocol_are_skipped_on_both_sides(toy: Any) -> None:
    """Robot and cloud both say more than the other knows, in every message."""
    tap(toy, UNKNOWN_FIELD)
    outcome = decode_at(toy.address)
    assert outcome.tokens == OWN
    assert outcome.stats.stale == 0


def test_a_kind_that_the_cloud_does_not_know_is_a_fault_and_the_session_goes_on(toy: Any) -> None:
    with Talk(toy.address) as robot:
        opened = robot.ask(opening())
        fault = robot.ask(LATER_KIND)
        assert (fault.code, "kind 9 " in fault.text) == ("bad_request", True)
        assert fault.text.endswith("update edge_cloud_spec on the cloud")
        assert isinstance(robot.ask(Generate(opened.base)), Verdict)


def test_a_kind_that_the_robot_does_not_know_is_dropped_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Between two verdicts."""

    def script(robot: RobotSide) -> Iterator[bytes]:
        robot.hear()
        base = PrefixDigest(0, 1)
        yield encode_server(Opened("s", b"", base)).data
        yield LATER_KIND
        assert read_client(robot.hear()).head.kind == "generate"
        yield LATER_KIND
        yield encode_server(Verdict(base, (), 3, "end", leads_to=base.extend((3,)).short)).data
        while robot.hear():
            pass

    with ScriptedCloud(script) as cloud:
        outcome = decode_at(cloud.address, "cloud_ar")
    assert (outcome.reason, outcome.tokens) == ("end", (3,))
    (line,) = [each for each in caplog.messages if "is dropped" in each]
    assert "kind 9 " in line and line.endswith("update edge_cloud_spec on the robot")


def test_a_cloud_whose_first_message_cannot_be_read_ends_the_decode_with_that_sentence() -> None:
    def script(robot: RobotSide) -> Iterator[bytes]:
        robot.hear()
        yield LATER_KIND
        while robot.hear():
            pass

    with ScriptedCloud(script) as cloud:
        outcome = decode_at(cloud.address, "cloud_ar")
    assert outcome.reason == "not_a_verifier"
    assert outcome.text.endswith("update edge_cloud_spec on the robot")


def test_a_robot_of_before_protocol_4_is_told_in_one_sentence_to_be_updated(toy: Any) -> None:
    """As 0.2.0 calls: its decode ends with the text, and its probe finds a verifier that serves."""
    with grpc.insecure_channel(toy.address) as channel:
        call = channel.stream_stream(f"/{EARLIER_SERVICE}/Decode")(iter((b"\x0a\x02\x08\x03",)))
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        health = HealthStub(channel).Check(HealthCheckRequest(service=EARLIER_SERVICE))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert refused.value.details() == (  # type: ignore[attr-defined]
        f"the robot speaks a protocol before 4 and the cloud protocol {PROTOCOL}; "
        "update edge_cloud_spec on the robot"
    )
    assert health.status == HealthCheckResponse.SERVING


def test_a_cloud_of_before_protocol_4_ends_the_decode_with_what_to_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scripted_cloud, "SERVICE", EARLIER_SERVICE)
    with ScriptedCloud(lambda robot: iter(())) as cloud:
        outcome = decode_at(cloud.address)
    assert outcome.reason == "not_a_verifier"
    assert outcome.text.endswith("or update edge_cloud_spec on the cloud")
