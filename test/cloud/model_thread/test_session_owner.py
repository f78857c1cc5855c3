"""Whose session it is: its owner takes it up, no stranger does; what is verified comes along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.cloud.worker_robot import OWN, Robot, cloud, do_all, opening
from helpers.exactness import probabilities

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.edge.client import SessionKey
from edge_cloud_spec.lab.harness.toy import END, VOCABULARY, ToyVlm
from edge_cloud_spec.wire.codec import MAX_VERIFIED, decode_client, encode_client
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    RowMessage,
    RowRequest,
    Verdict,
    WireError,
)


def test_an_old_stream_has_no_session_after_another_took_it() -> None:
    worker = cloud()
    old = Robot(worker).open(1)
    new = Robot(worker)
    new.ask(Resume(old.last(Opened).session, old.base))
    assert old.ended
    heard = len(old.heard)
    new.base = old.base
    old.draft(2)
    old.ask(Close())
    assert worker.counters.judged == 0
    assert worker.sessions == 1
    old.open(2)  # and what it opens now does not cost the other its session
    assert new.settle(3).path == (0, 1, 2)
    old.leave()
    do_all(worker)
    new.settle(1)
    assert new.count(Verdict) == 2
    assert old.heard[heard:] == [old.last(Opened)]


class Owner(Robot):
    """A robot that signs what it says, and what went over the wire."""

    def __init__(self, worker: Worker, key: SessionKey | None = None) -> None:
        super().__init__(worker)
        self.key = key or SessionKey()
        self.wire: list[bytes] = []

    def say(self, message: ClientMessage | bytes) -> None:
        data = message if isinstance(message, bytes) else encode_client(message)
        self.wire.append(self.key.sign(data))
        super().say(self.wire[-1])


def stranger(worker: Worker, *messages: ClientMessage | bytes) -> list[Any]:
    """What somebody else hears who says this."""
    robot = Robot(worker)
    for message in messages:
        robot.say(message)
    do_all(worker)
    return robot.heard


@pytest.mark.parametrize("heard", [False, True], ids=["before Opened", "after Opened"])
@pytest.mark.parametrize("captured", ["on the topic", "on the wire"])
def test_a_replayed_open_neither_attaches_nor_disturbs(captured: str, heard: bool) -> None:
    worker = cloud()
    topic = encode_client(opening(draft_length=3))
    owner = Owner(worker)
    owner.say(topic)
    worker.run_one()  # it stands; whether the robot knows makes no difference here
    if heard:
        do_all(worker)
        owner.base = owner.last(Opened).base
        owner.say(Generate(owner.base))
        for _ in range(3):
            worker.run_one()
    replay = topic if captured == "on the topic" else owner.wire[0]
    answers = stranger(worker, replay)
    assert not owner.ended
    mine = owner.last(Opened).session
    if captured == "on the wire":
        (fault,) = answers
        assert fault.code == "in_use"
    else:  # whoever has no key but the request gets a session of its own
        assert answers[0].session != mine
    if heard:  # not even paused
        assert owner.last(Verdict).finish
    else:
        owner.base = owner.last(Opened).base
        owner.settle(3)
        assert owner.count(Verdict) == 1


@pytest.mark.parametrize("secret", [b"", b"\0" * 16, b"short"])
def test_a_resume_needs_the_secret_and_not_only_the_name(secret: bytes) -> None:
    worker = cloud()
    owner = Owner(worker).open(1)
    name = owner.last(Opened).session
    (fault,) = stranger(worker, Resume(name, owner.base, secret))
    (unknown,) = stranger(worker, Resume("0" * 16, owner.base, secret))
    assert fault == unknown  # nobody learns which names there are
    assert not owner.ended
    owner.settle(2)
    assert owner.count(Verdict) == 1
    back = Owner(worker, owner.key)
    assert back.ask(Resume(name, owner.base)).session == name
    assert owner.ended


def test_an_owner_that_heard_nothing_gets_its_session_with_the_repeated_open() -> None:
    worker = cloud()
    lost = Owner(worker)
    lost.ask(opening())
    lost.leave()
    do_all(worker)
    assert [m.code for m in stranger(worker, lost.wire[0])] == ["in_use"]
    back = Owner(worker, lost.key)
    back.ask(opening())
    assert back.last(Opened) == lost.last(Opened)
    assert worker.sessions == 1


def test_an_owner_whose_first_open_never_arrived_opens_with_the_repeated_one() -> None:
    worker = cloud()
    key = SessionKey()
    key.sign(encode_client(opening()))  # lost
    back = Owner(worker, key).open(1)
    back.leave()
    again = Owner(worker, key).open(1)
    assert again.last(Opened) == back.last(Opened)


def test_a_stranger_who_is_first_with_the_request_does_not_keep_its_robot_out() -> None:
    worker = cloud()
    stranger(worker, opening())
    stranger(worker, SessionKey().sign(encode_client(opening())))
    owner = Owner(worker).open(1)
    owner.settle(2)
    assert owner.count(Verdict) == 1


def test_a_key_tells_its_secret_only_to_take_a_session_up() -> None:
    key = SessionKey()
    first, second = (decode_client(key.sign(encode_client(opening()))) for _ in range(2))
    resume = decode_client(key.sign(encode_client(Resume("s", PrefixDigest(1, 2)))))
    assert isinstance(first, Open) and isinstance(second, Open) and isinstance(resume, Resume)
    assert first.secret == b""
    assert len(second.secret) == 16
    assert second.secret == resume.secret
    assert len(first.key) == 16
    assert first.key == second.key != second.secret
    for other in (DraftMessage(PrefixDigest(0, 1), Draft((1,)), 0), Close(), b"", b"\x0a\xff"):
        data = other if isinstance(other, bytes) else encode_client(other)
        assert key.sign(data) == data
    assert decode_client(SessionKey().sign(encode_client(opening()))) != first


def answer(robot: Robot, verified: int) -> tuple[int, ...]:
    """What the cloud alone says after so many tokens."""
    robot.ask(Generate(robot.base.extend(OWN[:verified])))
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
    robot.ask(Generate(robot.base.extend(lie)))
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
    liar.ask(opening(1, verified=verified, max_tokens=10**6))  # more than any answer here has
    assert [type(message) for message in liar.heard] == [Fault]
    assert liar.last(Fault).code == "bad_request"
    assert worker.sessions == 1
    assert other.settle(3).path == (0, 1, 2)


def test_more_tokens_than_any_answer_has_are_not_read() -> None:
    with pytest.raises(WireError, match="at most"):
        decode_client(encode_client(opening(1, verified=(1,) * (MAX_VERIFIED + 1))))


@pytest.mark.parametrize("verified", [0, 4])
def test_a_robot_that_is_sent_back_finds_its_session_where_its_verdicts_begin(
    verified: int,
) -> None:
    worker, key = cloud(), SessionKey()
    robot = Owner(worker, key).open(1)
    robot.draft(3)  # the verdict, which is lost, leads from 0 tokens to 4
    do_all(worker)
    robot.leave()
    back = Owner(worker, key).open(1, verified=OWN[:verified])
    assert back.last(Opened).session == robot.last(Opened).session
    assert back.last(Opened).verified == verified
    assert answer(back, verified) == OWN[verified:]


@pytest.mark.parametrize("verified", [2, 9])  # at others it went on, with verdicts of its own
def test_a_session_is_given_up_that_gave_no_verdict_where_its_robot_is_now(verified: int) -> None:
    worker, key = cloud(), SessionKey()
    robot = Owner(worker, key).open(1)
    robot.settle(3)
    robot.leave()
    back = Owner(worker, key).open(1, verified=OWN[:verified])
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
    first = Owner(worker, key).open(1, verified=OWN[:4], **SPLIT)
    here = first.base.extend(OWN[:4])
    if judged:
        unlikely = int(probabilities(ToyVlm(1).logits(OWN[:4]), SPLIT["policy"]).argmin())
        assert (
            first.ask(DraftMessage(here, Draft((unlikely,), values=(1.0,)), 0)).residual is not None
        )
    first.leave()
    back = Owner(worker, key).open(1, verified=OWN[:4], **SPLIT)
    assert (back.last(Opened).session == first.last(Opened).session) is not judged
    assert back.ask(RowRequest(here)).base == here
    assert back.ask(
        DraftMessage(here.extend((OWN[4],)), Draft((OWN[5],), values=(0.5,)), 1, OWN[4])
    ).base == here.extend((OWN[4],))


def test_verified_tokens_do_not_open_the_session_of_another_robot() -> None:
    worker = cloud()
    owner = Owner(worker, SessionKey()).open(1)
    seen = owner.heard[:]
    thief = Robot(worker)
    assert owner.stream.session is not None
    key = owner.stream.session.opening.key
    assert thief.ask(opening(1, verified=OWN[:1], key=key)).code == "in_use"
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
        robot.ask(RowRequest(here))
    robot.say(DraftMessage(here, Draft((OWN[5],), values=(0.5,)), 0))  # of before it asked
    do_all(robot.worker)
    rows = [message for message in robot.heard if isinstance(message, RowMessage)]
    assert [row.base for row in rows] == [here, here, here]
    expected = probabilities(ToyVlm(1).logits(OWN[:4]), policy)
    for row in rows:
        np.testing.assert_allclose(row.row.probabilities, expected, rtol=1e-6)
    draft = Draft((OWN[5],), values=(0.5,))
    assert robot.ask(
        DraftMessage(here.extend((OWN[4],)), draft, 1, resampled=OWN[4])
    ).base == here.extend((OWN[4],))


def test_a_row_is_nobodys_where_the_cloud_resamples_or_has_gone_on() -> None:
    robot = Robot(cloud()).open(1, verified=OWN[:4])
    robot.ask(RowRequest(robot.base.extend(OWN[:4])))
    assert [type(message) for message in robot.heard] == [Opened]
    assert robot.worker.counters.ignored == 1


def test_what_an_open_says_of_verified_tokens_survives_the_wire() -> None:
    message = decode_client(encode_client(opening(1, verified=OWN)))
    assert isinstance(message, Open)
    assert message.verified == OWN
