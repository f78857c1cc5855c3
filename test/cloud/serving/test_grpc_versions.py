"""A robot older or newer than its cloud: both work, or the user is told which side to update."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from helpers.cloud import scripted_cloud
from helpers.cloud.grpc_robot import OWN, REQUEST, Talk, decode_at, opening, settings, toy_robot
from helpers.cloud.scripted_cloud import RobotSide, ScriptedCloud

from edge_cloud_spec.cloud.serving import service
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.wire.channel import EARLIER_SERVICE
from edge_cloud_spec.wire.codec import decode_client, encode_server
from edge_cloud_spec.wire.messages import (
    PROTOCOL,
    Fault,
    Generate,
    Opened,
    Verdict,
)

UNKNOWN_FIELD = b"\xf2\x07\x05later"  # field 126, with five bytes
LATER_KIND = b"\x09" + bytes(30)  # kind 9


decode = partial(decode_at, retry_s=0.01)


def tap(cloud: Any, behind: bytes) -> None:
    """Have each message, of either side, followed by these bytes."""
    receive: Any = cloud.worker.receive

    def tapped(stream: Any, data: bytes) -> None:
        if not getattr(stream, "tapped", False):
            send, stream.tapped = stream.send_bytes, True
            stream.send_bytes = lambda out: send(None if out is None else out + behind)
        receive(stream, data + behind)

    cloud.worker.receive = tapped


def answer_to(cloud: Any, **changes: Any) -> Any:
    with Talk(cloud.address) as robot:
        return robot.ask(opening(**changes))


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
    fault = answer_to(toy, protocol=newest, oldest_protocol=oldest)
    assert isinstance(fault, Fault)
    assert fault.text == (
        f"the robot speaks protocol {newest} and the cloud protocol {PROTOCOL}; "
        f"update edge_cloud_spec on the {side}"
    )


def test_a_newer_robot_that_speaks_the_clouds_protocol_too_is_served_in_it(toy: Any) -> None:
    opened = answer_to(toy, protocol=PROTOCOL + 1, oldest_protocol=PROTOCOL)
    assert isinstance(opened, Opened)
    assert opened.protocol == PROTOCOL


@pytest.mark.parametrize(("protocol", "side"), [(PROTOCOL + 1, "robot"), (1, "cloud")])
def test_a_cloud_that_answers_in_another_protocol_ends_the_decode(protocol: int, side: str) -> None:
    """A cloud that did not look at what the robot speaks."""

    def script(robot: RobotSide) -> Iterator[bytes]:
        robot.hear()
        yield encode_server(Opened("s", b"", PrefixDigest(0, 1), protocol))
        robot.hear()

    with ScriptedCloud(script) as cloud:
        outcome = decode(cloud.address)
    assert outcome.reason == "bad_opened"
    assert outcome.text == (
        f"the robot speaks protocol {PROTOCOL} and the cloud protocol {protocol}; "
        f"update edge_cloud_spec on the {side}"
    )


def test_fields_of_a_later_protocol_are_skipped_on_both_sides(toy: Any) -> None:
    """Robot and cloud both say more than the other knows, in every message."""
    tap(toy, UNKNOWN_FIELD)
    outcome = decode(toy.address)
    assert outcome.tokens == OWN
    assert outcome.stats.stale == 0


def test_a_kind_that_the_cloud_does_not_know_is_a_fault_and_the_session_goes_on(toy: Any) -> None:
    with Talk(toy.address) as robot:
        opened = robot.ask(opening())
        fault = robot.ask(LATER_KIND)
        assert (fault.code, "kind 9 " in fault.text) == ("bad_request", True)
        assert fault.text.endswith("update edge_cloud_spec on the cloud")
        assert isinstance(robot.ask(Generate(opened.base)), Verdict)


def test_a_kind_that_the_robot_does_not_know_is_skipped_and_counted() -> None:
    """Between two verdicts; and the frames stay what they are when they are read again."""

    def script(robot: RobotSide) -> Iterator[bytes]:
        robot.hear()
        base = PrefixDigest(0, 1)
        yield encode_server(Opened("s", b"", base))
        yield LATER_KIND
        assert isinstance(decode_client(robot.hear()), Generate)
        yield LATER_KIND
        yield encode_server(Verdict(base, (), 3, "end", leads_to=base.extend((3,)).short))
        while robot.hear():
            pass

    with ScriptedCloud(script) as cloud:
        outcome = decode(cloud.address, "cloud_ar")
    assert (outcome.reason, outcome.tokens, outcome.stats.stale) == ("end", (3,), 2)


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
        outcome = decode(cloud.address)
    assert outcome.reason == "not_a_verifier"
    assert outcome.text.endswith("or update edge_cloud_spec on the cloud")


@pytest.mark.parametrize("echoes", [True, False])
def test_the_clouds_clock_is_measured_on_the_messages_of_decodes(
    toy: Any, echoes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cloud's clock runs an hour ahead; an older cloud, which echoes nothing, gives none."""
    ahead = 3600 * 10**9
    clock = SimpleNamespace(time_ns=lambda: time.time_ns() + ahead, monotonic=time.monotonic)
    monkeypatch.setattr(service, "time", clock)
    if not echoes:
        monkeypatch.setattr(service, "sent_of", lambda data: 0)
    with closing(VerifierClient(ClientSettings(toy.address))) as link:
        assert toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, link.connect).tokens == OWN
        offset = link.clock_offset
    assert (offset is not None) == echoes
    assert not offset or abs(offset.offset_s - 3600) <= offset.uncertainty_s < 1800
