"""The proxy of messages: what passes it unchanged, and what it does to messages when told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import grpc
import pytest
from helpers.cloud.scripted_cloud import RobotSide, ScriptedCloud

from edge_cloud_spec.wire.channel import METHOD
from edge_cloud_spec_lab.harness.proxy import MessageFaults, MessageProxy

SENT = [bytes([n]) * 8 for n in range(40)]


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends every message back; it wants a token."""

    def script(robot: RobotSide) -> Iterator[bytes]:
        if dict(robot.context.invocation_metadata()).get("authorization") != "Bearer t":
            robot.context.abort(grpc.StatusCode.UNAUTHENTICATED, "who is it?")
        yield from robot.requests

    with ScriptedCloud(script) as cloud:
        yield cloud.address


def received(
    address: str, faults: MessageFaults, token: str = "t", sent: list[bytes] = SENT
) -> list[bytes]:
    with (
        closing(MessageProxy(address, faults, seed=1)) as proxy,
        grpc.insecure_channel(proxy.address) as channel,
    ):
        call = channel.stream_stream(METHOD)
        metadata = (("authorization", f"Bearer {token}"),)
        return list(call(iter(sent), metadata=metadata, timeout=30))


def test_statuses_pass_too(echo: str) -> None:
    with pytest.raises(grpc.RpcError, match="who is it"):
        # Nothing is sent: gRPC makes INTERNAL of a refusal that a write crosses on its way.
        received(echo, MessageFaults(), token="x", sent=[])


def test_each_fault_changes_messages_as_it_says(echo: str) -> None:
    assert received(echo, MessageFaults()) == SENT
    lost = received(echo, MessageFaults(lost=0.4))
    assert 0 < len(lost) < len(SENT) and lost == [m for m in SENT if m in lost]
    repeated = received(echo, MessageFaults(repeated=0.4))
    assert len(repeated) > len(SENT) and set(repeated) == set(SENT)
    reordered = received(echo, MessageFaults(reordered=0.4))
    assert reordered != SENT and sorted(reordered) == SENT
    corrupted = received(echo, MessageFaults(corrupted=0.4))
    assert corrupted != SENT and [len(m) for m in corrupted] == [8] * len(SENT)
    truncated = received(echo, MessageFaults(truncated=0.4))
    assert len(truncated) == len(SENT) and min(map(len, truncated)) < 8
