"""Replicas are killed and drained under robots: every answer is the undisturbed one.

A kill is noticed by the end of its connection, at once: the robots here have no keepalive, so that
an end which they missed would leave them waiting.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers.cloud.grpc_robot import OWN, REQUEST, decode_at, settings, toy_robot
from helpers.cloud.small_fleet import SmallFleet

from edge_cloud_spec.cloud.fleet.registry import ReplicaLoad
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.edge import client as client_module
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit, LinkLost
from edge_cloud_spec.edge.link import route
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.wire.channel import CLIENT_OPTIONS
from edge_cloud_spec.wire.frames import server_kind_of
from edge_cloud_spec.wire.messages import DraftMessage

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
STAGES = ("connecting", "opened", "waiting", "between rounds", "draining")
REST, CONTROL = "a", "g"  # goes on with every decode; is stopped, and not killed


@pytest.fixture(scope="module")
def fleet() -> Iterator[SmallFleet]:
    with SmallFleet(REST + "bcdef" + CONTROL) as running:
        yield running


@pytest.fixture
def _no_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    options = tuple(option for option in CLIENT_OPTIONS if "keepalive" not in option[0])
    monkeypatch.setattr(client_module, "CLIENT_OPTIONS", options)


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


@pytest.mark.parametrize(("preset", "rule"), CASES)
def test_a_replica_killed_in_mid_answer_costs_no_word(
    fleet: SmallFleet, preset: str, rule: str
) -> None:
    disturbed, killed, _ = decode(fleet, preset, rule, fleet.kill)  # and the router does not know
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


class Hooked:
    """A transport that calls back after each message."""

    def __init__(self, transport: Any, on_send: Callable[[Any], None]) -> None:
        self._transport, self._on_send = transport, on_send
        self.close = transport.close

    def send(self, message: Any) -> Any:
        sent = self._transport.send(message)
        self._on_send(message)
        return sent


class Victim:
    """The only replica that the router has, until something happens to it, unheard."""

    def __init__(self, fleet: SmallFleet, name: str, stage: str) -> None:
        self.fleet, self.name, self.stage, self.over, self.sent = fleet, name, stage, False, 0
        for other in fleet.addresses:
            fleet.registry.left(other)
        fleet.registry.reported(name, fleet.addresses[name], ReplicaLoad())

    def decode(self, reply_timeout: float = 150.0) -> Outcome:
        link = VerifierClient(ClientSettings(self.fleet.address, retry_s=0.02))

        def connect(on_receive: Any) -> Any:
            def tee(item: Any) -> None:
                self.on_receive(item)
                on_receive(item)

            return Hooked(link.connect(tee), self.on_send)

        chosen = replace(settings("dsd", "coupled"), reply_timeout=reply_timeout)
        try:
            return toy_robot().run(REQUEST, chosen, 1, connect, self.on_emit)
        finally:
            link.close()

    def stop(self) -> None:
        """Its machine accepts connections, and nobody there answers."""
        self.fleet.processes[self.name].signal(signal.SIGSTOP)

    def spare(self) -> None:
        """From now on the router has another one."""
        self.fleet.registry.reported(REST, self.fleet.addresses[REST], ReplicaLoad())

    def kill(self) -> None:
        if not self.over:
            self.over = True
            self.spare()
            self.fleet.kill(self.name)

    def kill_once_placed(self) -> None:
        while not self.fleet.registry.placed[self.name]:
            time.sleep(0.002)
        self.kill()

    # What the robot does

    def on_receive(self, item: Any) -> None:
        if self.stage == "opened" and isinstance(item, bytes) and server_kind_of(item) == "opened":
            self.kill()

    def on_emit(self, _: Emit) -> None:
        if self.stage == "waiting" and not self.over:
            self.stop()
        elif self.stage == "between rounds":
            self.kill()
        elif self.stage == "draining" and not self.over:
            self.fleet.drain(self.name)
            self.kill()

    def on_send(self, message: Any) -> None:
        stopped = self.stage == "waiting" and self.fleet.registry.placed[self.name]
        if stopped and isinstance(message, DraftMessage) and len(message.draft):
            self.sent += 1
            if self.sent > 1:  # the first one is answered, or the robot would not have emitted
                self.kill()


@pytest.mark.usefixtures("_no_keepalive")
@pytest.mark.parametrize(("stage", "name"), list(zip(STAGES, "bcdef", strict=True)))
def test_a_kill_at_this_stage_costs_no_word_and_no_wait(
    fleet: SmallFleet, stage: str, name: str
) -> None:
    fleet.registry.placed.clear()
    victim = Victim(fleet, name, stage)
    if stage == "connecting":
        victim.stop()
        threading.Thread(target=victim.kill_once_placed, daemon=True).start()
    outcome = victim.decode()
    assert victim.over
    assert outcome.tokens == OWN, outcome.text
    assert fleet.registry.placed[REST] > 0


@pytest.mark.usefixtures("_no_keepalive")
def test_a_replica_that_is_stopped_is_not_noticed_like_that(fleet: SmallFleet) -> None:
    """A control: it is the end of the connection that the robots above went by."""
    victim = Victim(fleet, CONTROL, "stopped")
    emitted: list[int] = []
    assert victim.decode().tokens == OWN  # so that its first answer has been slow already

    def stop_once(emit: Emit) -> None:
        if not emitted:
            victim.spare()
            victim.stop()
        emitted.extend(emit.tokens)

    victim.on_emit = stop_once  # type: ignore[method-assign]
    outcome = victim.decode(reply_timeout=8.0)
    fleet.kill(CONTROL)
    assert outcome.reason == "timeout"
    assert len(emitted) < len(OWN)
