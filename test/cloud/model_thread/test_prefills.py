"""Prompts are read in chunks, with the draft that waits for them, and again once evicted."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from helpers.bounded_toy import SESSION_BYTES, BoundedToy
from helpers.checkpoints import jpeg
from helpers.cloud.replaying_robot import ReplayingRobot
from helpers.cloud.worker_robot import OWN, Costly, Robot, do_all, opening
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.lab.harness.scripted.model import ScriptedPrefill
from edge_cloud_spec.lab.harness.toy import ToyVlm, spec_of
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load import load
from edge_cloud_spec.share import rules_text
from edge_cloud_spec.wire.messages import Opened, Verdict


class LongPrompts(Costly):
    """Its prompts are read in two steps, a second for each row."""

    def prefill(self, prompt: Any) -> Any:
        return ScriptedPrefill(lambda: self.session(prompt), 8, self._read)

    def _read(self, share: float) -> None:
        self.now += 8 * share


def opened(verified: int = 0) -> tuple[Robot, Any]:
    """A robot whose prompt is not read yet, and the target."""
    target: Any = LongPrompts(1)
    worker = Worker(target, spec_of(60), None, WorkerLimits(batch_rows=4), lambda: target.now)
    robot = Robot(worker)
    robot.say(opening(verified=OWN[:verified]))
    while not target.now:  # half of it
        worker.run_one()
    robot.base = robot.last(Opened).base
    return robot, target


def spent(robot: Robot, target: Any, draft: int) -> float:
    """What the verdict on this draft costs."""
    before, heard = target.now, robot.count(Verdict)
    robot.settle(draft)
    assert robot.count(Verdict) == heard + 1
    assert robot.last(Verdict).path == tuple(range(draft))
    return float(target.now - before)


def test_the_first_verdict_costs_no_pass_and_the_next_one_does() -> None:
    robot, target = opened()
    assert spent(robot, target, 3) == 4 + 3  # half of the prompt, and the draft
    assert robot.worker._scheduler.estimator.passes == 0  # nothing is learned of passes
    assert spent(robot, target, 3) == 1.0 + 1 + 3
    assert robot.worker._scheduler.estimator.passes == 1


def test_a_draft_that_arrives_later_has_a_pass() -> None:
    robot, target = opened()
    do_all(robot.worker)
    assert spent(robot, target, 3) == 1.0 + 3


def test_an_answer_that_another_verifier_began_is_read_first() -> None:
    robot, target = opened(verified=2)
    robot.at = 2
    assert spent(robot, target, 3) == 4 + 1.0 + 2 + 3


def toy_cloud(room: float, **limits: int) -> Worker:
    """A worker with memory for so many sessions."""
    kept = WorkerLimits(kv_bytes=int(room * SESSION_BYTES), **limits)
    return Worker(BoundedToy(1), spec_of(60), ToyVlm(1, 0.5), kept)  # type: ignore[arg-type]


def toy_robots(worker: Worker, count: int, seed: int = 0) -> list[ReplayingRobot]:
    """Some draft one at a time, some push, some are wrong, and some let the cloud generate."""
    chosen = random.Random(seed)
    return [
        ReplayingRobot(
            worker,
            opening(nonce, draft_identity="toy"),
            OWN,
            depth=chosen.randint(1, 5),
            pushes=nonce % 4 == 1,
            wrong=nonce % 4 == 2,
            generates=nonce % 4 == 3,
        )
        for nonce in range(count)
    ]


@pytest.mark.parametrize("room", [1, 4])
def test_a_storm_of_evictions_loses_nothing(room: int) -> None:
    worker = toy_cloud(room)
    robots = toy_robots(worker, 64)
    do_all(worker)
    assert [tuple(robot.tokens) for robot in robots] == [OWN] * 64
    assert [robot.faults for robot in robots if robot.faults] == []
    memory = worker.kv_memory
    assert memory.evictions > 64
    assert memory.peak <= room * SESSION_BYTES


@settings(max_examples=6)
@given(data=st.data(), room=st.integers(1, 3), rows=st.sampled_from([16, 100, 256]))
def test_whoever_vanishes_or_comes_back_the_others_end_as_if_they_were_alone(
    data: st.DataObject, room: int, rows: int
) -> None:
    worker = toy_cloud(room, batch_rows=rows, batch=data.draw(st.integers(1, 8)))
    robots = toy_robots(worker, 12, data.draw(st.integers(0, 99)))
    for _ in range(data.draw(st.integers(0, 60))):
        if not worker.pending:
            break
        worker.run_one()
        if data.draw(st.integers(0, 3)) == 0:
            robot = robots[data.draw(st.integers(0, 11))]
            if not robot.finished:
                data.draw(st.sampled_from([robot.lose_the_link, robot.vanish]))()
    do_all(worker)
    for robot in robots:
        assert robot.finished == "gone" or tuple(robot.tokens) == OWN
        assert not robot.faults
    assert worker.kv_memory.peak <= room * SESSION_BYTES


def test_robots_that_open_and_vanish_leave_no_memory_behind() -> None:
    """Also in the middle of their prompts, which are read in chunks."""
    worker = toy_cloud(2, batch_rows=100)
    for nonce in range(100):
        robot = ReplayingRobot(worker, opening(1000 + nonce), OWN, depth=2)
        for _ in range(nonce % 5):
            if worker.pending:
                worker.run_one()
        robot.vanish()
    survivors = toy_robots(worker, 4)
    do_all(worker)
    assert [tuple(robot.tokens) for robot in survivors] == [OWN] * 4
    assert worker.kv_memory.peak <= 2 * SESSION_BYTES


def test_a_prompt_that_never_fits_is_refused_at_once_and_the_others_go_on() -> None:
    worker = toy_cloud(0.5)
    robot = ReplayingRobot(worker, opening(1), OWN)
    do_all(worker)
    assert robot.finished == "overloaded"
    assert "--kv-memory" in robot.faults[0].text
    assert robot.faults[0].retry_after_s == 0
    assert worker.sessions == 0


def test_who_waits_for_room_gets_it_from_those_that_never_stop() -> None:
    """Pushed drafts follow one another at once: without a rule such a session would stay."""
    worker = toy_cloud(1)
    robots = [
        ReplayingRobot(
            worker, opening(nonce, draft_identity="toy"), OWN, depth=1, generates=nonce > 0
        )
        for nonce in range(3)
    ]
    ends: list[int] = []
    while worker.pending:
        worker.run_one()
        ends += [n for n, robot in enumerate(robots) if robot.finished and n not in ends]
        begun = [len(robot.tokens) for robot in robots]
        if max(begun) > 45:
            assert min(begun) > 0, "one is nearly done and another has not begun"
    assert [tuple(robot.tokens) for robot in robots] == [OWN] * 3


@pytest.fixture(scope="module")
def embedded() -> object:
    return load(EMBEDDED / "target", threads=1)


def test_the_embedded_target_with_memory_for_four_of_sixteen_robots(embedded: object) -> None:
    """Their tokens are those of robots that were never evicted."""
    target: Any = embedded
    spec = target.spec(rules_text(), 12)
    base = replace(opening(), tokenizer_digest=b"", max_tokens=12)
    openings = [
        replace(
            base,
            nonce=nonce,
            instruction=f"find the {color} {thing}",
            jpeg=jpeg(nonce % 8),
            rule=rule,
            policy=SamplingPolicy(0.0 if rule == "greedy" else 0.8, seed=nonce),
            draft_identity="replayed",
        )
        for nonce, (color, thing, rule) in enumerate(
            (color, thing, rule)
            for color in ("red", "blue", "green", "silver")
            for thing in ("chair", "bottle")
            for rule in ("greedy", "coupled")
        )
    ]
    alone = Worker(target, spec, limits=WorkerLimits(kv_bytes=2**30))
    own = [ReplayingRobot(alone, one, (), generates=True) for one in openings]
    do_all(alone)
    assert alone.kv_memory.evictions == 0
    answers = [tuple(robot.tokens) for robot in own]
    sessions: list[Any] = [robot.stream.session for robot in own]
    rows = max(session.target._cache.capacity for session in sessions)
    room = 4 * rows * target.transformer.cache_layout.row_bytes
    ticks = count()  # what is chosen for a pass depends on times, and must not on this machine's
    limits = WorkerLimits(kv_bytes=room, batch_rows=96)
    tight = Worker(target, spec, limits=limits, clock=lambda: next(ticks) / 1e3)
    robots = [
        ReplayingRobot(
            tight,
            one,
            answer,
            pushes=nonce % 3 == 0,
            wrong=nonce % 3 == 1,
            generates=nonce % 4 == 3,
        )
        for nonce, (one, answer) in enumerate(zip(openings, answers, strict=True))
    ]
    do_all(tight)
    assert [tuple(robot.tokens) for robot in robots] == answers
    assert [robot.faults for robot in robots if robot.faults] == []
    assert tight.kv_memory.evictions > 12
    assert tight.kv_memory.restored_rows > 0
    assert tight.kv_memory.peak <= room
