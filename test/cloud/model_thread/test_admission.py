"""Sessions are bounded for each client, and a robot that is refused is told when to come again."""

from __future__ import annotations

import threading
from typing import Any

from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import OWN, REQUEST, Talk, settings, toy_robot
from helpers.cloud.grpc_robot import opening as opening_of
from helpers.cloud.worker_robot import Robot, cloud, do_all, opening
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.sessions import SHORTEST_S, Turnover, WorkerLimits
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.channel import MAX_RETRY_S
from edge_cloud_spec.wire.messages import Close, Fault, Opened, Resume, Verdict

ages = st.lists(st.floats(0, 1e6), max_size=20)


@given(st.lists(st.floats(0, 1e6), max_size=10), st.lists(st.tuples(ages, st.floats(0, 100))))
def test_whoever_is_refused_is_told_a_time_that_it_can_wait(
    lasted: list[float], asked: list[tuple[list[float], float]]
) -> None:
    turnover, now = Turnover(), 0.0
    for seconds in lasted:
        turnover.ended(seconds)
    for number, (held, pause) in enumerate(asked):
        now += pause
        wait = turnover.wait_s(f"robot {number % 5}", held, now)
        assert SHORTEST_S <= wait <= MAX_RETRY_S * 1.001


def test_the_wait_is_what_is_waited_for() -> None:
    """Four places of sessions that last 8 s: one is free every 2 s."""
    turnover = Turnover()
    turnover.ended(8.0)
    waits = [turnover.wait_s(name, [1.0, 2.0, 3.0, 4.0], 0.0) for name in ("a", "b", "c")]
    assert waits == [2.0, 4.0, 6.0]
    assert turnover.wait_s("a", [1.0] * 4, 0.5) == 1.5  # who asks early keeps its place
    assert turnover.wait_s("d", [1.0] * 4, 2.5) == 6.0  # a came, or did not: its place is over
    turnover.admitted("b")
    assert turnover.wait_s("e", [1.0] * 4, 2.5) == 6.0


def test_a_client_that_asks_without_end_makes_nobody_wait_longer() -> None:
    turnover = Turnover()
    turnover.ended(8.0)
    for number in range(1000):
        turnover.wait_s("hostile", [1.0] * 4, number / 1000)
    assert turnover.wait_s("honest", [1.0] * 4, 1.0) == 4.0


def named(robot: Robot, client: str) -> Robot:
    robot.stream.client = client
    return robot


def test_a_clients_sessions_are_bounded_and_another_is_served() -> None:
    worker = cloud(sessions=8, sessions_per_robot=2)
    greedy = [named(Robot(worker), "greedy") for _ in range(3)]
    for nonce, robot in enumerate(greedy[:2]):
        robot.open(nonce)
    greedy[2].say(opening(2))
    do_all(worker)
    fault = greedy[2].last(Fault)
    assert fault.code == "overloaded" and fault.retry_after_s > 0
    assert "this robot has 2 sessions already" in fault.text
    assert worker.counters.answers.refused == {"sessions_per_robot": 1}
    other = named(Robot(worker), "other").open(9)
    other.draft(3)
    do_all(worker)
    assert other.count(Verdict) == 1
    greedy[0].say(Close())
    do_all(worker)
    assert greedy[2].open(2).count(Opened) == 1


def test_a_client_that_abandons_sessions_loses_its_own_and_not_anothers() -> None:
    """The other's robot has lost the link for the longest, and comes back."""
    worker = cloud(sessions=6, sessions_per_robot=4)
    model: Any = worker._models.target
    honest = named(Robot(worker), "honest").open(1)
    honest.leave()
    do_all(worker)
    for nonce in range(100, 140):
        model.now += 0.1
        named(Robot(worker), f"hostile {nonce % 2}").open(nonce).leave()
        do_all(worker)
    assert worker.sessions <= 6
    back = named(Robot(worker), "honest")
    back.say(Resume(honest.last(Opened).session, honest.base))
    do_all(worker)
    assert back.count(Opened) == 1


def test_a_refused_robot_waits_and_is_served_over_grpc() -> None:
    limits = WorkerLimits(sessions=1)
    with Cloud(toy_worker(limits)) as toy, Talk(toy.address) as first:
        first.say(opening_of())
        assert isinstance(first.hear(), Opened)
        outcomes: list[Any] = []
        link = VerifierClient(ClientSettings(toy.address))
        chosen = settings("dsd", "coupled")
        decode = threading.Thread(
            target=lambda: outcomes.append(toy_robot().run(REQUEST, chosen, 5, link.connect))
        )
        decode.start()
        refused = toy.worker.counters.answers.refused
        ended = threading.Event()
        while not refused["sessions"] and not ended.wait(0.01):
            assert decode.is_alive()
        first.say(Close())
        decode.join(150)
        link.close()
    assert [outcome.tokens for outcome in outcomes] == [OWN]
    assert refused["sessions"] >= 1
