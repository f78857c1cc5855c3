"""Replicas are killed and drained under robots: every answer is the undisturbed one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers.cloud.grpc_robot import OWN, decode_at, settings
from helpers.cloud.small_fleet import SmallFleet

from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.edge.events import Emit, LinkLost
from edge_cloud_spec.edge.link import route
from edge_cloud_spec.edge.runner import Outcome

# Each preset under each rule loses its verifier in virtual time: test/edge/test_schedule.py.
CASES = [
    ("cloud_ar", "greedy"),
    ("dsd", "greedy"),
    ("cloud_sd", "coupled"),
    ("fsd", "coupled"),
    ("specedge", "coupled"),
    ("auto", "coupled"),
    ("dssd", "rejection"),
    ("tslt", "rejection"),
]
POLICY = SamplingPolicy(0.8, seed=5)


@pytest.fixture(scope="module")
def fleet() -> Iterator[SmallFleet]:
    with SmallFleet() as running:
        yield running


def decode(fleet: SmallFleet, preset: str, rule: str, at: int, disturb: Any) -> Outcome:
    """One decode; ``disturb(replica)`` is called where it is when ``at`` tokens are there."""
    emitted: list[int] = []
    done: list[str] = []
    items: list[Any] = []
    before = fleet.roster.placed.copy()

    def on_emit(emit: Emit) -> None:
        assert emit.position == len(emitted)  # nothing twice, nothing left out
        emitted.extend(emit.tokens)
        if not done and len(emitted) > at and disturb is not None:
            (name,) = fleet.roster.placed - before
            done.append(name)
            disturb(name)

    chosen = settings(preset, rule)
    if rule == "rejection":
        chosen = replace(chosen, policy=POLICY)
    outcome = decode_at(fleet.address, chosen, on_emit=on_emit, on_item=items.append, retry_s=0.02)
    assert outcome.completed, outcome.text
    assert tuple(emitted) == outcome.tokens
    assert bool(done) == (disturb is not None)
    if disturb is not None and disturb == fleet.drain:
        assert not any(isinstance(item, LinkLost) for item in items)
    return outcome


@pytest.mark.parametrize(("preset", "rule"), CASES)
def test_a_replica_killed_in_mid_answer_costs_no_word(
    fleet: SmallFleet, preset: str, rule: str
) -> None:
    undisturbed = decode(fleet, preset, rule, 3, None)
    killed: list[str] = []

    def kill(name: str) -> None:
        killed.append(name)
        fleet.kill(name)  # and the front does not know

    disturbed = decode(fleet, preset, rule, 3, kill)
    fleet.roster.left(killed[0])
    fleet.start(killed[0])
    if rule != "rejection":
        assert disturbed.tokens == undisturbed.tokens
    if rule == "coupled":
        assert disturbed.tokens == OWN


@pytest.mark.parametrize("preset", ["dsd", "cloud_ar"])
def test_a_replica_that_drains_sends_its_robot_on_and_nobody_notices(
    fleet: SmallFleet, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "UNREACHABLE_S", 150.0)  # a loaded machine connects late
    drained: list[str] = []

    def drain(name: str) -> None:
        drained.append(name)
        fleet.drain(name)

    outcome = decode(fleet, preset, "coupled", 3, drain)
    assert outcome.tokens == OWN
    fleet.kill(drained[0], noticed=True)
    fleet.start(drained[0])


def test_robots_wait_while_no_replica_serves(fleet: SmallFleet) -> None:
    """All are killed: the decode goes on when one is started, without a word from anybody."""

    def kill_all(_: str) -> None:
        for name in list(fleet.processes):
            fleet.kill(name, noticed=True)
        threading.Timer(0.3, fleet.start, ["b"]).start()

    outcome = decode(fleet, "dsd", "coupled", 3, kill_all)
    assert outcome.tokens == OWN
    fleet.start("a")
