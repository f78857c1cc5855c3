"""A front that lies, or sends robots in circles, and robots that are older than fronts."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers.cloud.grpc_cloud import Cloud, free_port
from helpers.cloud.grpc_robot import OWN, REQUEST, Talk, opening, settings, toy_robot
from helpers.cloud.small_fleet import SmallFleet

from edge_cloud_spec.cloud.fleet.roster import ReplicaLoad
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.probe import CloudState
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.codec import decode_server, encode_server
from edge_cloud_spec.wire.messages import MOVED, Fault, Open


@pytest.fixture
def front() -> Iterator[SmallFleet]:
    with SmallFleet("") as running:
        yield running


def decode(address: str, patience: float = 150.0, **changes: Any) -> Outcome:
    link = VerifierClient(ClientSettings(address, retry_s=0.05, **changes))
    chosen = replace(settings("dsd", "coupled"), patience=patience)
    outcome = toy_robot().run(REQUEST, chosen, 1, link.connect)
    link.close()
    return outcome


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
        robot.say(message)
        assert robot.hear().code == "bad_redirect"
