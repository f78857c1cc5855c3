"""What one robot may ask; robots that do not read or flood; strangers by the thousand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from helpers.cloud.grpc_cloud import Cloud, until
from helpers.cloud.grpc_robot import OWN, Talk, decode_at, opening
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.sessions import RobotStream, WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.serving.access import ClientRates, TokenBucket
from edge_cloud_spec.cloud.serving.client_streams import MAX_WAITING, ClientStreams
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.edge.events import LinkLost, LinkUp
from edge_cloud_spec.lab.harness.toy import ToyVlm, spec_of, toy_worker
from edge_cloud_spec.wire.channel import METHOD, retry_after_s
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.messages import DraftMessage, Opened, Resume, Verdict

CONNECTIONS = 10_000


@given(
    per_s=st.floats(0.1, 100),
    burst=st.floats(1, 100),
    asked=st.lists(st.tuples(st.floats(0.01, 50), st.floats(0, 3)), max_size=60),
)
def test_a_rate_is_kept_and_a_wait_is_enough(
    per_s: float, burst: float, asked: list[tuple[float, float]]
) -> None:
    rate, now, used, largest = TokenBucket(per_s, burst, 0.0), 0.0, 0.0, 0.0
    for amount, pause in asked:
        now += pause
        wait = rate.take(amount, now)
        if wait:
            now += wait * 1.001 + 1e-6
            assert not rate.take(amount, now)
        used, largest = used + amount, max(largest, amount)
    assert used <= burst + per_s * now + largest + 1e-6


def test_a_robot_that_opens_too_many_streams_is_told_when_to_come_again() -> None:
    """And one that waits as told is served; a robot on another connection notices nothing."""
    with Cloud(toy_worker(), streams_per_s=2.0) as cloud:
        with grpc.insecure_channel(cloud.address) as channel:
            calls = [channel.stream_stream(METHOD)(iter(())) for _ in range(40)]
            refused = [call for call in calls if call.code() != grpc.StatusCode.OK]
        assert {call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        waits = [retry_after_s(call.trailing_metadata()) for call in refused]
        assert all(wait is not None and 0 < wait <= 20 for wait in waits)
        assert decode_at(cloud.address).tokens == OWN


def test_a_robot_that_floods_is_read_slowly_and_loses_nothing() -> None:
    """Ten a second beyond the first ones; all that it sent is answered in the end."""
    rates, now, read = ClientRates(ServerSettings(messages_per_s=10.0)), 0.0, []
    for _ in range(60):
        while pause := rates.take("messages", "flooding", now):
            now += pause * 1.001
        read.append(now)
        assert not rates.take("messages", f"other {len(read)}", now)
    assert read[19] == 0.0 and 3.9 < read[-1] < 4.2
    with Cloud(toy_worker(), messages_per_s=50.0) as toy, Talk(toy.address) as robot:
        for _ in range(120):
            robot.say(b"\x99")
        assert {robot.hear().code for _ in range(120)} == {"bad_request"}


def test_a_robot_that_sends_too_much_pauses_and_resumes() -> None:
    with (
        Cloud(toy_worker(), bytes_per_s=20_000.0) as cloud,
        Talk(cloud.address, retry_s=0.01) as robot,
    ):
        assert isinstance(robot.ask(opening()), Opened)
        for _ in range(30):
            robot.say(b"\x99" * 10_000)
        while not isinstance(heard := robot.hear(), LinkLost):
            pass  # faults of what is no message
        assert "tries again after" in heard.reason
        assert isinstance(robot.hear(), LinkUp)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame (RFC 9113, section 4.1)."""
    head = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream)
    return head + payload


def sized(text: str) -> bytes:
    """A part of a header, shorter than 127 bytes."""
    return bytes((len(text),)) + text.encode()


def request(nonce: int) -> bytes:
    """The bytes that begin a connection and a decode, written by hand; more than one frame."""
    message = encode_client(opening(nonce=nonce, jpeg=bytes(40_000)))
    data = b"\x00" + struct.pack(">I", len(message)) + message
    parts = [data[at : at + 16_000] for at in range(0, len(data), 16_000)]
    fields = {":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": "localhost"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    headers = b"".join(b"\x00" + sized(name) + sized(value) for name, value in fields.items())
    preface = b"PRI * HTTP/2.0\r\n\r\n" + b"SM\r\n\r\n" + frame(4, 0, 0, b"")
    return preface + frame(1, 4, 1, headers) + b"".join(frame(0, 0, 1, part) for part in parts)


def test_ten_thousand_strangers_leave_an_honest_robot_served(toy: Any) -> None:
    """They say nothing, noise, a part of a request or all of it; they stay for a while, or
    vanish."""
    host, _, port = toy.address.rpartition(":")
    noise, staying = random.Random(5), deque[socket.socket]()
    for number in range(CONNECTIONS):
        said = noise.randbytes(noise.randrange(60) * (number % 3 > 0))
        if number % 10 == 0:
            whole = request(number)
            said = whole if number % 20 else whole[: noise.randrange(1, len(whole))]
        stranger = socket.socket()
        stranger.settimeout(5.0)
        with contextlib.suppress(OSError):
            stranger.connect((host, int(port)))
            stranger.sendall(said)
        if number % 7 == 0:  # its close is a reset
            linger = struct.pack("ii", 1, 0)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        staying.append(stranger)
        if len(staying) > 100:
            staying.popleft().close()
        if number % (CONNECTIONS // 4) == CONNECTIONS // 8:
            assert decode_at(toy.address, nonce=number).tokens == OWN
    for stranger in staying:
        stranger.close()
    assert toy.worker.held.evicted > 0, "no request of a stranger was taken for one"


TALKATIVE = """
import logging, sys
from edge_cloud_spec.cloud.serving.logs import TextLines, set_up_logging
set_up_logging("json", logging.DEBUG)
text = logging.StreamHandler()
text.setFormatter(TextLines())
logging.getLogger().addHandler(text)
from helpers.cloud.grpc_cloud import Cloud, Proxy
from helpers.cloud.grpc_robot import REQUEST, Talk, opening, settings, toy_robot
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.messages import DraftMessage
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.cloud.serving.server import ServerSettings

right, wrong, picture = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3])
print(ServerSettings(token="token-of-a-value"), ClientSettings(token="token-of-a-value"))
worker = toy_worker()
with Cloud(worker, token_file=right, metrics="127.0.0.1:0") as cloud, Proxy(cloud.address) as proxy:
    for token in (right, wrong):
        with Talk(proxy.address, token_file=token, retry_s=0.01) as robot:
            opened = robot.ask(opening(jpeg=picture))
            robot.say(picture)
            if token == right:
                robot.ask(DraftMessage(opened.base, Draft((99,)), 0))
                proxy.cut()
                robot.hear()
    worker._models.prompt = lambda *_: 1 / 0  # a failure in the middle of a request
    with Talk(proxy.address, token_file=right) as robot:
        robot.ask(opening(jpeg=picture))
    from urllib.request import urlopen
    print(urlopen(f"http://{cloud._server.metrics.address}/metrics").read().decode())
"""


def test_neither_tokens_nor_pictures_stand_in_a_log(tmp_path: Path) -> None:
    """Both sides at debug level, and as much as goes wrong."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("robot-7:sesame-0123456789\n")
    wrong.write_text("barley-0123456789\n")
    picture = b"\xff\xd8picture-of-a-home"
    environment = {
        **os.environ,
        "GRPC_VERBOSITY": "debug",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
    }
    ended = subprocess.run(
        [sys.executable, "-c", TALKATIVE, str(right), str(wrong), picture.hex()],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    log = ended.stdout + ended.stderr
    assert "ZeroDivisionError" in log  # it is a log of what went wrong
    assert '"client": "robot-7"' in log and 'client="robot-7"' in log
    assert '"session": "' in log and "edge_cloud_spec_requests_failed_total" in log
    for secret in ("sesame", "barley", "token-of-a-value", "picture-of-a-home", picture.hex()):
        assert secret not in log


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
    streams, said = wordy.service.streams.streams, queue.SimpleQueue[bytes]()
    with grpc.insecure_channel(wordy.address) as channel:
        deaf = channel.stream_stream(METHOD)(iter(said.get, b""))
        said.put(encode_client(opening()))
        first: Any = decode_server(next(deaf))
        for _ in range(300):
            said.put(encode_client(opening()))
        (outbox,) = streams.values()
        most = 0

        def is_bounded() -> bool:
            """It is not listened to until it reads, or let go: the answer too many is not kept."""
            nonlocal most
            most = max(most, outbox.size)
            return (most > 4 * MEGABYTE or outbox.over) and not wordy.worker.pending

        until(is_bounded)
        assert most <= 9 * MEGABYTE
        assert wordy.worker.sessions == 1
        with Talk(wordy.address) as back:  # as a robot does that is only slow
            assert isinstance(back.ask(Resume(first.session, first.base)), Opened)
            assert back.ask(DraftMessage(first.base, Draft(OWN[:3]), 0)).path == (0, 1, 2)
        heard = 0
        with contextlib.suppress(grpc.RpcError):  # where it was let go
            for _ in deaf:
                heard += 1
        assert heard < 50
        said.put(b"")
        until(lambda: not streams)


def test_a_robot_that_reads_gets_all_it_asked_for(wordy: Any) -> None:
    with Talk(wordy.address) as robot:
        for asked in range(40):
            robot.say(opening())
            assert asked < 3 or isinstance(robot.hear(), Opened)
        assert all(isinstance(robot.hear(), Opened) for _ in range(3))


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
        for (stream, outbox), sizes, size in zip(both, received, to_send, strict=True):
            for each in sizes:
                stream.waiting.append((bytes(each), 0.0))
            outbox.put(bytes(size))
        return streams.is_behind(both[0][0])

    assert asyncio.run(ask()) == behind


def test_streams_without_a_session_make_room_for_others() -> None:
    with Cloud(toy_worker(WorkerLimits(sessions=3))) as toy, contextlib.ExitStack() as stack:
        robot = stack.enter_context(Talk(toy.address))
        base = robot.ask(opening()).base
        for _ in range(12):  # they say nothing
            stack.enter_context(Talk(toy.address, retry_s=60.0))
        with Talk(toy.address) as other:
            assert isinstance(other.ask(opening(nonce=2)), Opened)
        streams = toy.service.streams
        assert len(streams.streams) <= 6 <= streams.evicted
        assert isinstance(robot.ask(DraftMessage(base, Draft(OWN[:2]), 0)), Verdict)
