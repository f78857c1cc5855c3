"""A replica admits whom the front sent there, and nobody who forged, kept or copied a lease."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import grpc
import pytest
from helpers.cloud.grpc_robot import opening

from edge_cloud_spec.cloud.fleet.lease import Lease, lease_problem, new_key, sign
from edge_cloud_spec.cloud.fleet.replica import Replica
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.channel import LEASE, METHOD
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.messages import Opened

KEY = new_key()
FAR = 4e9  # Unix time, s
GOOD = sign(Lease("ann", "a", FAR), KEY)
FORGED = {
    "none": b"",
    "another fleet's": sign(Lease("ann", "a", FAR), new_key()),
    "expired": sign(Lease("ann", "a", 1.0), KEY),
    "another replica's": sign(Lease("ann", "b", FAR), KEY),
    "another client's": sign(Lease("bob", "a", FAR), KEY),
    "nobody's": sign(Lease("", "a", FAR), KEY),
    "prolonged": GOOD[:32] + json.dumps(["ann", "a", FAR + 1]).encode(),
    "cut": GOOD[:-1],
    "the tag alone": GOOD[:32],
    "not JSON": GOOD[:32] + b"\xff",
    "a bit": bytes([GOOD[0] ^ 1]) + GOOD[1:],
}


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    tokens = tmp_path_factory.mktemp("fleet") / "tokens"
    tokens.write_text("ann:secret-of-ann\nbob:secret-of-bob\n")
    settings = ServerSettings("127.0.0.1:0", token_file=str(tokens), grace_s=0.1)
    running = Replica(toy_worker(), settings, "a", KEY)
    yield running
    running.stop()


def try_to_open(replica: Replica, lease: bytes, token: str) -> object:
    metadata = (("authorization", f"Bearer {token}"), *([(LEASE, lease)] if lease else []))
    heard = threading.Event()

    def say() -> Iterator[bytes]:
        yield encode_client(opening())
        heard.wait(100)

    with grpc.insecure_channel(replica.address) as channel:
        call = channel.stream_stream(METHOD)(say(), metadata=metadata)
        try:
            return decode_server(next(call))
        except grpc.RpcError as error:
            return error.code()
        finally:
            heard.set()
            call.cancel()


def test_its_client_opens_a_session_with_it(replica: Replica) -> None:
    assert isinstance(try_to_open(replica, GOOD, "secret-of-ann"), Opened)


@pytest.mark.parametrize("shown", list(FORGED))
def test_no_other_lease_opens_one(replica: Replica, shown: str) -> None:
    refused = try_to_open(replica, FORGED[shown], "secret-of-ann")
    assert refused == grpc.StatusCode.PERMISSION_DENIED


def test_a_lease_that_was_copied_is_of_no_use_to_another_client(replica: Replica) -> None:
    assert try_to_open(replica, GOOD, "secret-of-bob") == grpc.StatusCode.PERMISSION_DENIED
    assert try_to_open(replica, GOOD, "nobody's") == grpc.StatusCode.UNAUTHENTICATED


def test_it_is_good_to_the_last_moment_and_not_at_its_end() -> None:
    lease = sign(Lease("ann", "a", 100.0), KEY)
    assert lease_problem(lease, KEY, "ann", "a", 99.9) == ""
    assert "expired" in lease_problem(lease, KEY, "ann", "a", 100.0)
