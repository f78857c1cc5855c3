"""Room for sessions: abandoned ones make room, and a full worker refuses."""

from __future__ import annotations

from typing import Any

from helpers.cloud.worker_robot import Robot, cloud, do_all, opening

from edge_cloud_spec.wire.messages import Fault, Opened, Resume, Verdict


def test_abandoned_sessions_make_room_the_oldest_first() -> None:
    worker = cloud(sessions=3)
    model: Any = worker._models.target
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
