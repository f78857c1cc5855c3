"""Decodes over real gRPC on loopback: the same tokens, clear faults, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from helpers.checkpoints import checkpoint, jpeg
from helpers.grpc_cloud import Cloud, Proxy, free_port

from edge_cloud_spec.cloud.server import ServerSettings
from edge_cloud_spec.cloud.sessions import WorkerLimits
from edge_cloud_spec.cloud.turns import Line
from edge_cloud_spec.cloud.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit, LinkLost, LinkUp
from edge_cloud_spec.edge.runner import DecodeRunner, DecodeSettings, Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.harness.emulated_link import LinkProfile
from edge_cloud_spec.harness.proxy import Proxy as DelayingProxy
from edge_cloud_spec.harness.toy import ToyVlm, own_answer, spec_of, toy_worker
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Request
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.channel import MESSAGE_BYTES, METHOD, SERVICE
from edge_cloud_spec.wire.codec import decode_client, decode_server, encode_client
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    Verdict,
)

SHAPES = ("cloud_ar", "cloud_sd", "dsd")
POLICIES = {
    "greedy": GREEDY,
    "coupled": SamplingPolicy(0.8, seed=5),
    "rejection": SamplingPolicy(0.8),
}
REQUEST = Request("find the silver bottle", jpeg(1))


def settings(preset: str = "dsd", rule: str = "greedy", **changes: Any) -> DecodeSettings:
    return DecodeSettings(load_preset(preset), rule, POLICIES[rule], patience=150.0, **changes)


# With models


@pytest.fixture(scope="module")
def robots() -> list[Vlm]:
    """Draft models, one for each robot: another checkpoint of the family, other padding rows."""
    return [load(checkpoint("qwen3_vl", 2, 384), threads=1) for _ in range(3)]


@pytest.fixture(scope="module")
def cloud() -> Iterator[SimpleNamespace]:
    target = load(checkpoint("qwen3_vl", 1), threads=1)
    spec = target.spec("You guide a robot.", 24)
    alone = load(checkpoint("qwen3_vl", 1), threads=1)
    with Cloud(Worker(target, spec, load(checkpoint("qwen3_vl", 2, 384)))) as running:
        link = VerifierClient(ClientSettings(running.address))
        yield SimpleNamespace(address=running.address, spec=spec, alone=alone, link=link)
        link.close()


def decode(cloud: Any, robot: Vlm, request: Request = REQUEST, **changes: Any) -> Outcome:
    chosen = settings(**changes)
    return DecodeRunner(robot, cloud.spec).run(request, chosen, 7, cloud.link.connect)


def alone(cloud: Any, request: Request, policy: SamplingPolicy) -> tuple[int, ...]:
    """The target's own tokens, one pass for each, without any of the decoding."""
    session = cloud.alone.open(cloud.alone.prompt(request, cloud.spec))
    tokens: list[int] = []
    while len(tokens) < cloud.spec.max_tokens:
        tokens.append(coupled_token(session.forward(())[0], policy, len(tokens)))
        if tokens[-1] in cloud.spec.end_ids:
            break
        session.extend(tokens[-1:])
    return tuple(tokens)


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("preset", SHAPES)
def test_every_preset_gives_the_targets_own_tokens(
    cloud: Any, robots: list[Vlm], preset: str, rule: str
) -> None:
    outcome = decode(cloud, robots[0], preset=preset, rule=rule)
    assert outcome.completed, outcome.text
    assert outcome.tokens == alone(cloud, REQUEST, POLICIES[rule])
    assert outcome.stats.stale == 0
    assert (outcome.stats.drafted > 0) == (preset != "cloud_ar")


@pytest.mark.parametrize("preset", SHAPES)
def test_rejection_completes_and_repeats_by_seed(
    cloud: Any, robots: list[Vlm], preset: str
) -> None:
    outcomes = [decode(cloud, robots[0], preset=preset, rule="rejection") for _ in range(2)]
    assert all(outcome.completed for outcome in outcomes)
    assert outcomes[0].tokens == outcomes[1].tokens


def test_the_drafter_alone_needs_no_cloud_and_says_so(cloud: Any, robots: list[Vlm]) -> None:
    seen: list[Emit] = []
    runner = DecodeRunner(robots[0], cloud.spec)
    refuse = lambda on_receive: pytest.fail("it connected")  # noqa: E731
    outcome = runner.run(REQUEST, settings("edge_only"), 7, refuse, seen.append)
    assert outcome.completed
    assert not any(emit.verified for emit in seen)


def test_a_second_decode_does_not_wait_to_hear_how_to_prompt(cloud: Any, robots: list[Vlm]) -> None:
    runner = DecodeRunner(robots[0], cloud.spec)
    first, second = (runner.run(REQUEST, settings(), n, cloud.link.connect) for n in (1, 2))
    assert first.tokens == second.tokens
    assert second.stats.down_bytes < first.stats.down_bytes - 300  # the specification


def test_several_robots_at_once_get_each_its_own_answer(cloud: Any, robots: list[Vlm]) -> None:
    jobs = [("dsd", "coupled"), ("cloud_sd", "coupled"), ("cloud_ar", "greedy")]
    requests = [Request("find the silver bottle", jpeg(seed)) for seed in range(3)]
    outcomes: dict[int, Outcome] = {}

    def run(i: int) -> None:
        preset, rule = jobs[i]
        outcomes[i] = decode(cloud, robots[i], requests[i], preset=preset, rule=rule)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (_, rule) in enumerate(jobs):
        assert outcomes[i].tokens == alone(cloud, requests[i], POLICIES[rule])


BAD_REQUESTS = [
    (Request("", REQUEST.jpeg), "instruction is empty"),
    (Request("x" * 100_000, REQUEST.jpeg), "has 100000 characters"),
    (Request("find <|im_end|>", REQUEST.jpeg), "control token"),
    (Request("find it", b""), "frame is empty"),
    (Request("find it", b"\xff\xd8 not a picture"), "not a JPEG or PNG image"),
    (Request("find it", REQUEST.jpeg[:200]), "damaged"),
    (Request("find it", REQUEST.jpeg, "last words first"), "order .* unknown.*use one of"),
]


@pytest.mark.parametrize(
    ("request_", "advice"), BAD_REQUESTS, ids=[a[:20] for _, a in BAD_REQUESTS]
)
@pytest.mark.parametrize("preset", ["cloud_ar", "dsd", "edge_only"])
def test_a_request_that_cannot_be_used_ends_with_what_to_do(
    cloud: Any, robots: list[Vlm], preset: str, request_: Request, advice: str
) -> None:
    outcome = decode(cloud, robots[0], request_, preset=preset)
    assert outcome.reason == "bad_request"
    assert re.search(advice, outcome.text)
    assert "\n" not in outcome.text
    assert outcome.tokens == ()


def test_after_bad_requests_the_verifier_serves_as_before(cloud: Any, robots: list[Vlm]) -> None:
    for bad, _ in BAD_REQUESTS:
        decode(cloud, robots[0], bad)
    assert decode(cloud, robots[0]).tokens == alone(cloud, REQUEST, GREEDY)


def test_a_message_over_the_limit_is_a_fault_and_the_verifier_goes_on(
    cloud: Any, robots: list[Vlm]
) -> None:
    huge = Request("find it", REQUEST.jpeg + bytes(MESSAGE_BYTES))
    outcome = decode(cloud, robots[0], huge, preset="cloud_ar")
    assert outcome.reason == "too_large"
    assert "smaller camera frame" in outcome.text
    assert decode(cloud, robots[0]).completed


def test_a_drafter_of_another_family_is_refused(cloud: Any) -> None:
    robot = load(checkpoint("qwen3_vl", 2, 384))
    robot.tokenizer_digest = b"of another family"
    outcome = decode(cloud, robot)
    assert outcome.reason == "bad_request"
    assert "different tokenizers; use two checkpoints of one family" in outcome.text


def test_a_picture_form_that_differs_is_told_before_anything_is_drafted(cloud: Any) -> None:
    robot = load(checkpoint("qwen2_vl", 2))
    robot.tokenizer_digest = cloud.alone.tokenizer_digest
    outcome = decode(cloud, robot)
    assert outcome.reason == "bad_request"
    assert "choose models of one family" in outcome.text


# Without: the models are functions of the prefix


@pytest.fixture
def toy() -> Iterator[SimpleNamespace]:
    with Cloud(toy_worker()) as running:
        yield running


def toy_robot() -> DecodeRunner:
    return DecodeRunner(ToyVlm(1, 0.5), spec_of(60))  # type: ignore[arg-type]


OWN = tuple(own_answer(ToyVlm(1), POLICIES["coupled"], 60)[0])


class Talk:
    """A robot that says what a test wants."""

    def __init__(self, address: str, **changes: Any) -> None:
        self.heard: queue.Queue[Any] = queue.Queue()
        self.link = VerifierClient(ClientSettings(address, **changes))
        self.stream = self.link.open(self.heard.put)

    def say(self, message: Any) -> None:
        self.stream.send(message if isinstance(message, bytes) else encode_client(message))

    def hear(self) -> Any:
        item = self.heard.get(timeout=150)
        return decode_server(item) if isinstance(item, bytes) else item

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()


def opening(rule: str = "coupled", **changes: Any) -> Open:
    message = Open(1, "find", b"jpeg", "action first", POLICIES[rule], rule)
    return replace(message, tokenizer_digest=ToyVlm.tokenizer_digest, **changes)


@pytest.mark.parametrize("preset", SHAPES)
def test_a_stream_killed_again_and_again_is_resumed_where_it_was(toy: Any, preset: str) -> None:
    with Proxy(toy.address) as proxy:
        link = VerifierClient(ClientSettings(proxy.address, retry_s=0.01))
        cuts = []

        def on_emit(emit: Emit) -> None:
            if len(cuts) < 4 and emit.position >= 10 * len(cuts):
                cuts.append(proxy.cut())

        outcome = toy_robot().run(REQUEST, settings(preset, "coupled"), 1, link.connect, on_emit)
        link.close()
    assert outcome.completed, outcome.text
    assert outcome.tokens == OWN
    assert sum(cuts) >= 1
    assert outcome.stats.resumed >= (1 if preset == "dsd" else 0)


def test_a_stranger_with_the_captured_bytes_does_not_end_the_owners_stream() -> None:
    """The Open as it went over the wire, and the session's name: before Opened came, and after."""
    worker = toy_worker()
    receive: Any = worker.receive
    seen: list[bytes] = []

    def tap(stream: Any, data: bytes) -> None:
        seen.append(data)
        receive(stream, data)

    worker.receive = tap  # type: ignore[method-assign]
    codes: list[str] = []
    with Cloud(worker) as toy, contextlib.ExitStack() as stack:
        link = VerifierClient(ClientSettings(toy.address))
        lost: list[Any] = []

        def attack(*messages: Any) -> None:
            thief = stack.enter_context(Talk(toy.address))
            for message in messages:
                thief.say(message)
                codes.append(thief.hear().code)

        def connect(on_receive: Any) -> Any:
            def tee(item: Any) -> None:
                if isinstance(item, LinkLost):
                    lost.append(item)
                on_receive(item)

            return link.connect(tee)

        def on_emit(emit: Emit) -> None:
            if len(codes) < 9:
                ((name, served),) = worker._held._held.items()
                attack(seen[0], Resume(name, PrefixDigest(0, 1)), Resume(name, served.base))

        outcome = toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, connect, on_emit)
        link.close()
    assert outcome.tokens == OWN
    assert codes == ["in_use", "unknown_session", "unknown_session"] * 3
    assert not lost


def test_a_link_cut_before_opened_is_taken_up_by_its_robot_alone() -> None:
    """The first Open arrives, and its answer does not."""
    worker = toy_worker()
    receive: Any = worker.receive
    opens: list[Open] = []

    def tap(stream: Any, data: bytes) -> None:
        if isinstance(message := decode_client(data), Open):
            opens.append(message)
            if len(opens) == 1:
                stream.transport = lambda _: proxy.cut()
        receive(stream, data)

    worker.receive = tap  # type: ignore[method-assign]
    with Cloud(worker) as toy, Proxy(toy.address) as proxy:
        link = VerifierClient(ClientSettings(proxy.address, retry_s=0.01))
        outcome = toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, link.connect)
        link.close()
    assert outcome.tokens == OWN
    first, second = opens[:2]
    assert first.key == second.key
    assert (first.secret, len(second.secret)) == (b"", 16)
    assert worker.tally.verdicts > 0


def test_a_verifier_that_starts_later_is_waited_for_and_open_is_said_again() -> None:
    address = f"127.0.0.1:{free_port()}"
    link = VerifierClient(ClientSettings(address, retry_s=0.05))
    lost: queue.Queue[LinkLost] = queue.Queue()
    outcomes: list[Outcome] = []

    def connect(on_receive: Any) -> Any:
        def tee(item: Any) -> None:
            on_receive(item)
            if isinstance(item, LinkLost):
                lost.put(item)

        return link.connect(tee)

    def run() -> None:
        outcomes.append(toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, connect))

    robot = threading.Thread(target=run)
    robot.start()
    reason = lost.get(timeout=150).reason
    assert reason.startswith(f"cannot reach the cloud at {address}: ")
    assert reason.endswith("start one there with edge-cloud-spec serve")
    with Cloud(toy_worker(), address=address):
        robot.join(timeout=150)
        link.close()
    assert outcomes[0].tokens == OWN
    assert lost.empty()  # told once


def test_a_verifier_that_never_comes_ends_the_decode_with_the_reason() -> None:
    address = f"127.0.0.1:{free_port()}"
    link = VerifierClient(ClientSettings(address))
    chosen = replace(settings(), patience=0.5)
    outcome = toy_robot().run(REQUEST, chosen, 1, link.connect)
    link.close()
    assert outcome.reason == "timeout"
    assert f"cannot reach the cloud at {address}" in outcome.text


def test_a_verifier_that_was_restarted_does_not_know_the_session() -> None:
    address = f"127.0.0.1:{free_port()}"
    link = VerifierClient(ClientSettings(address, retry_s=0.02))
    clouds = [Cloud(toy_worker(), address=address)]

    def on_emit(emit: Emit) -> None:
        if len(clouds) == 1 and emit.position > 3:
            clouds[0].stop()
            clouds.append(Cloud(toy_worker(), address=address))

    outcome = toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, link.connect, on_emit)
    assert outcome.reason == "unknown_session"
    assert "start the decode again" in outcome.text
    assert outcome.tokens == OWN[: len(outcome.tokens)]
    again = toy_robot().run(REQUEST, settings("dsd", "coupled"), 2, link.connect)
    assert again.tokens == OWN
    link.close()
    clouds[1].stop()


def test_a_robot_of_another_protocol_is_told_to_install_the_same_version(toy: Any) -> None:
    with Talk(toy.address) as robot:
        robot.say(opening(protocol=99))
        fault = robot.hear()
    assert isinstance(fault, Fault)
    assert "protocol 99" in fault.text
    assert "install the same version" in fault.text


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
        robot.say(replace(opening(), **changes))
        assert complaint in robot.hear().text


def test_garbage_and_bad_drafts_leave_the_session_unharmed(toy: Any) -> None:
    with Talk(toy.address) as robot:
        robot.say(opening())
        opened = robot.hear()
        assert isinstance(opened, Opened)
        random = np.random.default_rng(0)
        good = encode_client(DraftMessage(opened.base, Draft(OWN[:3]), 5))
        for _ in range(100):
            mutated = bytearray(good)
            for place in random.integers(0, len(mutated), 2):
                mutated[place] = random.integers(0, 256)
            if mutated[0] != good[0]:  # not by chance another draft for this very prefix
                robot.say(bytes(mutated))
        robot.say(random.bytes(1000))
        for bad in (Draft((99,)), Draft(()), Draft((1, 2), (1, -1)), Draft((1,) * 2000)):
            robot.say(DraftMessage(opened.base, bad, 0))
        robot.say(good)
        heard = robot.hear()
        faults = []
        while not isinstance(heard, Verdict):
            faults.append(heard)
            heard = robot.hear()
        assert len(faults) > 5
        assert all(isinstance(fault, Fault) and fault.text for fault in faults)
        assert (heard.path, heard.token) == ((0, 1, 2), OWN[3])


def test_what_is_said_before_a_session_is_dropped_without_a_fault(toy: Any) -> None:
    """A robot may have sent it before it knew that its stream is a new one."""
    with Talk(toy.address) as robot:
        robot.say(Generate(PrefixDigest(0, 1)))
        robot.say(DraftMessage(PrefixDigest(0, 1), Draft((1,)), 0))
        robot.say(opening())
        assert isinstance(robot.hear(), Opened)


def test_an_open_said_twice_is_one_session(toy: Any) -> None:
    with Talk(toy.address) as first, Talk(toy.address) as second:
        first.say(opening())
        one = first.hear()
        second.say(opening())
        two = second.hear()
        assert (one.session, one.base) == (two.session, two.base)
        second.say(opening(nonce=2))
        assert second.hear().session != one.session


def test_a_full_verifier_says_so_and_has_room_when_a_robot_leaves() -> None:
    with Cloud(toy_worker(WorkerLimits(sessions=1))) as toy, Talk(toy.address) as first:
        first.say(opening())
        assert isinstance(first.hear(), Opened)
        with Talk(toy.address) as second:
            second.say(opening(nonce=2))
            assert second.hear().code == "overloaded"
            first.say(Close())
            first.hear()  # its stream ended
            second.say(opening(nonce=2))
            assert isinstance(second.hear(), Opened)


def test_a_failing_model_is_a_fault_and_the_next_session_is_served(toy: Any) -> None:
    model = toy.worker._pair.target
    original = type(model).logits
    with Talk(toy.address) as robot:
        robot.say(opening())
        base = robot.hear().base
        try:
            type(model).logits = lambda *_: (_ for _ in ()).throw(MemoryError("no room"))
            robot.say(DraftMessage(base, Draft((1,)), 0))
            fault = robot.hear()
        finally:
            type(model).logits = original
    assert fault.code == "internal"
    assert "MemoryError" in fault.text
    link = VerifierClient(ClientSettings(toy.address))
    assert toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, link.connect).tokens == OWN
    link.close()


def test_an_inlet_that_fails_is_not_silent(toy: Any) -> None:
    heard: queue.Queue[Any] = queue.Queue()

    def on_receive(item: Any) -> None:
        heard.put(item)
        if heard.qsize() == 1:
            raise RuntimeError("the robot's own fault")

    link = VerifierClient(ClientSettings(toy.address))
    stream = link.open(on_receive)
    stream.send(encode_client(opening()))
    assert isinstance(decode_server(heard.get(timeout=150)), Opened)
    heard.put(None)  # so that the next is not the first
    items = [heard.get(timeout=150), heard.get(timeout=150)]
    fault = decode_server(next(item for item in items if item))
    assert isinstance(fault, Fault)
    assert "the robot's own fault" in fault.text
    link.close()


def test_a_robot_that_reads_nothing_is_not_read_from_for_ever(toy: Any) -> None:
    """The worker is held; what one stream may queue stays bounded."""
    with Talk(toy.address) as robot:
        robot.say(opening())
        base = robot.hear().base
        held, go = threading.Event(), threading.Event()
        toy.worker._turns.put(Line(), lambda: (held.set(), go.wait(150)))
        held.wait(150)
        for _ in range(200):
            robot.say(DraftMessage(base, Draft((99,)), 0))
        with Talk(toy.address) as other:  # by the time it is through, the flood has come as well
            other.say(opening(nonce=5))
            threading.Event().wait(0.3)
            assert len(toy.worker._turns) < 40
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
    streams = wordy._server._service._outboxes
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
    toy.worker._turns.put(Line(), lambda: (held.set(), go.wait(150)))
    held.wait(150)
    large = replace(opening(), jpeg=bytes(4 * MEGABYTE))
    with Deaf(toy.address) as deaf:
        for _ in range(12):
            deaf.say(large)
        streams = list(toy._server._service._outboxes)
        go.set()
        (stream,) = streams
        assert 8 * MEGABYTE < stream._received[1] < 14 * MEGABYTE


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
        assert len(toy._server._service._outboxes) <= 6
        robot.say(DraftMessage(base, Draft(OWN[:2]), 0))
        assert isinstance(robot.hear(), Verdict)


# Who may come in


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A self-signed certificate for 127.0.0.1, its key, and another one."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("pem")

    def make(name: str) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.timezone.utc)
        day = datetime.timedelta(days=1)
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(here, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        paths = folder / f"{name}.pem", folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(paths[0]), str(paths[1])

    certificate, key = make("verifier")
    return SimpleNamespace(certificate=certificate, key=key, other=make("stranger")[0])


@pytest.fixture
def guarded(pem: Any) -> Iterator[Cloud]:
    with Cloud(toy_worker(), certificate=pem.certificate, key=pem.key, token="secret") as running:
        yield running


def ask(address: str, patience: float = 60.0, **client_settings: Any) -> Outcome:
    link = VerifierClient(ClientSettings(address, **client_settings))
    chosen = replace(settings("dsd", "coupled"), patience=patience)
    outcome = toy_robot().run(REQUEST, chosen, 1, link.connect)
    link.close()
    return outcome


def test_tls_and_the_right_token_let_a_robot_in(guarded: Cloud, pem: Any) -> None:
    assert ask(guarded.address, authority=pem.certificate, token="secret").tokens == OWN


@pytest.mark.parametrize("token", ["", "wrong", "secret2", "SECRET"])
def test_a_wrong_token_is_a_fault_that_says_what_to_do(
    guarded: Cloud, pem: Any, token: str
) -> None:
    outcome = ask(guarded.address, authority=pem.certificate, token=token)
    assert outcome.reason == "unauthenticated"
    assert "give the robot the verifier's token" in outcome.text
    assert outcome.tokens == ()


def test_a_robot_without_tls_or_with_another_authority_does_not_get_in(
    guarded: Cloud, pem: Any
) -> None:
    for authority in ("", pem.other):
        outcome = ask(guarded.address, patience=1.5, authority=authority, token="secret")
        assert outcome.reason == "timeout"
        assert f"cannot reach the cloud at {guarded.address}" in outcome.text


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50151", "robot.example.org:1"]
)
def test_off_loopback_tls_and_a_token_are_required(address: str, pem: Any) -> None:
    for given in ({}, {"token": "x"}, {"certificate": pem.certificate, "key": pem.key}):
        with pytest.raises(UserError, match="give --certificate, --key and --token"):
            ServerSettings(address, **given)
    ServerSettings(address, pem.certificate, pem.key, "secret")
    assert ClientSettings(address).secure


def test_a_certificate_that_cannot_be_used_is_named(pem: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no PEM")
    for certificate, key, complaint in (
        (str(tmp_path / "missing"), pem.key, "missing cannot be read"),
        (pem.certificate, str(tmp_path / "missing"), "missing cannot be read"),
        (str(broken), pem.key, "no PEM pair"),
        (pem.other, pem.key, "no PEM pair"),
    ):
        with pytest.raises(UserError, match=complaint):
            Cloud(toy_worker(), certificate=certificate, key=key)
    with pytest.raises(UserError, match="both --certificate and --key"):
        ServerSettings(certificate=pem.certificate)
    with pytest.raises(UserError, match="is not a file"):
        ClientSettings(authority=str(tmp_path / "missing"))


# Start and end


def test_the_health_service_answers_while_it_serves(toy: Any) -> None:
    with grpc.insecure_channel(toy.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_taken_port_is_a_clear_error(toy: Any) -> None:
    with pytest.raises(UserError, match="the port is taken or the host unknown"):
        Cloud(toy_worker(), address=toy.address)


def test_the_end_leaves_no_thread_and_no_port() -> None:
    before = {thread.name for thread in threading.enumerate()}
    cloud = Cloud(toy_worker())
    talk = Talk(cloud.address)
    talk.say(opening())
    talk.say(Generate(talk.hear().base, speculative=True))  # at work, and its stream stays open
    unreachable = VerifierClient(ClientSettings(f"127.0.0.1:{free_port()}"))
    unreachable.open(lambda item: None)
    cloud.stop()
    host, _, port = cloud.address.rpartition(":")
    socket.create_server((host, int(port))).close()
    talk.link.close()
    talk.link.close()  # twice is once
    unreachable.close()
    after = {thread.name for thread in threading.enumerate()} - before
    assert not after & {"cloud", "model", "link"}


def test_a_closed_stream_leaves_no_task_even_when_the_cloud_never_answered() -> None:
    link = VerifierClient(ClientSettings(f"127.0.0.1:{free_port()}"))
    lost = threading.Event()
    stream = link.open(lambda item: lost.set())
    assert lost.wait(150)
    stream.close()
    gone = threading.Event()

    def look() -> None:
        if link._streams:
            link._loop.call_later(0.01, look)
        else:
            gone.set()

    link.call(look)
    assert gone.wait(150)
    link.close()


SERVE = """
from edge_cloud_spec.harness.toy import toy_worker
from edge_cloud_spec.cloud.server import ServerSettings, serve
serve(toy_worker(), ServerSettings("127.0.0.1:0", grace_s=0.2), lambda a: print(a, flush=True))
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly_in_mid_decode(number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        with Talk(address) as robot:
            robot.say(opening())
            robot.say(Generate(robot.hear().base))
            assert isinstance(robot.hear(), Verdict)
            process.send_signal(number)
            out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0
    assert out == "ended\n"
    assert "Traceback" not in err


def test_a_link_up_comes_after_every_loss(toy: Any) -> None:
    with Proxy(toy.address) as proxy, Talk(proxy.address, retry_s=0.01) as robot:
        robot.say(opening())
        assert isinstance(robot.hear(), Opened)
        for _ in range(3):
            assert proxy.cut() == 1
            assert isinstance(robot.hear(), LinkLost)
            assert isinstance(robot.hear(), LinkUp)


def test_a_link_of_a_long_round_trip_comes_up_at_the_first_try(toy: Any) -> None:
    with (
        closing(DelayingProxy(toy.address, LinkProfile(delay_ms=200.0))) as proxy,
        Talk(proxy.address, retry_s=0.01) as robot,
    ):
        robot.say(opening())
        assert isinstance(robot.hear(), Opened)
