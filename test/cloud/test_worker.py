"""The worker among many robots: turns, room, and whose session is whose. Without times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from edge_cloud_spec.cloud.sessions import RobotStream, WorkerLimits
from edge_cloud_spec.cloud.turns import Line, Turns
from edge_cloud_spec.cloud.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.edge.session_key import SessionKey
from edge_cloud_spec.harness.toy import ToyVlm, own_answer, spec_of
from edge_cloud_spec.wire.codec import decode_client, decode_server, encode_client
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    Verdict,
)

POLICY = SamplingPolicy(0.8, seed=5)
OWN = tuple(own_answer(ToyVlm(1), POLICY, 60)[0])


class Costly(ToyVlm):
    """A model whose passes take a second and one more for each row, on its own clock."""

    now = 0.0

    def spend(self, rows: int) -> None:
        self.now += 1.0 + rows


def cloud(**limits: Any) -> Worker:
    model = Costly(1)
    drafter = ToyVlm(1, 0.5)
    return Worker(
        model,  # type: ignore[arg-type]
        spec_of(60),
        drafter,  # type: ignore[arg-type]
        WorkerLimits(**limits),
        clock=lambda: model.now,
    )


def do_all(worker: Worker) -> None:
    while worker.pending:
        worker.run_one()


class Robot:
    """A stream, and what was heard there."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.heard, self.ended = worker, [], False  # type: ignore[var-annotated]
        self.stream = RobotStream(self._hear)
        self.base = PrefixDigest(0, 0)
        self.at = 0  # tokens of the answer that were sent as drafts

    def _hear(self, data: bytes | None) -> None:
        if data is None:
            self.ended = True
        else:
            self.heard.append(decode_server(data))

    def say(self, message: ClientMessage | bytes) -> None:
        data = message if isinstance(message, bytes) else encode_client(message)
        self.worker.receive(self.stream, data)

    def leave(self) -> None:
        self.worker.leave(self.stream)

    def open(self, nonce: int, **changes: Any) -> Robot:
        self.say(opening(nonce, **changes))
        do_all(self.worker)
        self.base = self.last(Opened).base
        return self

    def draft(self, depth: int) -> None:
        """The next tokens of the answer: all are right, and the bonus is the one after."""
        tokens = OWN[self.at : self.at + depth]
        self.say(DraftMessage(self.base.extend(OWN[: self.at]), Draft(tokens), 0))
        self.at += depth + 1

    def last(self, kind: type) -> Any:
        return next(m for m in reversed(self.heard) if isinstance(m, kind))

    def count(self, kind: type) -> int:
        return sum(isinstance(message, kind) for message in self.heard)


def opening(nonce: int = 1, **changes: Any) -> Open:
    message = Open(nonce, "find", b"jpeg", "action first", POLICY, "coupled")
    return replace(message, tokenizer_digest=ToyVlm.tokenizer_digest, **changes)


# Turns


def drafts(robot: Robot, random: Random) -> None:
    for _ in range(6):
        robot.draft(random.randint(1, 5))


def pushes(robot: Robot, random: Random) -> None:
    """The later ones come first: they wait in the pool, and the cloud may go straight on."""
    depths = [random.randint(1, 5) for _ in range(6)]
    places = [sum(depths[:n]) + n for n in range(6)]
    for place, depth in reversed(list(zip(places, depths, strict=True))):
        robot.at = place
        robot.draft(depth)


def generates(robot: Robot, random: Random) -> None:
    robot.say(Generate(robot.base, speculative=random.random() < 0.5))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("flood", [drafts, pushes, generates])
def test_beside_floods_a_draft_waits_for_one_turn_of_each(
    flood: Callable[[Robot, Random], None], seed: int
) -> None:
    random = Random(seed)
    worker = cloud()
    floods = [Robot(worker).open(n, draft_identity="d", draft_length=9) for n in range(3)]
    robot = Robot(worker).open(9)
    for other in floods:
        flood(other, random)
    for _ in range(random.randrange(8)):
        worker.run_one()
    for _ in range(3):
        before = [other.count(Verdict) for other in floods]
        verdicts = robot.count(Verdict)
        robot.draft(2)
        while robot.count(Verdict) == verdicts:
            worker.run_one()
        for other, count in zip(floods, before, strict=True):
            assert other.count(Verdict) - count <= 2  # one was under way
    do_all(worker)
    assert all(other.count(Verdict) > 5 for other in floods)


def test_who_asks_for_what_takes_long_gets_as_much_time_and_no_more() -> None:
    worker = cloud()
    heavy, light = (Robot(worker).open(nonce, draft_identity="d") for nonce in range(2))
    for _ in range(3):
        heavy.draft(9)  # 11 seconds each, the others 3
    for _ in range(15):
        light.draft(1)
    while heavy.count(Verdict) < 3 and light.count(Verdict) < 15:
        worker.run_one()
    assert light.count(Verdict) >= 3 * (heavy.count(Verdict) - 1) > 0  # whose last is begun


def test_a_flood_of_new_streams_does_not_go_before_a_robot() -> None:
    worker = cloud(sessions=4)
    robot = Robot(worker).open(1)
    robot.draft(2)
    jobs = 0
    while not robot.count(Verdict):
        for _ in range(2):  # faster than they are served
            jobs += 1
            Robot(worker).say(opening(100 + jobs))
        worker.run_one()
        assert jobs < 20


def test_what_comes_while_a_verdict_is_said_waits_for_its_turn() -> None:
    """A stream that is never empty must not hold the worker in one turn."""
    worker = cloud()
    robot = Robot(worker).open(1, draft_identity="d")
    bad = encode_client(DraftMessage(robot.base.extend(OWN[:3]), Draft((1,) * 65), 0))
    again = 500

    def transport(data: bytes | None) -> None:
        nonlocal again
        if data and isinstance(decode_server(data), Fault) and again:
            again -= 1
            worker.receive(robot.stream, bad)

    robot.draft(2)
    worker.run_one()  # the pass
    robot.stream.transport = transport
    for _ in range(3):
        robot.say(bad)
    worker.run_one()  # the verdict
    assert again == 500 - 3


def test_what_a_robot_that_has_left_still_wanted_is_not_computed() -> None:
    worker = cloud()
    robot = Robot(worker).open(1)
    robot.draft(2)
    robot.draft(2)
    robot.leave()
    new = Robot(worker)
    new.say(opening(2))
    new.leave()
    do_all(worker)
    assert worker.tally.judged == 0
    assert worker.tally.drafts == worker.tally.late == 2
    assert worker.sessions == 1


def test_a_close_is_heard_from_a_robot_that_has_left() -> None:
    worker = cloud()
    robot = Robot(worker).open(1)
    robot.draft(2)
    robot.say(Close())
    robot.leave()
    do_all(worker)
    assert worker.sessions == 0


def test_a_prompt_is_not_read_for_a_robot_that_has_left() -> None:
    worker = cloud()
    opened: list[object] = []
    model: Any = worker._pair.target
    original = model.open
    model.open = lambda prompt: (opened.append(prompt), original(prompt))[1]
    robot = Robot(worker)
    robot.say(opening())
    worker.run_one()
    robot.leave()
    do_all(worker)
    assert (worker.sessions, len(opened)) == (1, 0)
    back = Robot(worker)
    session = robot.last(Opened)
    back.say(Resume(session.session, session.base))
    back.say(DraftMessage(session.base, Draft(OWN[:2]), 0))
    do_all(worker)
    assert back.last(Verdict).path == (0, 1)
    assert len(opened) == 1


def test_lines_that_use_the_same_take_turns_in_order() -> None:
    turns, done = Turns(), []
    lines = {name: Line() for name in "abc"}
    for name in "aaabbc":
        turns.put(lines[name], lambda name=name: done.append(name))
    while len(turns):
        job = turns.take()
        assert job is not None
        job()
    assert "".join(done) == "abcaba"


@pytest.mark.parametrize("seed", range(10))
def test_lines_that_are_never_empty_get_the_same_time(seed: int) -> None:
    random = Random(seed)
    turns = Turns()
    costs = {Line(): 10 ** random.uniform(-2, 1) for _ in range(4)}
    used = dict.fromkeys(costs, 0.0)
    most = max(costs.values())
    for line in costs:
        turns.put(line, lambda: None)
    while sum(used.values()) < 100 * most:
        before = {line: len(line.jobs) for line in costs}
        turns.take()
        (line,) = (line for line in costs if len(line.jobs) < before[line])
        used[line] += costs[line]
        turns.spend(costs[line])
        turns.put(line, lambda: None)
        assert max(used.values()) - min(used.values()) <= 2 * most


def test_a_line_is_owed_nothing_for_the_time_that_it_was_empty() -> None:
    turns = Turns()
    busy, back = Line(), Line()
    for line in (busy, back):
        turns.put(line, lambda: None)
        turns.take()
        turns.spend(1.0)
    order = []
    for _ in range(50):
        turns.put(busy, lambda: None)
        turns.take()
        turns.spend(1.0)
    for _ in range(6):
        turns.put(busy, lambda: order.append("busy"))
        turns.put(back, lambda: order.append("back"))
    while len(turns):
        job = turns.take()
        assert job is not None
        job()
        turns.spend(1.0)
    assert order[:6].count("busy") == 3


# Room


def test_abandoned_sessions_make_room_the_oldest_first() -> None:
    worker = cloud(sessions=3)
    model: Any = worker._pair.target
    robots = []
    for nonce in range(3):
        robots.append(Robot(worker).open(nonce))
        model.now += 1.0
    for place in (1, 2, 0):
        robots[place].leave()
        do_all(worker)
        model.now += 1.0
    for gone, nonce in ((1, 10), (2, 11)):
        assert Robot(worker).open(nonce).count(Fault) == 0
        asked = Robot(worker)
        asked.say(Resume(robots[gone].last(Opened).session, robots[gone].base))
        do_all(worker)
        assert asked.last(Fault).code == "unknown_session"
    assert worker.sessions == 3
    asked = Robot(worker)
    asked.say(Resume(robots[0].last(Opened).session, robots[0].base))
    do_all(worker)
    assert asked.count(Opened) == 1


def test_only_when_somebody_listens_to_all_sessions_a_new_robot_is_refused() -> None:
    worker = cloud(sessions=2)
    robots = [Robot(worker).open(nonce) for nonce in range(2)]
    new = Robot(worker)
    new.say(opening(5))
    do_all(worker)
    assert new.last(Fault).code == "overloaded"
    robots[0].draft(2)
    do_all(worker)
    assert robots[0].count(Verdict) == 1
    robots[1].leave()
    assert new.open(5).count(Opened) == 1


def test_hundreds_of_abandoned_sessions_lock_nobody_out() -> None:
    worker = cloud(sessions=8)
    robot = Robot(worker).open(1)
    for nonce in range(300):
        Robot(worker).open(100 + nonce).leave()
        do_all(worker)
    robot.draft(3)
    do_all(worker)
    assert robot.count(Verdict) == 1
    assert worker.sessions <= 8


# Whose session it is


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
    assert worker.tally.judged == 0
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
