"""Whose session it is: no stranger attaches to one, and its owner always does."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.cloud.worker_robot import Robot, cloud, do_all, opening

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.edge.client import SessionKey
from edge_cloud_spec.wire.codec import decode_client, encode_client
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Generate,
    Open,
    Opened,
    Resume,
    Verdict,
)


def test_an_old_stream_has_no_session_after_another_took_it() -> None:
    worker = cloud()
    old = Robot(worker).open(1)
    new = Robot(worker)
    new.say(Resume(old.last(Opened).session, old.base))
    do_all(worker)
    assert old.ended
    heard = len(old.heard)
    new.base = old.base
    old.draft(2)
    old.say(Close())
    do_all(worker)
    assert worker.counters.judged == 0
    assert worker.sessions == 1
    old.open(2)  # and what it opens now does not cost the other its session
    new.draft(3)
    do_all(worker)
    assert new.last(Verdict).path == (0, 1, 2)
    old.leave()
    do_all(worker)
    new.draft(1)
    do_all(worker)
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
        owner.draft(3)
        do_all(worker)
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
    owner.draft(2)
    do_all(worker)
    assert owner.count(Verdict) == 1
    back = Owner(worker, owner.key)
    back.say(Resume(name, owner.base))
    do_all(worker)
    assert back.last(Opened).session == name
    assert owner.ended


def test_an_owner_that_heard_nothing_gets_its_session_with_the_repeated_open() -> None:
    worker = cloud()
    lost = Owner(worker)
    lost.say(opening())
    do_all(worker)
    lost.leave()
    do_all(worker)
    assert [m.code for m in stranger(worker, lost.wire[0])] == ["in_use"]
    back = Owner(worker, lost.key)
    back.say(opening())
    do_all(worker)
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
    owner.draft(2)
    do_all(worker)
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
