"""Many sessions in one pass: the answers of each alone, and one that fails costs itself."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers.cloud.worker_robot import OWN, POLICY, Costly, Robot, cloud, do_all, opening

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.lab.bench.fleet.mixed import replay
from edge_cloud_spec.lab.harness.toy import ToyVlm, spec_of
from edge_cloud_spec.wire.messages import Close, Fault, Generate, Verdict


def policies(count: int) -> list[tuple[str, SamplingPolicy]]:
    coupled = [("coupled", SamplingPolicy(0.8, seed=n)) for n in range(count)]
    return [each if n % 2 else ("greedy", GREEDY) for n, each in enumerate(coupled)]


def toy(batch: int, noise: float = 0.0) -> Worker:
    limits = WorkerLimits(sessions=9999, batch=batch, batch_rows=100)
    model: Any = ToyVlm(1, noise)
    return Worker(model, spec_of(14), None, limits)


def test_two_hundred_mixed_sessions_have_the_answers_of_each_alone() -> None:
    """Chains, trees and sessions that the cloud decodes itself, of any length."""
    openings = [
        replace(opening(n), instruction=f"find {n}", rule=rule, policy=policy, draft_identity="d")
        for n, (rule, policy) in enumerate(policies(200))
    ]
    alone = replay(toy(1), openings, [None] * 200, seed := 7)
    own = [None if n % 5 == 0 else tokens for n, (tokens, _) in enumerate(alone.answers)]
    together = replay(toy(32), openings, own, seed)
    assert together.answers == alone.answers
    assert {how for _, how in together.answers} <= {"end", "length"}
    assert together.rounds < alone.rounds
    other = replay(toy(32, noise=0.3), openings, own, seed)  # another target
    assert other.answers != alone.answers


class Failing(Costly):
    """A model that fails for prompts of some robots, or as a whole when it is asked to."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sizes: list[int] = []
        self.full = 99  # sessions for which memory does not suffice
        self.spoiled: Any = None  # whose rows are NaN

    def forward_together(self, requests: Any) -> Any:
        self.sizes.append(len(requests))
        if len(requests) >= self.full:
            raise MemoryError("no memory for so many")
        results = super().forward_together(requests)
        for place, request in enumerate(requests):
            if request.session is self.spoiled:
                results[place] = np.full_like(results[place], np.nan)
        return results


def failing(**limits: Any) -> tuple[Failing, Worker]:
    model: Any = Failing()
    limit = WorkerLimits(**limits)
    return model, Worker(model, spec_of(60), ToyVlm(1, 0.5), limit, clock=lambda: model.now)  # type: ignore[arg-type]


def robots_at(worker: Worker, count: int) -> list[Robot]:
    return [Robot(worker).open(n) for n in range(count)]


def test_what_has_arrived_is_one_pass_and_nobody_is_waited_for() -> None:
    model, worker = failing()
    robots = robots_at(worker, 6)
    for robot in robots[:4]:
        robot.draft(3)
    do_all(worker)
    assert model.sizes == [4]
    assert all(robot.last(Verdict).path == (0, 1, 2) for robot in robots[:4])
    assert len({robot.last(Verdict).verify_s for robot in robots[:4]}) == 1


def test_a_pass_that_fails_as_a_whole_is_run_again_one_by_one() -> None:
    model, worker = failing()
    model.full = 2
    robots = robots_at(worker, 4)
    for robot in robots:
        robot.draft(2)
    do_all(worker)
    assert model.sizes == [4, 1, 1, 1, 1]
    assert all(robot.count(Verdict) == 1 for robot in robots)


def test_a_session_without_memory_alone_ends_and_the_worker_goes_on() -> None:
    model, worker = failing()
    model.full = 1
    (robot,) = robots_at(worker, 1)
    robot.draft(2)
    do_all(worker)
    assert robot.last(Fault).code == "overloaded"
    model.full = 99
    again = Robot(worker).open(5)
    again.draft(2)
    do_all(worker)
    assert again.count(Verdict) == 1


def test_rows_that_are_no_numbers_cost_their_session_only() -> None:
    model, worker = failing()
    robots = robots_at(worker, 3)
    model.spoiled = robots[1].stream.session.target  # type: ignore[union-attr]
    for robot in robots:
        robot.draft(2)
    do_all(worker)
    assert [robot.count(Verdict) for robot in robots] == [1, 0, 1]
    assert robots[1].count(Fault) == 1


def test_an_exit_that_raises_costs_its_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    _, worker = failing()
    robots = robots_at(worker, 3)
    spoiled = robots[1].stream.session

    def predictor(session: Any, *_: Any) -> Any:
        if session is spoiled:
            raise RuntimeError("a broken head")

    monkeypatch.setattr(worker._models, "predictor", predictor)
    for robot in robots:
        robot.draft(2)
    do_all(worker)
    assert [robot.count(Verdict) for robot in robots] == [1, 0, 1]
    assert robots[1].last(Fault).code == "internal"


@pytest.mark.parametrize("how", ["leaves", "closes"])
def test_a_robot_that_goes_while_it_is_in_the_pass_disturbs_nobody(how: str) -> None:
    _, worker = failing()
    robots = robots_at(worker, 3)
    for robot in robots:
        robot.draft(2)
    worker.run_one()  # the pass
    if how == "leaves":
        robots[1].leave()
    else:
        robots[1].say(Close())
    do_all(worker)
    assert all(robots[n].count(Verdict) == 1 for n in (0, 2))
    assert worker.sessions == (3 if how == "leaves" else 2)
    robots[0].draft(2)
    do_all(worker)
    assert robots[0].count(Verdict) == 2


def test_beside_sessions_that_the_cloud_decodes_prompts_are_read() -> None:
    model, worker = failing()
    robots = robots_at(worker, 3)
    for robot in robots:
        robot.say(Generate(robot.base))
    for _ in range(4):
        worker.run_one()
    new = Robot(worker)
    new.say(opening(9))
    passes = len(model.sizes)
    while new.stream.session is None or not new.stream.session.ready:
        worker.run_one()
    assert len(model.sizes) - passes <= 2
    do_all(worker)
    assert max(model.sizes) == 3
    assert all(robot.last(Verdict).finish for robot in robots)


def test_one_at_a_time_is_what_batch_1_says() -> None:
    model, worker = failing(batch=1)
    robots = robots_at(worker, 3)
    for robot in robots:
        robot.draft(2)
    do_all(worker)
    assert model.sizes == [1, 1, 1]
    waits = sorted(robot.last(Verdict).queue_s for robot in robots)
    assert waits == pytest.approx([0.0, 3.0, 6.0])  # a pass takes a second and one for each row


def test_shuffled_robots_of_random_drafts_all_get_their_tokens() -> None:
    for seed in range(5):
        random = Random(seed)
        worker = cloud(batch=random.choice([2, 5, 32]), batch_rows=random.choice([4, 16, 64]))
        robots = robots_at(worker, 7)
        while any(robot.at < 40 for robot in robots):
            robot = random.choice([each for each in robots if each.at < 40])
            robot.draft(random.randint(1, 6))
            if random.random() < 0.5 and worker.pending:
                worker.run_one()
        do_all(worker)
        for robot in robots:
            drafts = [m for m in robot.heard if isinstance(m, Verdict)]
            settled = sum(len(m.path) + (m.token is not None) for m in drafts)
            assert settled >= 1
            assert not robot.count(Fault)
    assert POLICY.seed == 5
    assert len(OWN) > 40
