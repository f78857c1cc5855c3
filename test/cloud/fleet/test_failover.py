"""Replicas are killed and drained under robots: every answer is the undisturbed one.

A kill is noticed by the end of its connection, at once: the robots here have no keepalive, so that
an end which they missed would leave them waiting.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from helpers.cloud.grpc_cloud import until
from helpers.cloud.grpc_robot import OWN, decode_at, settings
from helpers.cloud.small_fleet import SmallFleet

from edge_cloud_spec.cloud.fleet.registry import ReplicaLoad
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.edge import client as client_module
from edge_cloud_spec.edge.events import Emit, LinkLost
from edge_cloud_spec.edge.link import route
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.wire.channel import CLIENT_OPTIONS


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


def decode(
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
    if rule == "rejection":
        chosen = replace(chosen, policy=SamplingPolicy(0.8, seed=5))
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
    disturbed, killed, _ = decode(fleet, preset, rule, partial(kill, fleet))
    fleet.registry.left(killed)
    fleet.start(killed)
    if rule == "coupled":
        assert disturbed.tokens == OWN
    elif rule == "greedy":
        assert disturbed.tokens == decode(fleet, preset, rule, None)[0].tokens


@pytest.mark.parametrize("preset", ["dsd", "cloud_ar"])
def test_a_replica_that_drains_sends_its_robot_on_and_nobody_notices(
    fleet: SmallFleet, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "UNREACHABLE_S", 150.0)  # a loaded machine connects late
    outcome, drained, lost = decode(fleet, preset, "coupled", fleet.drain)
    assert (outcome.tokens, lost) == (OWN, [])
    fleet.kill(drained, noticed=True)
    fleet.start(drained)


def test_robots_wait_while_no_replica_serves(fleet: SmallFleet) -> None:
    """All are killed: the decode goes on when one is started, without a word from anybody."""

    def kill_all(_: str) -> None:
        for name in fleet.processes:
            fleet.kill(name, noticed=True)
        threading.Timer(0.3, fleet.start, ["b"]).start()

    assert decode(fleet, "dsd", "coupled", kill_all)[0].tokens == OWN
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
        assert decode(fleet, "dsd", "coupled", None)[0].tokens == OWN
        killing.result(0)
