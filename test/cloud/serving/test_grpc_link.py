"""The link of a decode breaks, comes back and ends, on either side, and nothing is lost."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
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
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit, LinkLost, LinkUp
from edge_cloud_spec.edge.link import route
from edge_cloud_spec.edge.link import stream as link_stream
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.lab.harness.emulated_link import LinkProfile
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.codec import decode_client, decode_server, encode_client, encode_server
from edge_cloud_spec.wire.messages import Close, Fault, Open, Opened, Prediction, Resume, Verdict

BASE = PrefixDigest(0, 7)
OPENED = encode_server(Opened("s", b"", BASE))
LAST = encode_server(Verdict(BASE, (), 3, "end"))
GOES_ON = encode_server(Verdict(BASE, (), 3))
FAULT = encode_server(Fault("internal", "no more of this"))
LATE = encode_server(Prediction(BASE, (), 3, 0.5))


@pytest.mark.parametrize("preset", SHAPES)
def test_a_stream_killed_again_and_again_is_resumed_where_it_was(toy: Any, preset: str) -> None:
    with Proxy(toy.address) as proxy:
        cuts = []

        def on_emit(emit: Emit) -> None:
            if len(cuts) < 4 and emit.position >= 10 * len(cuts):
                cuts.append(proxy.cut())

        outcome = decode_at(proxy.address, preset, on_emit=on_emit, retry_s=0.01)
    assert outcome.completed, outcome.text
    assert outcome.tokens == OWN
    assert sum(cuts) >= 1
    assert outcome.stats.resumed >= (1 if preset == "dsd" else 0)


def test_a_stranger_with_the_captured_bytes_does_not_end_the_owners_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Open as it went over the wire, and the session's name: before Opened came, and after."""
    monkeypatch.setattr(route, "UNREACHABLE_S", 150.0)  # a loaded machine's is no loss here
    worker = toy_worker()
    receive: Any = worker.receive
    seen: list[bytes] = []

    def tap(stream: Any, data: bytes) -> None:
        seen.append(data)
        receive(stream, data)

    worker.receive = tap  # type: ignore[method-assign]
    codes: list[str] = []
    with Cloud(worker) as toy, contextlib.ExitStack() as stack:
        items: list[Any] = []

        def attack(*messages: Any) -> None:
            thief = stack.enter_context(Talk(toy.address))
            codes.extend(thief.ask(message).code for message in messages)

        def on_emit(emit: Emit) -> None:
            if len(codes) < 9:
                (served,) = [s.session for s in toy.service.streams.streams if s.session]
                name, base = served.verification.session, served.base
                attack(seen[0], Resume(name, PrefixDigest(0, 1)), Resume(name, base))

        outcome = decode_at(toy.address, on_emit=on_emit, on_item=items.append)
    assert outcome.tokens == OWN
    assert codes == ["in_use", "unknown_session", "unknown_session"] * 3
    assert not any(isinstance(item, LinkLost) for item in items)


def test_a_link_cut_before_opened_is_taken_up_by_its_robot_alone() -> None:
    """The first Open arrives, and its answer does not."""
    worker = toy_worker()
    receive: Any = worker.receive
    opens: list[Open] = []

    def tap(stream: Any, data: bytes) -> None:
        if isinstance(message := decode_client(data), Open):
            opens.append(message)
            if len(opens) == 1:
                stream.send_bytes = lambda _: proxy.cut()
        receive(stream, data)

    worker.receive = tap  # type: ignore[method-assign]
    with Cloud(worker) as toy, Proxy(toy.address) as proxy:
        assert decode_at(proxy.address, retry_s=0.01).tokens == OWN
    first, second = opens[:2]
    assert first.key == second.key
    assert len(second.secret) == 16
    assert first.secret in (b"", second.secret)  # a loaded machine's first connection may be late
    assert worker.counters.verdicts > 0


def test_a_verifier_that_starts_later_is_waited_for_and_open_is_said_again() -> None:
    address = f"127.0.0.1:{free_port()}"
    lost: queue.Queue[LinkLost] = queue.Queue()
    outcomes: list[Outcome] = []

    def on_item(item: Any) -> None:
        if isinstance(item, LinkLost):
            lost.put(item)

    def run() -> None:
        outcomes.append(decode_at(address, on_item=on_item, retry_s=0.05))

    robot = threading.Thread(target=run)
    robot.start()
    reason = lost.get(timeout=150).reason
    assert reason.startswith(f"cannot reach the cloud at {address}: ")
    assert reason.endswith("start one there with edge-cloud-spec serve")
    with Cloud(toy_worker(), address=address):
        robot.join(timeout=150)
    assert outcomes[0].tokens == OWN
    assert lost.empty()  # told once


def test_a_verifier_that_never_comes_ends_the_decode_with_the_reason() -> None:
    address = f"127.0.0.1:{free_port()}"
    outcome = decode_at(address, patience=4.0)  # a loaded machine needs a while to be refused
    assert outcome.reason == "timeout"
    assert f"cannot reach the cloud at {address}" in outcome.text


@pytest.mark.parametrize("preset", SHAPES)
def test_a_verifier_that_was_restarted_goes_on_where_the_robot_is(preset: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    clouds = [Cloud(toy_worker(), address=address)]
    emitted: list[int] = []

    def on_emit(emit: Emit) -> None:
        assert emit.position == len(emitted)  # nothing twice, nothing left out
        emitted.extend(emit.tokens)
        if len(clouds) < 3 and emit.position > 3 * len(clouds):
            clouds[-1].stop()
            clouds.append(Cloud(toy_worker(), address=address))

    outcome = decode_at(address, preset, on_emit=on_emit, retry_s=0.02)
    clouds[-1].stop()
    assert outcome.completed, outcome.text
    assert (outcome.tokens, tuple(emitted)) == (OWN, OWN)


def test_an_inlet_that_fails_is_not_silent(toy: Any) -> None:
    heard: queue.Queue[Any] = queue.Queue()

    def on_receive(item: Any) -> None:
        if isinstance(item, LinkUp):  # a loaded machine connects late
            stream.send(encode_client(opening()))
        if not isinstance(item, bytes):
            return
        heard.put(item)
        if isinstance(decode_server(item), Opened):
            raise RuntimeError("the robot's own fault")

    link = VerifierClient(ClientSettings(toy.address))
    stream = link.open(on_receive)
    stream.send(encode_client(opening()))
    assert isinstance(decode_server(heard.get(timeout=150)), Opened)
    fault = decode_server(heard.get(timeout=150))
    assert isinstance(fault, Fault)
    assert "the robot's own fault" in fault.text
    link.close()


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

    link.run_soon(look)
    assert gone.wait(150)
    link.close()


def test_a_link_up_comes_after_every_loss(toy: Any) -> None:
    with Proxy(toy.address) as proxy, Talk(proxy.address, retry_s=0.01) as robot:
        assert isinstance(robot.ask(opening()), Opened)
        for _ in range(3):
            assert proxy.cut() == 1
            assert isinstance(robot.hear(), LinkLost)
            assert isinstance(robot.hear(), LinkUp)


def test_a_link_of_a_long_round_trip_comes_up_at_the_first_try(toy: Any) -> None:
    with (
        Proxy(toy.address, LinkProfile(delay_ms=200.0)) as proxy,
        Talk(proxy.address, retry_s=0.01) as robot,
    ):
        assert isinstance(robot.ask(opening()), Opened)


def cloud_that_ends(answers: tuple[bytes, ...], broken: bool = False) -> Any:
    """It answers an Open with these and ends its side at once, without waiting for a Close."""

    def script(robot: RobotSide) -> Iterator[bytes]:
        robot.hear()
        yield OPENED
        yield from answers
        if broken:
            robot.context.abort(grpc.StatusCode.UNAVAILABLE, "the machine went down")

    return ScriptedCloud(script)


def hear_answers(robot: Talk, count: int) -> list[Any]:
    return [robot.hear() for _ in range(1 + count)]


def ended(robot: Talk) -> bool:
    return not robot.link._streams


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("answers", [(LAST,), (FAULT,), (GOES_ON, LAST), (LAST, LATE)])
def test_an_end_after_the_last_answer_is_no_loss_however_late_the_robot_closes(
    answers: tuple[bytes, ...], broken: bool
) -> None:
    with cloud_that_ends(answers, broken) as cloud, Talk(cloud.address, retry_s=0.01) as robot:
        robot.say(opening())
        hear_answers(robot, len(answers))
        with pytest.raises(queue.Empty):  # longer than it takes to reconnect thirty times
            robot.heard.get(timeout=0.3)
        robot.stream.close(encode_client(Close()))
        until(lambda: ended(robot))
        assert robot.heard.empty()
        assert cloud.streams == 1


def test_an_end_before_the_last_answer_is_a_loss() -> None:
    """The negative control: a verdict that the decode goes on after."""
    with cloud_that_ends((GOES_ON,)) as cloud, Talk(cloud.address, retry_s=0.01) as robot:
        robot.say(opening())
        hear_answers(robot, 1)
        assert robot.hear() == LinkLost("the cloud ended the stream")
        assert isinstance(robot.hear(), LinkUp)


def test_a_robot_that_resumes_after_the_last_answer_gets_a_stream_again() -> None:
    """It took that answer for another draft's."""
    with cloud_that_ends((LAST,)) as cloud, Talk(cloud.address, retry_s=0.01) as robot:
        robot.say(opening())
        hear_answers(robot, 1)
        robot.say(Resume("s", BASE))
        while isinstance(heard := robot.hear(), Opened | Verdict):
            pass  # the first connection was late, so that the robot said all of it again
        assert isinstance(heard, LinkLost)
        assert isinstance(robot.hear(), LinkUp)


def test_a_break_after_the_last_answer_is_told_to_a_robot_that_still_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two answers that were under way the later one came, and the link broke."""
    monkeypatch.setattr(link_stream, "LATE_CLOSE_S", 0.05)
    with cloud_that_ends((LAST,), broken=True) as cloud, Talk(cloud.address, retry_s=0.01) as robot:
        robot.say(opening())
        hear_answers(robot, 1)
        assert robot.hear() == LinkLost("the machine went down")
        assert isinstance(robot.hear(), LinkUp)


@hypothesis_settings(max_examples=25, deadline=None)
@given(
    answers=st.lists(st.sampled_from([GOES_ON, LATE]), max_size=3).map(tuple),
    broken=st.booleans(),
    close_after_ms=st.sampled_from([0, 0, 1, 5, 20]),
    said_too_late=st.lists(st.sampled_from(["draft", "noise"]), max_size=2),
)
def test_whoever_ends_first_in_whatever_order_nothing_is_reported(
    answers: tuple[bytes, ...], broken: bool, close_after_ms: int, said_too_late: list[str]
) -> None:
    with (
        cloud_that_ends((*answers, LAST), broken) as cloud,
        Talk(cloud.address, retry_s=0.01) as robot,
    ):
        robot.say(opening())
        hear_answers(robot, len(answers) + 1)
        for what in said_too_late:  # a draft that was pushed before the verdict was read
            robot.say(b"\x12\x00" if what == "draft" else b"\x99")
        time.sleep(close_after_ms / 1e3)
        robot.stream.close(encode_client(Close()))
        until(lambda: ended(robot))
        assert robot.heard.empty()
