"""The worker among many robots: whose job is next, and what is not computed at all."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from helpers.cloud.worker_robot import OWN, Robot, cloud, do_all, opening

from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.messages import (
    Alone,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Opened,
    Resume,
    Verdict,
)


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
    robot.say(Generate(robot.base, Alone(speculative=random.random() < 0.5)))


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("flood", [drafts, pushes, generates])
def test_beside_floods_a_draft_waits_for_one_turn_of_each(
    flood: Callable[[Robot, Random], None], seed: int, batch: int
) -> None:
    random = Random(seed)
    worker = cloud(batch=batch)
    floods = [Robot(worker).open(n, draft_identity="d", draft_length=9) for n in range(3)]
    robot = Robot(worker).open(9)
    for other in floods:
        flood(other, random)
    for _ in range(random.randrange(8)):
        if worker.pending:
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
    worker = cloud(batch=1)
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
    robot.stream.send_bytes = transport
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
    assert worker.counters.judged == 0
    assert worker.counters.drafts == worker.counters.late == 2
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
    model: Any = worker._models.target
    original = model.prefill
    model.prefill = lambda prompt: (opened.append(prompt), original(prompt))[1]
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
