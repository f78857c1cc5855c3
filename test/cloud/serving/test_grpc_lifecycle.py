"""The verifier's start, options and end, and its health between: ports, signals, a stuck model."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from helpers.cloud.grpc_cloud import Cloud, until
from helpers.cloud.grpc_robot import OWN, Talk, decode_at, opening
from helpers.cloud.small_fleet import SmallFleet
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.serving import server
from edge_cloud_spec.cloud.serving.server import ModelWatch
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.edge.client import MAX_CHANNELS, VerifierClient, open_channel
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.wire.channel import (
    CLIENT_OPTIONS,
    EARLIER_SERVICE,
    METHOD,
    NO_PROXY,
    SERVER_OPTIONS,
    SERVICE,
    retry_after_s,
)
from edge_cloud_spec.wire.codec import encode_client
from edge_cloud_spec.wire.messages import DraftMessage, Generate, Verdict
from edge_cloud_spec_lab.harness.toy import ToyVlm, spec_of, toy_worker

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
STUCK_S = 0.4


def test_a_taken_port_is_a_clear_error_and_said_before_a_model_is_loaded(
    toy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="the port is taken or the host unknown"):
        Cloud(toy_worker(), address=toy.address)
    assert main(["serve", "--address", toy.address, "--target", "/nowhere"]) == 2
    assert "the port is taken" in capsys.readouterr().err


def test_clients_and_servers_that_come_and_go_in_one_process_leave_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As in a bridge that is configured again and again: closed at any moment, in any order."""
    random, held = Random(3), list[tuple[set[str], int]]()
    others = set(threading.enumerate())  # of tests before
    for life in range(6):
        cloud = Cloud(toy_worker(), token=random.choice(["", "secret"]))
        ends = [cloud.close]
        for token in random.sample(["", "secret", "wrong"], random.randint(1, 3)):
            link = VerifierClient(ClientSettings(cloud.address, token=token, retry_s=0.01))
            ends += [link.close] * 2  # twice is once
            link.probe(lambda found: None)
            for _ in range(random.randint(1, 4)):
                link.open(lambda item: None).send(encode_client(opening()))
        time.sleep(0.1 * random.random() ** 2)
        random.shuffle(ends)
        for end in ends:
            end()
        host, _, port = cloud.address.rpartition(":")
        socket.create_server((host, int(port))).close()
        del cloud, link, ends, end
        gc.collect()  # gRPC's own thread and sockets end with its last object
        if life in (2, 5):
            names = {thread.name for thread in threading.enumerate() if thread not in others}
            held.append((names, len(os.listdir("/proc/self/fd"))))
    assert held[0][1] == held[1][1] and not held[1][0] & {"cloud", "model", "link"}
    said = capfd.readouterr().err
    assert not re.search("Traceback|never retrieved|destroyed|ignored", said), said


def test_channels_to_replicas_that_come_and_go_are_closed_once_their_streams_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, 193 of 201 stayed open for as long as the robot ran."""
    opened, cloud = dict[str, list[Any]](), Cloud(toy_worker())

    def open_one(router: str, credentials: Any, address: str = "") -> Any:
        channel = open_channel(cloud.address, None)  # every replica is the one server
        opened.setdefault(address, []).append(channel)
        return channel

    monkeypatch.setattr("edge_cloud_spec.edge.client.open_channel", open_one)
    random, link = Random(5), VerifierClient(ClientSettings("router:1"))
    replicas = [f"replica{number}:1" for number in range(60)]
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def take(*addresses: str) -> None:
        async def take_each() -> None:
            for address in addresses:
                link._open_channel(address)

        asyncio.run_coroutine_threadsafe(take_each(), link._thread.loop).result(timeout=60)

    def still_open() -> set[str]:
        states = {a: [c.get_state() for c in channels] for a, channels in opened.items()}
        return {a for a, each in states.items() if each[-1] != grpc.ChannelConnectivity.SHUTDOWN}

    try:
        take(*random.choices(replicas, k=200), "", *replicas, *replicas[: MAX_CHANNELS - 1])
        until(lambda: not link._closing)
        assert still_open() == {"router:1", *replicas[: MAX_CHANNELS - 1]}
        assert len(opened["router:1"]) == 1, "the router's is kept"
        stream = link.open(heard.put)
        stream.send(encode_client(opening()))
        opened_at = heard.get(timeout=60).head.base
        link.settings = replace(link.settings, cloud="another:1")  # the router's is one of many
        take(*replicas)
        stream.send(encode_client(Generate(opened_at)))
        assert heard.get(timeout=60).head.kind == "verdict", "a stream goes on there"
        assert "router:1" in still_open()
        stream.close()
        until(lambda: not link._closing)
        assert "router:1" not in still_open()
        link.open(lambda item: None).send(encode_client(opening()))
        take(*replicas)
    finally:
        link.close()
        cloud.close()
    assert not still_open() and not link._closing, "nor does one that is under way keep it open"


SERVE = """
from edge_cloud_spec_lab.harness.toy import toy_worker
from edge_cloud_spec.cloud.serving.server import ServerSettings, serve
serve(toy_worker(), ServerSettings("127.0.0.1:0", grace_s=0.2), lambda a: print(a, flush=True))
print("ended", flush=True)
"""


LOAD = """
import sys, time
from edge_cloud_spec.cloud import command
from edge_cloud_spec.nodes import cloud_verifier

def load(args):
    print("loading", flush=True)
    time.sleep(600)

command.make_worker = load
sys.argv = ["cloud_verifier", "--address", "127.0.0.1:0"]
cloud_verifier.main()
"""


@contextmanager
def running(code: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that runs this, and its first line."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly_in_mid_decode(number: int) -> None:
    with running(SERVE) as (process, address), Talk(address) as robot:
        robot.say(opening())
        assert isinstance(robot.ask(Generate(robot.hear().base)), Verdict)
        process.send_signal(number)
        out, err = process.communicate(timeout=150)
    assert (process.returncode, out) == (0, "ended\n")
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_models_load_is_a_clean_end_for_a_launch(number: int) -> None:
    with running(LOAD) as (process, said):
        assert said == "loading"
        process.send_signal(number)
        _, err = process.communicate(timeout=150)
    assert process.returncode == 0 and not err, err


class HeldVlm(ToyVlm):
    """A model whose passes last until they are let go, or end their thread."""

    def __init__(self) -> None:
        super().__init__(1)
        self.go, self.under_way, self.kill = threading.Event(), threading.Event(), False
        self.go.set()

    def forward_together(self, requests: Sequence[Any]) -> Any:
        self.under_way.set()
        self.go.wait(150)
        if self.kill:
            raise SystemExit  # ends a thread without a word
        return super().forward_together(requests)


@pytest.fixture
def held() -> Iterator[SimpleNamespace]:
    model = HeldVlm()
    worker = Worker(model, spec_of(60), None, WorkerLimits())  # type: ignore[arg-type]
    with Cloud(worker, stuck_s=STUCK_S, metrics="127.0.0.1:0") as cloud:
        yield SimpleNamespace(model=model, cloud=cloud, address=cloud.address)
        model.go.set()


def wait_for(address: str, status: int) -> None:
    """Until the verifier says so, for both of its names."""
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        for name in ("", SERVICE, EARLIER_SERVICE):
            request = health_pb2.HealthCheckRequest(service=name)
            until(lambda request=request: check(request).status == status)


def begin_pass(robot: Talk, model: HeldVlm) -> None:
    """Open and have the model judge a draft, which does not end."""
    opened = robot.ask(opening())
    model.go.clear()
    model.under_way.clear()
    robot.say(DraftMessage(opened.base, Draft(OWN[:3]), 0))
    assert model.under_way.wait(150)


def test_a_pass_that_hangs_is_not_serving_and_serving_again_when_it_goes_on(held: Any) -> None:
    wait_for(held.address, SERVING)
    with Talk(held.address) as robot:
        begin_pass(robot, held.model)
        wait_for(held.address, NOT_SERVING)
        with grpc.insecure_channel(held.address) as channel:  # a new robot is told, and when
            refused = channel.stream_stream(METHOD)(iter(()))
            assert refused.code() == grpc.StatusCode.UNAVAILABLE
            assert "lasts longer than 0.4 s" in refused.details()
            assert retry_after_s(refused.trailing_metadata()) == 1.0
        held.model.go.set()
        assert isinstance(robot.hear(), Verdict)  # nothing was lost but time
        wait_for(held.address, SERVING)
        worker = held.cloud.worker
        until(lambda: worker.idle)  # with a session whose robot says nothing
        watch = ModelWatch(worker, STUCK_S, iter([0.0, 0.0, 1e6]).__next__)
        assert watch.look() == watch.look() == "", "it is stuck however long it waits"
    assert decode_at(held.address, nonce=9).tokens == OWN


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_is_not_serving(held: Any) -> None:
    with Talk(held.address) as robot:
        begin_pass(robot, held.model)
        held.model.kill = True
        held.model.go.set()
        wait_for(held.address, NOT_SERVING)
        assert not held.cloud.worker.is_alive()
        assert "has ended" in held.cloud.service.problem


def test_strangers_hold_nothing_by_asking_for_health(toy: Any) -> None:
    """Watch has no end, and no token: it is refused by a verifier and by a fleet's router."""
    names = ["", SERVICE, *(f"no-such-{number}" for number in range(50))]
    first, *_, last = asked = [health_pb2.HealthCheckRequest(service=name) for name in names]
    with SmallFleet("") as fleet:
        for address, server in ((toy.address, toy._server), (fleet.address, fleet._router)):
            with grpc.insecure_channel(address) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                for watch in [stub.Watch(request, timeout=100) for request in asked]:
                    assert watch.code() == grpc.StatusCode.UNIMPLEMENTED
                with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
                    stub.Check(last, timeout=100)
                assert stub.Check(first, timeout=100).status
            health = server._health
            assert not health._server_watchers and set(health._server_status) == {
                "",
                SERVICE,
                EARLIER_SERVICE,
            }


def test_memory_is_given_back_after_streams_that_have_sent_no_whole_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC holds a message until it is whole, up to 16 MB; nothing that we count has arrived. The
    control: while they are there, and afterwards, there is nothing to give."""
    trims: list[int] = []
    monkeypatch.setattr(server, "trim", lambda: trims.append(0))
    with (
        Cloud(toy_worker(), stuck_s=0.02) as cloud,
        grpc.insecure_channel(cloud.address) as channel,
    ):
        streams, silent = cloud.service.streams.streams, threading.Event()
        robot = channel.stream_stream(METHOD)(iter(silent.wait, True))
        until(lambda: streams)
        time.sleep(0.1)
        assert not trims
        robot.cancel()
        until(lambda: len(trims) == 2)  # what is freed a moment later is given back, too
        time.sleep(0.1)
        assert len(trims) == 2 and not cloud.service.meter.received_bytes
    silent.set()


def hurried(options: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """The same, with pings fifty times as soon, and their answers due as much sooner."""
    pings = ("keepalive_time_ms", "keepalive_timeout_ms", "ping_timeout_ms")
    return tuple((name, ms // 50 if name.endswith(pings) else ms) for name, ms in options)


SETTINGS, END_HEADERS = b"\0\0\0\4\0\0\0\0\0", 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS


def headers(fields: dict[str, str]) -> bytes:
    """A frame of HTTP/2 that begins a stream."""
    text = b"".join(
        b"\0" + b"".join(bytes([len(each)]) + each.encode() for each in field)
        for field in fields.items()
    )
    return len(text).to_bytes(3, "big") + bytes([1, END_HEADERS]) + (1).to_bytes(4, "big") + text


def test_a_robot_that_is_gone_without_a_word_holds_its_stream_for_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its kernel is there and takes all; it answers no ping. A minute would be gRPC's own."""
    monkeypatch.setattr(server, "SERVER_OPTIONS", hurried(SERVER_OPTIONS))
    call = {":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": "a"}
    with Cloud(toy_worker()) as cloud:
        streams, port = cloud.service.streams.streams, int(cloud.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as robot:
            more = {"te": "trailers", "content-type": "application/grpc"}
            robot.sendall(PREFACE + headers(call | more))
            until(lambda: streams)
            robot.settimeout(20.0)
            while robot.recv(2**16):  # until the verifier ends the connection
                pass
            until(lambda: not streams)


def test_a_verifier_that_is_gone_without_a_word_is_missed_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        channel = grpc.insecure_channel(address, options=(*hurried(CLIENT_OPTIONS), *NO_PROXY))
        with channel:
            call = channel.stream_stream(METHOD)(iter(queue.SimpleQueue().get, None), timeout=20.0)
            connection, _ = silent.accept()
            with connection:
                connection.sendall(SETTINGS)
                assert call.code() == grpc.StatusCode.UNAVAILABLE, call.details()


steps = st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0.01, 0.3)), max_size=60)


@given(steps)
def test_it_is_stuck_when_no_step_ended_for_that_long_and_only_then(
    looks: list[tuple[bool, bool, float]],
) -> None:
    now, last = 0.0, 0.0
    thread: Any = SimpleNamespace(idle=False, steps=0, is_alive=lambda: True)
    watch = ModelWatch(thread, 1.0, lambda: now)
    assert watch.look() == ""
    for idle, stepped, pause in looks:
        now += pause
        thread.idle = idle
        thread.steps += stepped
        if idle or stepped:
            last = now
        assert bool(watch.look()) == (now - last > 1.0)
    thread.is_alive = lambda: False
    assert "has ended" in watch.look()


def test_a_fleets_replicas_get_the_options_of_their_models_and_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Ray is handed is made in another process: it is pickled, and called."""
    handed: list[bytes] = []

    def serve_fleet(make: Any, *_: object) -> None:
        handed.append(pickle.dumps(make))

    monkeypatch.setattr("edge_cloud_spec.cloud.fleet.ray_fleet.serve_fleet", serve_fleet)
    monkeypatch.setattr("edge_cloud_spec.cloud.command.check_installed", lambda *_: None)  # Ray
    options = "--replicas 2 --threads 1 --batch 3 --batch-rows 99 --kv-memory 64"
    assert main(["serve", *options.split(), "--address", "127.0.0.1:0"]) == 0
    worker = pickle.loads(handed[0])()
    assert (worker.kv_memory.limit, worker.kv_memory.usage) == (64 * 2**20, 0.0)
    limits = worker.limits
    assert (limits.batch, limits.batch_rows) == (3, 99)
