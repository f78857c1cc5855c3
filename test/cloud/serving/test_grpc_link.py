"""The link of a decode breaks, comes back and ends, on either side, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import grpc
import pytest
from helpers.cloud.grpc_cloud import Cloud, Proxy, free_port, until
from helpers.cloud.grpc_robot import (
    OWN,
    SHAPES,
    Talk,
    decode_at,
    opening,
)
from helpers.cloud.scripted_cloud import RobotSide, ScriptedCloud
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit, LinkLost, LinkUp
from edge_cloud_spec.edge.link import stream as link_stream
from edge_cloud_spec.edge.link.route import KnownPlace, Route
from edge_cloud_spec.edge.link.stream import ClockOffset
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.codec import decode_server, encode_client, encode_server
from edge_cloud_spec.wire.messages import Close, Fault, Opened, Prediction, Resume, Verdict

BASE = PrefixDigest(0, 7)
OPENED = encode_server(Opened("s", b"", BASE))
LAST = encode_server(Verdict(BASE, (), 3, "end"))
GOES_ON = encode_server(Verdict(BASE, (), 3))
FAULT = encode_server(Fault("internal", "no more of this"))
LATE = encode_server(Prediction(BASE, (), 3, 0.5))


@pytest.mark.parametrize("preset", SHAPES)
def test_a_stream_killed_again_and_again_is_resumed_where_it_was(toy: Any, preset: str) -> None:
    cuts: list[int] = []

    def on_emit(emit: Emit) -> None:
        if len(cuts) < 4 and emit.position >= 10 * len(cuts):
            cuts.append(proxy.cut())

    with Proxy(toy.address) as proxy:
        outcome = decode_at(proxy.address, preset, on_emit=on_emit, retry_s=0.01)
    assert outcome.tokens == OWN, outcome.text
    assert sum(cuts) >= 1
    assert outcome.stats.resumed >= (1 if preset == "dsd" else 0)


def test_a_verifier_that_starts_later_is_waited_for_and_open_is_said_again() -> None:
    address, items = f"127.0.0.1:{free_port()}", []  # type: ignore[var-annotated]
    with ThreadPoolExecutor(1) as pool:
        decode = pool.submit(decode_at, address, on_item=items.append, retry_s=0.05)
        until(lambda: items)
        with Cloud(toy_worker(), address=address):
            assert decode.result(150).tokens == OWN
    (lost,) = (item for item in items if isinstance(item, LinkLost))  # told once
    assert lost.reason.startswith(f"cannot reach the cloud at {address}: ")
    assert lost.reason.endswith("start one there with edge-cloud-spec serve")


def test_an_inlet_that_fails_is_not_silent(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on_receive = Talk._on_receive

    def failing(robot: Talk, item: Any) -> None:
        on_receive(robot, item)
        if isinstance(item, bytes) and isinstance(decode_server(item), Opened):
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

    data, random = encode_client(opening()), Random(7)
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
            settings, route, ClockOffset(), lambda *_: call, loop.call_soon, lambda item: None
        )
        task = stream.start()
        for step in range(2 * steps + 1):
            if step == steps:
                call.connected.set()
            await asyncio.sleep(0)
        task.cancel()
        return bool((await asyncio.wait({task}, timeout=10))[0])

    assert asyncio.run(ends())


@contextlib.contextmanager
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
