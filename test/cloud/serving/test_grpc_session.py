"""A session over gRPC: what opens one, what it refuses, and what leaves it unharmed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import OWN, REQUEST, Talk, opening, settings, toy_robot

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.codec import encode_client
from edge_cloud_spec.wire.messages import Close, DraftMessage, Fault, Generate, Opened, Verdict


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"rule": "luck"}, "rule must be greedy, coupled or rejection, not 'luck'"),
        ({"rule": "greedy"}, "greedy goes with temperature 0"),
        ({"policy": GREEDY}, "greedy goes with temperature 0"),
    ],
)
def test_a_rule_that_does_not_go_with_the_policy_is_refused(
    toy: Any, changes: dict[str, Any], complaint: str
) -> None:
    with Talk(toy.address) as robot:
        robot.say(replace(opening(), **changes))
        assert complaint in robot.hear().text


def test_garbage_and_bad_drafts_leave_the_session_unharmed(toy: Any) -> None:
    with Talk(toy.address) as robot:
        robot.say(opening())
        opened = robot.hear()
        assert isinstance(opened, Opened)
        random = np.random.default_rng(0)
        good = encode_client(DraftMessage(opened.base, Draft(OWN[:3]), 5))
        for _ in range(100):
            mutated = bytearray(good)
            for place in random.integers(0, len(mutated), 2):
                mutated[place] = random.integers(0, 256)
            if mutated[0] != good[0]:  # not by chance another draft for this very prefix
                robot.say(bytes(mutated))
        robot.say(random.bytes(1000))
        for bad in (Draft((99,)), Draft(()), Draft((1, 2), (1, -1)), Draft((1,) * 2000)):
            robot.say(DraftMessage(opened.base, bad, 0))
        robot.say(good)
        heard = robot.hear()
        faults = []
        while not isinstance(heard, Verdict):
            faults.append(heard)
            heard = robot.hear()
        assert len(faults) > 5
        assert all(isinstance(fault, Fault) and fault.text for fault in faults)
        assert (heard.path, heard.token) == ((0, 1, 2), OWN[3])


def test_what_is_said_before_a_session_is_dropped_without_a_fault(toy: Any) -> None:
    """A robot may have sent it before it knew that its stream is a new one."""
    with Talk(toy.address) as robot:
        robot.say(Generate(PrefixDigest(0, 1)))
        robot.say(DraftMessage(PrefixDigest(0, 1), Draft((1,)), 0))
        robot.say(opening())
        assert isinstance(robot.hear(), Opened)


def test_an_open_said_twice_is_one_session(toy: Any) -> None:
    with Talk(toy.address) as first, Talk(toy.address) as second:
        first.say(opening())
        one = first.hear()
        second.say(opening())
        two = second.hear()
        assert (one.session, one.base) == (two.session, two.base)
        second.say(opening(nonce=2))
        assert second.hear().session != one.session


def test_a_full_verifier_says_so_and_has_room_when_a_robot_leaves() -> None:
    with Cloud(toy_worker(WorkerLimits(sessions=1))) as toy, Talk(toy.address) as first:
        first.say(opening())
        assert isinstance(first.hear(), Opened)
        with Talk(toy.address) as second:
            second.say(opening(nonce=2))
            assert second.hear().code == "overloaded"
            first.say(Close())
            first.hear()  # its stream ended
            second.say(opening(nonce=2))
            assert isinstance(second.hear(), Opened)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RuntimeError("device-side assert"), "internal", "RuntimeError"),
        (MemoryError("no room"), "overloaded", "no memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "overloaded", "no memory"),
    ],
)
def test_a_failing_model_is_a_fault_and_the_next_session_is_served(
    toy: Any, error: Exception, code: str, text: str
) -> None:
    model = toy.worker._models.target
    original = type(model).logits
    with Talk(toy.address) as robot:
        robot.say(opening())
        base = robot.hear().base
        try:
            type(model).logits = lambda *_: (_ for _ in ()).throw(error)
            robot.say(DraftMessage(base, Draft((1,)), 0))
            fault = robot.hear()
        finally:
            type(model).logits = original
    assert fault.code == code
    assert text in fault.text
    assert (fault.retry_after_s > 0) == (code == "overloaded")
    link = VerifierClient(ClientSettings(toy.address))
    assert toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, link.connect).tokens == OWN
    link.close()
