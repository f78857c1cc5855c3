"""An answer that another verifier began goes on after the tokens that its robot brings."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.cloud.worker_robot import OWN, Robot, cloud, do_all, opening

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy, distribution
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.edge.client import SessionKey
from edge_cloud_spec.lab.harness.toy import END, VOCABULARY, ToyVlm
from edge_cloud_spec.wire.codec import MAX_VERIFIED, decode_client, encode_client
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    RowMessage,
    RowRequest,
    Verdict,
    WireError,
)


class Keyed(Robot):
    """A robot that signs what it says."""

    def __init__(self, worker: Worker, key: SessionKey) -> None:
        super().__init__(worker)
        self._key = key

    def say(self, message: ClientMessage | bytes) -> None:
        assert not isinstance(message, bytes)
        super().say(self._key.sign(encode_client(message)))


def answer(robot: Robot, verified: int) -> tuple[int, ...]:
    """What the cloud alone says after so many tokens."""
    robot.say(Generate(robot.base.extend(OWN[:verified])))
    do_all(robot.worker)
    said = [message for message in robot.heard if isinstance(message, Verdict)]
    tokens = (token for verdict in said for token in (*verdict.tokens, verdict.token))
    return tuple(token for token in tokens if token is not None)


@pytest.mark.parametrize("count", [1, 5, len(OWN) - 1])
def test_it_says_what_the_first_verifier_would_have_said(count: int) -> None:
    robot = Robot(cloud()).open(1, verified=OWN[:count])
    assert robot.last(Opened).verified == count
    assert robot.base == Robot(cloud()).open(1).base  # of the empty answer, as ever
    assert answer(robot, count) == OWN[count:]


def test_other_tokens_than_the_verified_ones_lead_to_another_answer() -> None:
    """A control, and what a robot gets that lies: an answer of its own."""
    lie = tuple(1 + (token + 1) % (VOCABULARY - 1) for token in OWN[:5])
    robot = Robot(cloud()).open(1, verified=lie)
    robot.say(Generate(robot.base.extend(lie)))
    do_all(robot.worker)
    said = [m.token for m in robot.heard if isinstance(m, Verdict)]
    assert tuple(said) != OWN[5 : 5 + len(said)]
    honest = Robot(robot.worker).open(2)
    assert answer(honest, 0) == OWN


@pytest.mark.parametrize(
    "verified",
    [
        (VOCABULARY,),
        (2**32 - 1,),
        (1, END, 1),
        (END,),
        (1,) * 60,
        (1,) * MAX_VERIFIED,
    ],
    ids=["outside", "far outside", "after its end", "ended", "full", "long"],
)
def test_an_answer_that_cannot_go_on_is_refused_and_costs_nobody_else(
    verified: tuple[int, ...],
) -> None:
    worker = cloud()
    other = Robot(worker).open(2)
    liar = Robot(worker)
    liar.say(opening(1, verified=verified, max_tokens=10**6))  # more than any answer here has
    do_all(worker)
    assert [type(message) for message in liar.heard] == [Fault]
    assert liar.last(Fault).code == "bad_request"
    assert worker.sessions == 1
    other.draft(3)
    do_all(worker)
    assert other.last(Verdict).path == (0, 1, 2)


def test_more_tokens_than_any_answer_has_are_not_read() -> None:
    with pytest.raises(WireError, match="at most"):
        decode_client(encode_client(opening(1, verified=(1,) * (MAX_VERIFIED + 1))))


@pytest.mark.parametrize("verified", [0, 4])
def test_a_robot_that_is_sent_back_finds_its_session_where_its_verdicts_begin(
    verified: int,
) -> None:
    worker, key = cloud(), SessionKey()
    robot = Keyed(worker, key).open(1)
    robot.draft(3)  # the verdict, which is lost, leads from 0 tokens to 4
    do_all(worker)
    robot.leave()
    back = Keyed(worker, key).open(1, verified=OWN[:verified])
    assert back.last(Opened).session == robot.last(Opened).session
    assert back.last(Opened).verified == verified
    assert answer(back, verified) == OWN[verified:]


@pytest.mark.parametrize("verified", [2, 9])  # at others it went on, with verdicts of its own
def test_a_session_is_given_up_that_gave_no_verdict_where_its_robot_is_now(verified: int) -> None:
    worker, key = cloud(), SessionKey()
    robot = Keyed(worker, key).open(1)
    robot.draft(3)
    do_all(worker)
    robot.leave()
    back = Keyed(worker, key).open(1, verified=OWN[:verified])
    assert back.last(Opened).session != robot.last(Opened).session
    assert worker.sessions == 1
    assert answer(back, verified) == OWN[verified:]


SPLIT = {
    "rule": "rejection",
    "policy": SamplingPolicy(0.8, seed=5),
    "payload": "probabilities",
    "split": Split("sparse", 1, 1),
}


@pytest.mark.parametrize("judged", [False, True], ids=["waits", "rejected"])
def test_a_row_comes_whether_the_session_there_rejected_its_draft_or_is_given_up(
    judged: bool,
) -> None:
    """A robot that resamples comes back with a rejection of its own, or of that very session."""
    worker, key = cloud(), SessionKey()
    first = Keyed(worker, key).open(1, verified=OWN[:4], **SPLIT)
    here = first.base.extend(OWN[:4])
    if judged:
        unlikely = int(distribution(ToyVlm(1).logits(OWN[:4]), SPLIT["policy"]).argmin())
        first.say(DraftMessage(here, Draft((unlikely,), values=(1.0,)), 0))
        do_all(worker)
        assert first.last(Verdict).residual is not None
    first.leave()
    back = Keyed(worker, key).open(1, verified=OWN[:4], **SPLIT)
    assert (back.last(Opened).session == first.last(Opened).session) is not judged
    back.say(RowRequest(here))
    do_all(worker)
    assert back.last(RowMessage).base == here
    back.say(DraftMessage(here.extend((OWN[4],)), Draft((OWN[5],), values=(0.5,)), 1, OWN[4]))
    do_all(worker)
    assert back.last(Verdict).base == here.extend((OWN[4],))


def test_verified_tokens_do_not_open_the_session_of_another_robot() -> None:
    worker = cloud()
    owner = Keyed(worker, SessionKey()).open(1)
    seen = owner.heard[:]
    thief = Robot(worker)
    key = next(iter(worker._sessions._sessions.values())).opening.key
    thief.say(opening(1, verified=OWN[:1], key=key))
    do_all(worker)
    assert thief.last(Fault).code == "in_use"
    assert owner.heard == seen
    assert not owner.ended


def test_the_row_that_a_robot_resamples_from_is_said_again_by_the_next_verifier() -> None:
    policy = SamplingPolicy(0.8, seed=5)
    robot = Robot(cloud()).open(
        1,
        rule="rejection",
        policy=policy,
        payload="probabilities",
        split=Split("sparse", 1, 1),
        verified=OWN[:4],
    )
    here = robot.base.extend(OWN[:4])
    for _ in range(2):  # the second time from memory
        robot.say(RowRequest(here))
        do_all(robot.worker)
    robot.say(DraftMessage(here, Draft((OWN[5],), values=(0.5,)), 0))  # of before it asked
    do_all(robot.worker)
    rows = [message for message in robot.heard if isinstance(message, RowMessage)]
    assert [row.base for row in rows] == [here, here, here]
    expected = distribution(ToyVlm(1).logits(OWN[:4]), policy)
    for row in rows:
        np.testing.assert_allclose(row.row.probabilities, expected, rtol=1e-6)
    draft = Draft((OWN[5],), values=(0.5,))
    robot.say(DraftMessage(here.extend((OWN[4],)), draft, 1, resampled=OWN[4]))
    do_all(robot.worker)
    assert robot.last(Verdict).base == here.extend((OWN[4],))


def test_a_row_is_nobodys_where_the_cloud_resamples_or_has_gone_on() -> None:
    robot = Robot(cloud()).open(1, verified=OWN[:4])
    robot.say(RowRequest(robot.base.extend(OWN[:4])))
    do_all(robot.worker)
    assert [type(message) for message in robot.heard] == [Opened]
    assert robot.worker.counters.ignored == 1


def test_what_an_open_says_of_verified_tokens_survives_the_wire() -> None:
    message = decode_client(encode_client(opening(1, verified=OWN)))
    assert isinstance(message, Open)
    assert message.verified == OWN
