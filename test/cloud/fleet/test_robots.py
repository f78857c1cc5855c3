"""Robots that a router sends to a replica: leases, addresses, and TLS on the way; replicas are
killed and drained under robots, and every answer is the undisturbed one."""

from __future__ import annotations

import json
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud, free_port, until
from helpers.cloud.grpc_robot import OWN, REQUEST, decode_at, opening, settings, toy_robot
from helpers.cloud.small_fleet import SmallFleet

from edge_cloud_spec.cloud.fleet.lease import lease_problem, new_key, sign
from edge_cloud_spec.cloud.fleet.registry import ReplicaLoad
from edge_cloud_spec.cloud.fleet.replica import Replica
from edge_cloud_spec.cloud.fleet.router import LEASE_S
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.edge import client as client_module
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.events import Emit, LinkLost
from edge_cloud_spec.edge.link import route
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.health import Health, Level
from edge_cloud_spec.wire.channel import ASK, CLIENT_OPTIONS, LEASE, METHOD
from edge_cloud_spec.wire.codec import decode_server, encode_client, read_server
from edge_cloud_spec.wire.messages import Code, Open
from edge_cloud_spec_lab.harness.toy import toy_worker

KEY = new_key()
GOOD = sign("ann", "a", 100.0, KEY)
FORGED = {
    "its own": (GOOD, ""),
    "none": (b"", "a lease is needed"),
    "another fleet's": (sign("ann", "a", 100.0, new_key()), "not signed by this fleet"),
    "expired": (sign("ann", "a", 99.9, KEY), "has expired"),
    "another replica's": (sign("ann", "b", 100.0, KEY), "for another replica"),
    "another client's": (sign("bob", "a", 100.0, KEY), "to another client"),
    "nobody's": (sign("", "a", 100.0, KEY), "to another client"),
    "prolonged": (GOOD[:32] + json.dumps(["ann", "a", 101.0]).encode(), "not signed"),
    "cut": (GOOD[:-1], "not signed"),
    "the tag alone": (GOOD[:32], "not signed"),
    "not JSON": (GOOD[:32] + b"\xff", "not signed"),
    "a bit": (bytes([GOOD[0] ^ 1]) + GOOD[1:], "not signed"),
}


@pytest.mark.parametrize(("shown", "why"), FORGED.values(), ids=FORGED)
def test_no_lease_but_its_own_opens_a_clients_stream(shown: bytes, why: str) -> None:
    assert why in lease_problem(shown, KEY, "ann", "a", 99.9)
    assert bool(why) == bool(lease_problem(shown, KEY, "ann", "a", 99.9))


@pytest.fixture
def router() -> Iterator[SmallFleet]:
    with SmallFleet("") as running:
        yield running


decode = partial(decode_at, retry_s=0.05)


def test_a_robot_does_not_knock_where_its_router_may_not_send_it(router: SmallFleet) -> None:
    router.registry.reported("a", "10.9.8.7:1", ReplicaLoad())
    outcome = decode(router.address)
    assert outcome.reason == "bad_redirect"
    assert "10.9.8.7:1" in outcome.text
    assert not outcome.tokens


def test_routers_that_send_a_robot_to_each_other_are_asked_a_few_times_a_second(
    router: SmallFleet,
) -> None:
    with SmallFleet("") as other:
        router.registry.reported("a", other.address, ReplicaLoad())
        other.registry.reported("a", router.address, ReplicaLoad())
        begun = time.monotonic()
        outcome = decode(router.address, reply_timeout=2.0)
        asked = router.registry.placed["a"] + other.registry.placed["a"]
    assert outcome.reason == "timeout"
    assert "circles" in outcome.text
    assert 4 < asked <= 5 + (time.monotonic() - begun) / 0.05  # ``retry_s`` between two of them


def test_a_verifier_that_took_the_place_of_a_router_is_decoded_with() -> None:
    """The robot knows it as a router, and asks; the verifier lets it decode."""
    address, chosen = f"127.0.0.1:{free_port()}", settings("dsd", "coupled")
    with closing(VerifierClient(ClientSettings(address, retry_s=0.05))) as link:
        with Cloud(toy_worker()) as cloud, SmallFleet("", address=address) as first:
            first.registry.reported("a", cloud.address, ReplicaLoad())
            assert toy_robot().run(REQUEST, chosen, 1, link.connect).tokens == OWN
        with Cloud(toy_worker(), address=address):
            assert toy_robot().run(REQUEST, chosen, 2, link.connect).tokens == OWN


def test_a_router_is_probed_without_placing_anybody(router: SmallFleet) -> None:
    router.registry.reported("a", "127.0.0.1:1", ReplicaLoad())
    found: queue.Queue[Health] = queue.Queue()
    with closing(VerifierClient(ClientSettings(router.address))) as link:
        link.probe(found.put)
        while (state := found.get(timeout=100)).check == "not_serving":
            link.probe(found.put)  # until its health says so, too
    assert state.level == Level.OK, state
    assert not router.registry.placed


class Secured:
    """A router and two replicas with one certificate, tokens, and robots' certificates."""

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
        """Let the router have these replicas alone, with clocks that far ahead of its own."""
        for name in "abx":
            self.fleet.registry.left(name)
        for name, (address, ahead_s) in addresses.items():
            self.fleet.registry.reported(name, address, ReplicaLoad(), ahead_s)

    def decode(self, reply_timeout: float = 150.0, **robot: Any) -> Any:
        shown = {"retry_s": 0.02, **self.robot, **robot}
        return decode_at(self.fleet.address, "dsd", 1, reply_timeout, **shown)

    def lease(self, **robot: Any) -> bytes:
        """What the router gives this robot."""
        (moved,) = self.hear(self.fleet.address, (ASK, "1"), **robot)
        assert moved.code == Code.MOVED
        return bytes(moved.lease)

    def show(self, lease: bytes, replica: Replica, **robot: Any) -> grpc.StatusCode:
        """What becomes of a stream that shows it, and says nothing."""
        try:
            assert self.hear(replica.address, (LEASE, lease), **robot) == []
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def hear(self, address: str, shown: tuple[str, Any], *said: Open, **robot: Any) -> list[Any]:
        """All that is heard on a stream that shows this and says this."""
        settings = ClientSettings(address, **{**self.robot, **robot})
        metadata = (shown, ("authorization", f"Bearer {settings.token}"))
        with grpc.secure_channel(address, settings.credentials()) as channel:
            call = channel.stream_stream(METHOD)(
                (encode_client(each).data for each in said), metadata=metadata
            )
            return [decode_server(read_server(data)) for data in call]

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


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"token": "nobody's"}, "unauthenticated"),
        ({"token": ""}, "unauthenticated"),
        ({"certificate": "", "key": ""}, "tls"),
    ],
)
def test_the_router_sends_nobody_on_whom_it_does_not_know(
    at_a: Secured, wrong: dict[str, str], reason: str
) -> None:
    placed = at_a.fleet.registry.placed.total()
    assert at_a.decode(reply_timeout=60.0, **wrong).reason == reason
    assert at_a.fleet.registry.placed.total() == placed


@pytest.mark.parametrize(("signer", "host"), [("stranger", "127.0.0.1"), ("own", "10.9.8.7")])
def test_who_is_not_of_the_fleet_gets_no_token(secured: Secured, signer: str, host: str) -> None:
    """It stands where the router sends the robot, and has another certificate than the fleet's."""
    authority = secured.authority if signer == "own" else secured.stranger
    access = {**secured.access, **authority.certificate(f"impostor-{signer}", host)}
    impostor = secured.replica("x", **access)
    secured.only(x=(impostor.address, 0.0))
    reply_timeout, placed = 0.5, secured.fleet.registry.placed["x"]
    try:
        while secured.fleet.registry.placed["x"] == placed:
            outcome = secured.decode(reply_timeout)
            assert outcome.reason == "timeout"
            assert not outcome.tokens
            reply_timeout *= 2  # on a slow machine it was not sent there yet
        assert impostor._service.meter.opened_streams == 0
    finally:
        impostor.stop()


def test_a_lease_is_of_its_certificate_not_of_its_token(at_a: Secured) -> None:
    lease, (a, b) = at_a.lease(), at_a.replicas.values()
    bob = at_a.authority.certificate("robot-bob", "bob.example")
    for shown, replica, robot, code in (
        (lease, a, {}, grpc.StatusCode.OK),
        (lease, a, {}, grpc.StatusCode.OK),  # its own robot opens others with it
        (lease, a, {"token": "secret-of-bob"}, grpc.StatusCode.OK),
        (lease, a, bob, grpc.StatusCode.PERMISSION_DENIED),
        (lease, b, {}, grpc.StatusCode.PERMISSION_DENIED),
        (b"", a, {}, grpc.StatusCode.PERMISSION_DENIED),
        (lease, a, {"token": "nobody's"}, grpc.StatusCode.UNAUTHENTICATED),
    ):
        assert at_a.show(shown, replica, **robot) == code


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


def test_a_replica_that_drains_opens_no_session_any_more(secured: Secured) -> None:
    """The last one here: that replica is of no use then."""
    replica = secured.replicas["a"]
    secured.only(a=(replica.address, 0.0))
    replica.drain()
    (moved,) = secured.hear(replica.address, (LEASE, secured.lease()), opening())
    assert moved.code == Code.MOVED


# A kill is noticed by the end of its connection, at once: the robots here have no keepalive, so
# that an end which they missed would leave them waiting.


def kill_in_mid_round(fleet: SmallFleet, name: str) -> None:
    """Its machine hears the next draft, and answers nothing any more."""
    fleet.processes[name].signal(signal.SIGSTOP)
    threading.Timer(0.3, fleet.kill, [name]).start()


def kill_as_it_drains(fleet: SmallFleet, name: str) -> None:
    fleet.drain(name)
    fleet.kill(name)


# Each preset under each rule loses its verifier in virtual time: test/edge/test_schedule.py.
CASES = [
    ("cloud_ar", "greedy", SmallFleet.kill),
    ("auto", "coupled", SmallFleet.kill),
    ("tslt", "rejection", SmallFleet.kill),
    ("dsd", "coupled", kill_in_mid_round),
    ("dsd", "coupled", kill_as_it_drains),
]


@pytest.fixture(scope="module")
def fleet() -> Iterator[SmallFleet]:
    options = tuple(option for option in CLIENT_OPTIONS if "keepalive" not in option[0])
    with pytest.MonkeyPatch.context() as patched, SmallFleet("abc") as running:
        patched.setattr(client_module, "CLIENT_OPTIONS", options)
        yield running


def decode_beside(
    fleet: SmallFleet, preset: str, rule: str, disturb: Callable[[str], object] | None
) -> tuple[Outcome, str, list[LinkLost]]:
    """One decode, the replica that was disturbed after some tokens, and the losses of its link."""
    emitted: list[int] = []
    items: list[Any] = []
    done: list[str] = []
    before = fleet.registry.placed.copy()

    def on_emit(emit: Emit) -> None:
        assert emit.position == len(emitted)  # nothing twice, nothing left out
        emitted.extend(emit.tokens)
        if not done and len(emitted) > 3 and disturb is not None:
            done.extend(fleet.registry.placed - before)
            disturb(done[0])

    chosen = settings(preset, rule)
    outcome = decode_at(fleet.address, chosen, on_emit=on_emit, on_item=items.append, retry_s=0.02)
    assert outcome.completed, outcome.text
    assert tuple(emitted) == outcome.tokens
    (name,) = done or [""]
    return outcome, name, [item for item in items if isinstance(item, LinkLost)]


@pytest.mark.parametrize(("preset", "rule", "kill"), CASES)
def test_a_replica_killed_in_mid_answer_costs_no_word(
    fleet: SmallFleet, preset: str, rule: str, kill: Callable[[SmallFleet, str], None]
) -> None:
    """And the router does not know."""
    disturbed, killed, _ = decode_beside(fleet, preset, rule, partial(kill, fleet))
    fleet.registry.left(killed)
    fleet.start(killed)
    if rule == "coupled":
        assert disturbed.tokens == OWN
    elif rule == "greedy":
        assert disturbed.tokens == decode_beside(fleet, preset, rule, None)[0].tokens


@pytest.mark.parametrize("preset", ["dsd", "cloud_ar"])
def test_a_replica_that_drains_sends_its_robot_on_and_nobody_notices(
    fleet: SmallFleet, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "UNREACHABLE_S", 150.0)  # a loaded machine connects late
    outcome, drained, lost = decode_beside(fleet, preset, "coupled", fleet.drain)
    assert (outcome.tokens, lost) == (OWN, [])
    fleet.kill(drained, noticed=True)
    fleet.start(drained)


def test_robots_wait_while_no_replica_serves(fleet: SmallFleet) -> None:
    """All are killed: the decode goes on when one is started, without a word from anybody."""

    def kill_all(_: str) -> None:
        for name in fleet.processes:
            fleet.kill(name, noticed=True)
        threading.Timer(0.3, fleet.start, ["b"]).start()

    assert decode_beside(fleet, "dsd", "coupled", kill_all)[0].tokens == OWN
    for name in set(fleet.processes) - {"b"}:
        fleet.start(name)


def test_a_replica_killed_while_a_robot_connects_costs_no_word(fleet: SmallFleet) -> None:
    for other in "bc":
        fleet.registry.left(other)
    fleet.processes["a"].signal(signal.SIGSTOP)
    placed = fleet.registry.placed["a"]

    def kill_once_placed() -> None:
        until(lambda: fleet.registry.placed["a"] > placed)
        fleet.registry.reported("b", fleet.addresses["b"], ReplicaLoad())
        fleet.kill("a")

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_once_placed)
        assert decode_beside(fleet, "dsd", "coupled", None)[0].tokens == OWN
        killing.result(0)
