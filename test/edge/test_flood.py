"""A verifier that sends without end: bounded memory, and a deadline that holds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count, repeat
from queue import Empty
from random import Random
from unittest.mock import Mock

import pytest
from helpers.cloud.grpc_robot import REQUEST, toy_robot
from helpers.cloud.scripted_cloud import RobotSide, ScriptedCloud
from helpers.edge_decoder import BASE as PROMPT_BASE
from helpers.edge_decoder import OPENED, verdict

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.events import (
    FLOODED,
    LEAST_MESSAGE_BYTES,
    MAX_UNREAD_BYTES,
    Abort,
    Emit,
    Inbox,
    Item,
)
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.edge.runner import MAX_MESSAGES_BEFORE_PASS, DecodeRunner, Outcome
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.codec import encode_server
from edge_cloud_spec.wire.frames import ServerFrame
from edge_cloud_spec.wire.messages import PROTOCOL, Opened, Prediction, Verdict
from edge_cloud_spec_lab.harness.toy import ToyVlm, spec_of
from edge_cloud_spec_lab.harness.virtual_decode import Conditions, Decode
from edge_cloud_spec_lab.harness.virtual_time import Timeline, VirtualInbox

BASE = PrefixDigest(0, 42)
STALE = encode_server(Prediction(PrefixDigest(9, 9), (), 1, 0.5))


def stale(size: int) -> ServerFrame:
    """A frame that is of no use, of so many bytes."""
    return replace(STALE, data=STALE.data[:size].ljust(size, b"\0"))


MILLION = stale(2**20)


def test_what_a_robot_cannot_read_ends_its_decode_with_a_sentence_and_is_not_kept() -> None:
    """It reads nothing before its inbox is full."""
    inbox = Inbox()

    def script(robot: RobotSide) -> Iterator[bytes]:
        robot.hear()
        yield encode_server(Opened("s", b"", BASE, PROTOCOL)).data
        first = Verdict(BASE, (), 1, generated=True, leads_to=BASE.extend((1,)).short)
        yield encode_server(first).data
        yield from repeat(MILLION.data)

    def on_emit(_: Emit) -> None:
        while not inbox._is_full:
            time.sleep(0.01)

    settings = DecodeSettings(load_preset("cloud_ar"), reply_timeout=150.0)
    with (
        ScriptedCloud(script) as cloud,
        closing(VerifierClient(ClientSettings(cloud.address))) as link,
    ):
        outcome = toy_robot().run(REQUEST, settings, 1, link.connect, on_emit, inbox)
    assert (outcome.tokens, outcome.reason) == ((1,), "flooded")
    assert "more than any answer needs" in outcome.text
    assert inbox.qsize() <= MAX_UNREAD_BYTES // len(MILLION)


class Flooded(VirtualInbox):
    """From the moment that the cloud has opened the session so many messages are always here."""

    begun = False

    def __init__(self, timeline: Timeline, messages: float, each_s: float) -> None:
        super().__init__(timeline)
        self._left, self._each_s = messages, each_s

    def get_nowait(self) -> Item:
        try:
            item = super().get_nowait()
        except Empty:
            if not (self.begun and self._left):
                raise
            self._left -= 1
            self._timeline.sleep(self._each_s)
            return STALE
        self.begun = isinstance(item, ServerFrame)
        return item


class Beside(Decode):
    """A decode beside a flood, which does not end unless it is told to."""

    flood = (math.inf, 1e-4)  # messages, and seconds that reading one takes

    def run(self) -> Outcome:
        self.inbox = Flooded(self.timeline, *self.flood)
        return self._runner.run(
            REQUEST, self.settings, 7, self.link.connect, self.on_emit, self.inbox
        )


@pytest.mark.parametrize("preset", ["cloud_ar", "dsd"])
@pytest.mark.parametrize("silent", [False, True], ids=["answers", "silent"])
def test_a_flood_keeps_neither_the_drafts_nor_the_deadline_waiting(
    preset: str, silent: bool
) -> None:
    faults = dict.fromkeys(range(4, 10_000), "lost") if silent else {}
    decode = Beside(Random(0), preset, conditions=Conditions(), reply_timeout=3.0, faults=faults)
    decode.timeline._max_steps = 1e7
    outcome = decode.run()
    assert outcome.reason == ("timeout" if silent else "length"), outcome.text


def test_after_a_flood_a_decode_is_as_quick_as_without() -> None:
    """Verdicts are read between the passes of a draft ahead."""
    ended = []
    for messages in (0, 3 * MAX_MESSAGES_BEFORE_PASS):
        decode = Beside(Random(0), "picospec", conditions=Conditions())
        decode.flood = (messages, 0.0)
        decode.run()
        ended.append(decode.now)
    assert ended[0] == ended[1]


# A robot that is sent more than it can use: bounded memory, and a deadline that holds.


@pytest.mark.parametrize("size", [1, LEAST_MESSAGE_BYTES, MAX_UNREAD_BYTES // 4])
def test_a_flood_is_one_fault_and_the_robots_own_orders_come_after_it(size: int) -> None:
    inbox, most = Inbox(), MAX_UNREAD_BYTES // max(size, LEAST_MESSAGE_BYTES)
    for _ in range(most + 10):
        inbox.put(stale(size))
    inbox.put(Abort("told to"))
    assert [inbox.get() for _ in range(most)] == [stale(size)] * most
    fault = inbox.get_nowait()
    assert isinstance(fault, ServerFrame) and fault.fault == FLOODED
    assert inbox.get_nowait() == Abort("told to")
    with pytest.raises(Empty):
        inbox.get_nowait()


def test_what_is_read_makes_room() -> None:
    inbox, message = Inbox(), stale(MAX_UNREAD_BYTES // 2)
    for number in range(20):
        inbox.put(message)
        assert (inbox.get_nowait() if number % 2 else inbox.get()) == message


@pytest.mark.parametrize("answered", [True, False])
def test_a_reply_that_was_here_at_the_deadline_counts(answered: bool) -> None:
    """The robot may have been busy: its clock goes on by 11 s at each look."""
    inbox, model = Inbox(), ToyVlm(1)
    replies = [OPENED, verdict(PROMPT_BASE, (), 9, finish="end")]
    for reply in replies if answered else replies[:1]:
        inbox.put(encode_server(reply))
    robot = DecodeRunner(model, spec_of(), count(0.0, 11.0).__next__)  # type: ignore[arg-type]
    settings, nowhere = DecodeSettings(load_preset("cloud_ar")), Mock(send=Mock(return_value=0))
    outcome = robot.run(REQUEST, settings, 1, lambda _: nowhere, inbox=inbox)
    assert outcome.reason == ("end" if answered else "timeout")
