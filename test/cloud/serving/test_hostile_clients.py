"""Attacks below gRPC do what they are named for, and an honest robot is served beside them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import OWN, REQUEST, opening, settings, toy_robot
from helpers.cloud.hostile_clients import ATTACKS, attacking, call_beginning, data_frames

from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.codec import decode_client, encode_client
from edge_cloud_spec.wire.messages import Open


@pytest.mark.parametrize("name", ATTACKS)
def test_an_honest_robot_is_served_beside_it(name: str) -> None:
    with Cloud(toy_worker()) as toy, attacking(name, toy.address, REQUEST, 2):
        link = VerifierClient(ClientSettings(toy.address))
        outcomes = [
            toy_robot().run(REQUEST, settings("dsd", "coupled"), nonce, link.connect)
            for nonce in range(5)
        ]
        link.close()
        assert [outcome.tokens for outcome in outcomes] == [OWN] * 5


def test_frames_written_by_hand_are_a_request_that_a_verifier_takes() -> None:
    """Or the attacks below gRPC would be refused before they begin."""
    received: list[Any] = []
    worker = toy_worker()
    worker.receive = lambda stream, data: received.append(decode_client(data))  # type: ignore
    with Cloud(worker) as toy:
        asyncio.run(_send_whole(toy.address, received))
    (message,) = received
    assert isinstance(message, Open) and message.jpeg == bytes(40_000)


async def _send_whole(address: str, received: list[Any]) -> None:
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    message = opening(jpeg=bytes(40_000))  # more than one frame
    writer.write(call_beginning() + data_frames(encode_client(message)))
    await writer.drain()
    for _ in range(15_000):
        if received:
            break
        await asyncio.sleep(0.01)
    writer.close()


def test_half_a_request_never_reaches_the_worker() -> None:
    received: list[bytes] = []
    worker = toy_worker()
    worker.receive = lambda stream, data: received.append(data)  # type: ignore
    with Cloud(worker) as toy, attacking("vanishes", toy.address, REQUEST, 20):
        pass
    assert not received
