"""Robots that a front sends to a replica: leases, addresses, and TLS on the way."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud, free_port
from helpers.cloud.grpc_robot import OWN, REQUEST, Talk, decode_at, opening, settings, toy_robot
from helpers.cloud.small_fleet import SmallFleet

from edge_cloud_spec.cloud.fleet.front import LEASE_S
from edge_cloud_spec.cloud.fleet.lease import Lease, lease_problem, new_key, sign
from edge_cloud_spec.cloud.fleet.replica import Replica
from edge_cloud_spec.cloud.fleet.roster import ReplicaLoad
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit, LinkLost
from edge_cloud_spec.edge.probe import CloudState
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.channel import ASK, LEASE, METHOD
from edge_cloud_spec.wire.codec import decode_server, encode_client, encode_server
from edge_cloud_spec.wire.messages import MOVED, Fault, Open, Opened

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


@pytest.fixture
def front() -> Iterator[SmallFleet]:
    with SmallFleet("") as running:
        yield running


decode = partial(decode_at, retry_s=0.05)


@pytest.mark.parametrize("address", ["10.9.8.7:1", "localhost:1", "unix:/tmp/door", "nothing"])
def test_a_robot_does_not_knock_where_its_front_may_not_send_it(
    front: SmallFleet, address: str
) -> None:
    front.roster.reported("a", address, ReplicaLoad())
    outcome = decode(front.address)
    assert outcome.reason == "bad_redirect"
    assert address in outcome.text
    assert not outcome.tokens


def test_fronts_that_send_a_robot_to_each_other_are_asked_a_few_times_a_second(
    front: SmallFleet,
) -> None:
    with SmallFleet("") as other:
        front.roster.reported("a", other.address, ReplicaLoad())
        other.roster.reported("a", front.address, ReplicaLoad())
        begun = time.monotonic()
        outcome = decode(front.address, patience=5.0)
        asked = front.roster.placed["a"] + other.roster.placed["a"]
    assert outcome.reason == "timeout"
    assert "circles" in outcome.text
    assert 4 < asked <= 5 + (time.monotonic() - begun) / 0.05  # ``retry_s`` between two of them


def test_a_verifier_that_took_the_place_of_a_front_is_decoded_with() -> None:
    """The robot knows it as a front, and asks; the verifier lets it decode."""
    address = f"127.0.0.1:{free_port()}"
    link = VerifierClient(ClientSettings(address, retry_s=0.05))
    chosen = settings("dsd", "coupled")
    cloud = Cloud(toy_worker())
    with SmallFleet("", address=address) as first:
        first.roster.reported("a", cloud.address, ReplicaLoad())
        assert toy_robot().run(REQUEST, chosen, 1, link.connect).tokens == OWN
    cloud.stop()
    with Cloud(toy_worker(), address=address):
        assert toy_robot().run(REQUEST, chosen, 2, link.connect).tokens == OWN
    link.close()


def test_a_redirect_survives_the_wire() -> None:
    fault = Fault(MOVED, "update", address="127.0.0.1:1", lease=b"x", lease_s=1.5)
    assert decode_server(encode_server(fault)) == fault


def test_a_front_is_probed_without_placing_anybody(front: SmallFleet) -> None:
    front.roster.reported("a", "127.0.0.1:1", ReplicaLoad())
    found: queue.Queue[CloudState] = queue.Queue()
    link = VerifierClient(ClientSettings(front.address))
    state = None
    while state is None or state.kind == "not_serving":  # until its health says so, too
        link.probe(found.put)
        state = found.get(timeout=100)
    link.close()
    assert state.serves, state
    assert not front.roster.placed


def test_a_robot_that_talks_to_a_front_hears_nothing_but_where_to_go(front: SmallFleet) -> None:
    front.roster.reported("a", "10.9.8.7:1", ReplicaLoad())
    with Talk(front.address) as robot:
        message = opening()
        assert isinstance(message, Open)
        assert robot.ask(message).code == "bad_redirect"


class Secured:
    """A front and two replicas with one certificate, tokens, and robots' certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.stranger = Authority(folder), Authority(folder, "stranger")
        own = self.authority.certificate("fleet")
        tokens = folder / "tokens"
        tokens.write_text("ann:secret-of-ann\nbob:secret-of-bob\n")
        self.access = {**own, "token_file": str(tokens), "client_authority": self.authority.path}
        self.robot = {
            "authority": self.authority.path,
            "token": "secret-of-ann",
            **self.authority.certificate("robot-ann", "ann.example"),
        }
        self.fleet = SmallFleet("", **self.access)
        self.replicas = {name: self.replica(name, **self.access) for name in "ab"}

    def replica(self, name: str, **access: Any) -> Replica:
        made = ServerSettings("127.0.0.1:0", grace_s=0.1, **access)
        return Replica(toy_worker(), made, name, self.fleet.key)

    def only(self, **addresses: tuple[str, float]) -> None:
        """Let the front have these replicas alone, with clocks that far ahead of its own."""
        for name in "abx":
            self.fleet.roster.left(name)
        for name, (address, ahead_s) in addresses.items():
            self.fleet.roster.reported(name, address, ReplicaLoad(), ahead_s)

    def decode(self, patience: float = 150.0, on_emit: Any = lambda _: None, **robot: Any) -> Any:
        self.lost: list[str] = []

        def on_item(item: Any) -> None:
            self.lost.extend([item.reason] if isinstance(item, LinkLost) else [])

        shown = {"retry_s": 0.02, **self.robot, **robot}
        return decode_at(self.fleet.address, "dsd", 1, patience, on_emit, on_item, **shown)

    def lease(self, **robot: Any) -> bytes:
        """What the front gives this robot."""
        shown = {**self.robot, **robot}
        with self._channel(self.fleet.address, shown) as channel:
            metadata = ((ASK, "1"), ("authorization", f"Bearer {shown['token']}"))
            moved = decode_server(next(channel.stream_stream(METHOD)(iter(()), metadata=metadata)))
        assert isinstance(moved, Fault)
        assert moved.code == MOVED
        return moved.lease

    def show(self, lease: bytes, replica: Replica, **robot: Any) -> grpc.StatusCode:
        """What becomes of a stream that shows it, and says nothing."""
        try:
            assert self.hear(lease, replica, **robot) == []
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def hear(self, lease: bytes, replica: Replica, *said: Open, **robot: Any) -> list[Any]:
        """All that is heard on a stream that shows it and says this."""
        shown = {**self.robot, **robot}
        metadata = ((LEASE, lease), ("authorization", f"Bearer {shown['token']}"))
        with self._channel(replica.address, shown) as channel:
            call = channel.stream_stream(METHOD)(map(encode_client, said), metadata=metadata)
            return [decode_server(data) for data in call]

    def _channel(self, address: str, shown: dict[str, str]) -> grpc.Channel:
        credentials = ClientSettings(address, **shown).credentials()
        assert credentials is not None
        return grpc.secure_channel(address, credentials)

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.stop()
        self.fleet.__exit__()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(tmp_path_factory.mktemp("tls"))
    yield running
    running.close()


@pytest.fixture
def at_a(secured: Secured) -> Secured:
    secured.only(a=(secured.replicas["a"].address, 0.0))
    return secured


def test_a_robot_decodes_where_the_front_sends_it(at_a: Secured) -> None:
    assert at_a.decode().tokens == OWN
    assert not at_a.lost


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"token": "nobody's"}, "unauthenticated"),
        ({"token": ""}, "unauthenticated"),
        ({"certificate": "", "key": ""}, "timeout"),
    ],
)
def test_the_front_sends_nobody_on_whom_it_does_not_know(
    at_a: Secured, wrong: dict[str, str], reason: str
) -> None:
    placed = at_a.fleet.roster.placed.total()
    assert at_a.decode(patience=0.5, **wrong).reason == reason
    assert at_a.fleet.roster.placed.total() == placed


@pytest.mark.parametrize(("signer", "host"), [("stranger", "127.0.0.1"), ("own", "10.9.8.7")])
def test_who_is_not_of_the_fleet_gets_no_token(secured: Secured, signer: str, host: str) -> None:
    """It stands where the front sends the robot, and has another certificate than the fleet's."""
    authority = secured.authority if signer == "own" else secured.stranger
    access = {**secured.access, **authority.certificate(f"impostor-{signer}", host)}
    impostor = secured.replica("x", **access)
    secured.only(x=(impostor.address, 0.0))
    patience, placed = 0.5, secured.fleet.roster.placed["x"]
    try:
        while secured.fleet.roster.placed["x"] == placed:
            outcome = secured.decode(patience)
            assert outcome.reason == "timeout"
            assert not outcome.tokens
            patience *= 2  # on a slow machine it was not sent there yet
        assert impostor._service.meter.opened_streams == 0
    finally:
        impostor.stop()


def test_a_lease_is_of_its_certificate_not_of_its_token(at_a: Secured) -> None:
    lease, replica = at_a.lease(), at_a.replicas["a"]
    bob = at_a.authority.certificate("robot-bob", "bob.example")
    assert at_a.show(lease, replica) == grpc.StatusCode.OK
    assert at_a.show(lease, replica) == grpc.StatusCode.OK  # its own robot opens others with it
    assert at_a.show(lease, replica, token="secret-of-bob") == grpc.StatusCode.OK
    assert at_a.show(lease, replica, **bob) == grpc.StatusCode.PERMISSION_DENIED
    assert at_a.show(lease, at_a.replicas["b"]) == grpc.StatusCode.PERMISSION_DENIED
    assert at_a.show(lease, replica, token="nobody's") == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("ahead_s", [-2 * LEASE_S, 2 * LEASE_S])
def test_a_lease_is_good_by_a_clock_that_differs(
    secured: Secured, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = secured.replicas["b"]
    monkeypatch.setattr(replica._service, "_clock", lambda: time.time() + ahead_s)
    secured.only(b=(replica.address, ahead_s))
    assert secured.decode().tokens == OWN
    assert secured.show(secured.lease(), replica) == grpc.StatusCode.OK
    secured.only(b=(replica.address, 0.0))  # a control: where nobody compares the clocks
    refused = secured.show(secured.lease(), replica)
    ahead = ahead_s > 0
    assert refused == (grpc.StatusCode.PERMISSION_DENIED if ahead else grpc.StatusCode.OK)


def test_a_lease_that_has_expired_is_no_good_and_the_front_gives_another(
    at_a: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, old = at_a.replicas["a"], at_a.lease()
    monkeypatch.setattr(replica._service, "_clock", lambda: time.time() + LEASE_S)
    assert at_a.show(old, replica) == grpc.StatusCode.PERMISSION_DENIED
    at_a.only(a=(replica.address, LEASE_S))
    assert at_a.show(at_a.lease(), replica) == grpc.StatusCode.OK


def test_a_replica_that_drains_sends_its_robot_on_over_tls(secured: Secured) -> None:
    """The last one here: that replica is of no use then."""
    a, b = (secured.replicas[name] for name in "ab")
    secured.only(a=(a.address, 0.0))
    said: list[int] = []

    def drain(emit: Emit) -> None:
        if not said:
            secured.only(b=(b.address, 0.0))
            a.drain()
        said.extend(emit.tokens)

    assert secured.decode(on_emit=drain).tokens == OWN
    assert tuple(said) == OWN
    assert not secured.lost
    assert b.report().load.sessions or secured.fleet.roster.placed["b"]
    secured.only(a=(a.address, 0.0))
    (moved,) = secured.hear(secured.lease(), a, opening())  # it opens no session any more
    assert moved.code == MOVED
