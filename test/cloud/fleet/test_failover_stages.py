"""A replica killed at each stage of a decode is noticed by the end of its connection, at once.

The robots here have no keepalive, so that an end which they missed would leave them waiting.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers.cloud.grpc_robot import OWN, REQUEST, settings, toy_robot
from helpers.cloud.small_fleet import SmallFleet

from edge_cloud_spec.cloud.fleet.roster import ReplicaLoad
from edge_cloud_spec.edge import client as client_module
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.wire.channel import CLIENT_OPTIONS
from edge_cloud_spec.wire.frames import server_kind_of
from edge_cloud_spec.wire.messages import DraftMessage

STAGES = ("connecting", "opened", "waiting", "between rounds", "draining")
REST, CONTROL = "a", "g"  # goes on with every decode; is stopped, and not killed


@pytest.fixture(scope="module")
def fleet() -> Iterator[SmallFleet]:
    with SmallFleet(REST + "bcdef" + CONTROL) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    options = tuple(option for option in CLIENT_OPTIONS if "keepalive" not in option[0])
    monkeypatch.setattr(client_module, "CLIENT_OPTIONS", options)


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
    """The only replica that the front has, until something happens to it; that it does not hear."""

    def __init__(self, fleet: SmallFleet, name: str, stage: str) -> None:
        self.fleet, self.name, self.stage, self.over, self.sent = fleet, name, stage, False, 0
        for other in fleet.addresses:
            fleet.roster.left(other)
        fleet.roster.reported(name, fleet.addresses[name], ReplicaLoad())

    def stop(self) -> None:
        self.fleet.processes[self.name].signal(signal.SIGSTOP)

    def kill(self) -> None:
        if not self.over:
            self.over = True
            self.fleet.roster.reported(REST, self.fleet.addresses[REST], ReplicaLoad())
            self.fleet.kill(self.name)

    def kill_once_placed(self) -> None:
        while not self.fleet.roster.placed[self.name]:
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
        stopped = self.stage == "waiting" and self.fleet.roster.placed[self.name]
        if stopped and isinstance(message, DraftMessage) and len(message.draft):
            self.sent += 1
            if self.sent > 1:  # the first one is answered, or the robot would not have emitted
                self.kill()


def decode(victim: Victim, patience: float = 150.0) -> Outcome:
    link = VerifierClient(ClientSettings(victim.fleet.address, retry_s=0.02))

    def connect(on_receive: Any) -> Any:
        def tee(item: Any) -> None:
            victim.on_receive(item)
            on_receive(item)

        return Hooked(link.connect(tee), victim.on_send)

    chosen = replace(settings("dsd", "coupled"), patience=patience)
    try:
        return toy_robot().run(REQUEST, chosen, 1, connect, victim.on_emit)
    finally:
        link.close()


@pytest.mark.parametrize(("stage", "name"), list(zip(STAGES, "bcdef", strict=True)))
def test_a_kill_at_this_stage_costs_no_word_and_no_wait(
    fleet: SmallFleet, stage: str, name: str
) -> None:
    victim = Victim(fleet, name, stage)
    if stage == "connecting":
        victim.stop()  # its machine accepts the connection, and nobody there answers
        threading.Thread(target=victim.kill_once_placed, daemon=True).start()
    outcome = decode(victim)
    assert victim.over
    assert outcome.tokens == OWN, outcome.text
    assert fleet.roster.placed[REST] > 0


def test_a_replica_that_is_stopped_is_not_noticed_like_that(fleet: SmallFleet) -> None:
    """A control: it is the end of the connection that the robots above went by."""
    victim = Victim(fleet, CONTROL, "stopped")
    emitted: list[int] = []
    assert decode(victim).tokens == OWN  # so that its first answer has been slow already

    def stop_once(emit: Emit) -> None:
        if not emitted:
            fleet.roster.reported(REST, fleet.addresses[REST], ReplicaLoad())
            victim.stop()
        emitted.extend(emit.tokens)

    victim.on_emit = stop_once  # type: ignore[method-assign]
    outcome = decode(victim, patience=8.0)
    fleet.kill(CONTROL)
    assert outcome.reason == "timeout"
    assert len(emitted) < len(OWN)
