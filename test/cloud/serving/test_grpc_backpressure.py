"""Robots that do not read and robots that flood: what waits for them is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import OWN, Talk, opening

from edge_cloud_spec.cloud.model_thread.sessions import RobotStream, WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.serving.client_streams import MAX_WAITING, ClientStreams
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.lab.harness.toy import ToyVlm, spec_of, toy_worker
from edge_cloud_spec.wire.channel import METHOD
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.messages import Close, DraftMessage, Opened, Resume, Verdict


class Holding(RobotStream):
    """A stream at whose end the worker stands still until ``go``."""

    def __init__(self, held: threading.Event, go: threading.Event) -> None:
        self._held, self._go = held, go
        super().__init__(lambda data: None)

    @property  # type: ignore[override]
    def session(self) -> None:
        self._held.set()
        self._go.wait(150)

    @session.setter
    def session(self, session: None) -> None:
        """There is none."""


def test_a_robot_that_reads_nothing_is_not_read_from_for_ever(toy: Any) -> None:
    """The worker is held; what one stream may queue stays bounded."""
    with Talk(toy.address) as robot:
        robot.say(opening())
        base = robot.hear().base
        held, go = threading.Event(), threading.Event()
        toy.worker.leave(Holding(held, go))
        held.wait(150)
        for _ in range(200):
            robot.say(DraftMessage(base, Draft((99,)), 0))
        with Talk(toy.address) as other:  # by the time it is through, the flood has come as well
            other.say(opening(nonce=5))
            threading.Event().wait(0.3)
            assert toy.worker._arrivals.qsize() < 40
            go.set()
            assert isinstance(other.hear(), Opened)


class Deaf:
    """A robot that says things and reads nothing; a stream without the link's care."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._writing: asyncio.Task[None] | None = None
        self._run(self._open(address))

    async def _open(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._call = self._channel.stream_stream(METHOD)()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=150)

    def say(self, message: Any) -> bool:
        """Send it; whether the stream took it within half a second."""

        async def write() -> None:
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, grpc.aio.BaseError):
                await self._call.write(encode_client(message))

        async def try_to() -> None:
            if self._writing is None or self._writing.done():
                self._writing = asyncio.ensure_future(write())
            await asyncio.wait({self._writing}, timeout=0.5)

        self._run(try_to())
        return self._writing is not None and self._writing.done()

    def hear(self) -> Any:
        """The next message that waits here; None where the stream has ended."""

        async def read() -> Any:
            with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
                return await self._call.read()
            return grpc.aio.EOF

        data = self._run(read())
        return None if data is grpc.aio.EOF else decode_server(data)

    def __enter__(self) -> Deaf:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._channel.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=150)
        self._loop.close()


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 150
    while not what():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.01)


MEGABYTE = 2**20


@pytest.fixture
def wordy() -> Iterator[SimpleNamespace]:
    """A verifier whose Opened has a megabyte, of which it lets eight wait."""
    spec = replace(spec_of(60), system_text="x" * MEGABYTE)
    limits = WorkerLimits(queue_bytes=8 * MEGABYTE)
    with Cloud(Worker(ToyVlm(1), spec, None, limits)) as running:  # type: ignore[arg-type]
        yield running


def test_a_robot_that_does_not_read_makes_nothing_wait_without_bound(wordy: Any) -> None:
    """Its answers would be 300 MB."""
    streams = wordy._server._service.streams.streams
    with Deaf(wordy.address) as deaf:
        most = 0
        deaf.say(opening())
        first = deaf.hear()
        for _ in range(300):
            taken = deaf.say(opening())
            most = max([most, *(outbox.size for outbox in list(streams.values()))])
            if not streams or not taken:  # it is let go, or not listened to until it reads
                break
        until(lambda: not wordy.worker.pending)
        assert most <= 9 * MEGABYTE  # the one too many is not kept
        assert wordy.worker.sessions == 1
        with Talk(wordy.address) as back:  # as a robot does that is only slow
            back.say(Resume(first.session, first.base))
            assert isinstance(back.hear(), Opened)
            back.say(DraftMessage(first.base, Draft(OWN[:3]), 0))
            assert back.hear().path == (0, 1, 2)
        heard = 0
        while deaf.hear() is not None:
            heard += 1
        assert heard < 50
        until(lambda: not streams)


def test_a_robot_that_reads_gets_all_it_asked_for(wordy: Any) -> None:
    with Talk(wordy.address) as robot:
        for asked in range(40):
            robot.say(opening())
            assert asked < 3 or isinstance(robot.hear(), Opened)
        assert all(isinstance(robot.hear(), Opened) for _ in range(3))


def test_what_a_stream_lets_wait_is_bounded_in_bytes(toy: Any) -> None:
    """The worker is held, and each message has a megabyte."""
    held, go = threading.Event(), threading.Event()
    toy.worker.leave(Holding(held, go))
    held.wait(150)
    large = replace(opening(), jpeg=bytes(4 * MEGABYTE))
    with Deaf(toy.address) as deaf:
        for _ in range(12):
            deaf.say(large)
        streams = list(toy._server._service.streams.streams)
        go.set()
        (stream,) = streams
        assert 8 * MEGABYTE < stream._received[1] < 14 * MEGABYTE


@pytest.mark.parametrize(
    ("received", "to_send", "behind"),
    [
        (([1] * MAX_WAITING, []), (0, 0), False),
        (([1] * (MAX_WAITING + 1), []), (0, 0), True),
        (([100], []), (0, 0), False),
        (([101], []), (0, 0), True),
        (([60], [90]), (0, 0), False),
        (([60], [91]), (0, 0), True),
        (([], []), (50, 0), False),
        (([], []), (51, 0), True),
        (([], []), (30, 45), False),
        (([], []), (30, 46), True),
    ],
)
def test_a_stream_is_not_read_while_much_waits_in_it_or_for_its_client(
    received: tuple[list[int], list[int]], to_send: tuple[int, int], behind: bool
) -> None:
    """The client's second stream counts as well. What is to be sent waits up to half its bound."""

    async def ask() -> bool:
        streams = ClientStreams(WorkerLimits(queue_bytes=100, bytes_per_robot=150))
        both = [
            streams.open("robot", lambda queue: RobotStream(queue.put, "robot"), lambda: None)
            for _ in range(2)
        ]
        for (stream, queue), sizes, size in zip(both, received, to_send, strict=True):
            for each in sizes:
                stream.receive(bytes(each), 0.0)
            queue.put(bytes(size))
        return streams.is_behind(both[0][0])

    assert asyncio.run(ask()) == behind


def test_streams_without_a_session_make_room_for_others() -> None:
    with Cloud(toy_worker(WorkerLimits(sessions=3))) as toy, contextlib.ExitStack() as stack:
        robot = stack.enter_context(Talk(toy.address))
        robot.say(opening())
        base = robot.hear().base
        for _ in range(12):
            stack.enter_context(Deaf(toy.address)).say(Close())
        with Talk(toy.address) as other:
            other.say(opening(nonce=2))
            assert isinstance(other.hear(), Opened)
        assert len(toy._server._service.streams.streams) <= 6
        robot.say(DraftMessage(base, Draft(OWN[:2]), 0))
        assert isinstance(robot.hear(), Verdict)
