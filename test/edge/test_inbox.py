"""A robot that is sent more than it can use: bounded memory, and a deadline that holds."""

from __future__ import annotations

from queue import Empty
from typing import Any

import pytest
from helpers.cloud.grpc_robot import REQUEST
from helpers.edge_decoder import BASE, OPENED, verdict

from edge_cloud_spec.edge.events import (
    FLOODED,
    LEAST_BYTES,
    MAX_WAITING,
    Abort,
    Inbox,
    Item,
)
from edge_cloud_spec.edge.runner import DecodeRunner, DecodeSettings, Outcome
from edge_cloud_spec.lab.harness.toy import ToyVlm, spec_of
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.codec import decode_server, encode_server
from edge_cloud_spec.wire.messages import ClientMessage


@pytest.mark.parametrize("size", [1, LEAST_BYTES, MAX_WAITING // 4])
def test_a_flood_is_one_fault_and_the_robots_own_orders_come_after_it(size: int) -> None:
    inbox, most = Inbox(), MAX_WAITING // max(size, LEAST_BYTES)
    for _ in range(most + 10):
        inbox.put(bytes(size))
    inbox.put(Abort("told to"))
    assert [inbox.get() for _ in range(most)] == [bytes(size)] * most
    fault = inbox.get_nowait()
    assert isinstance(fault, bytes) and decode_server(fault) == FLOODED
    assert inbox.get_nowait() == Abort("told to")
    with pytest.raises(Empty):
        inbox.get_nowait()


def test_what_is_read_makes_room() -> None:
    inbox, message = Inbox(), bytes(MAX_WAITING // 2)
    for number in range(20):
        inbox.put(message)
        assert (inbox.get_nowait() if number % 2 else inbox.get()) == message


class Unheard:
    """A transport to nowhere."""

    def send(self, message: ClientMessage) -> int:
        return 0

    def close(self) -> None:
        pass


class Endless(Inbox):
    """A cloud that sends faster than the robot reads."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 100_000  # a decode that reads them all has no deadline

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        self.left -= 1
        assert self.left
        self.put(b"no message")
        return super().get(block, timeout)

    def get_nowait(self) -> Item:
        return self.get(False)


def decoded(inbox: Inbox, step: float) -> Outcome:
    """How a decode ends; its clock goes on by ``step`` (s) at each look."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += step
        return now

    model: Any = ToyVlm(1)
    robot = DecodeRunner(model, spec_of(), clock)
    settings = DecodeSettings(load_preset("cloud_ar"))
    return robot.run(REQUEST, settings, 1, lambda _: Unheard(), inbox=inbox)


def test_a_cloud_that_sends_without_end_does_not_move_the_deadline() -> None:
    assert decoded(Endless(), 0.01).reason == "timeout"


@pytest.mark.parametrize("answered", [True, False])
def test_a_reply_that_was_here_at_the_deadline_counts(answered: bool) -> None:
    """The robot may have been busy; without the reply the decode times out."""
    inbox = Inbox()
    inbox.put(encode_server(OPENED.message))
    if answered:
        inbox.put(encode_server(verdict(BASE, (), 9, finish="end").message))
    assert decoded(inbox, 11.0).reason == ("end" if answered else "timeout")
