"""Prompts are read in chunks, with the draft that waits for them, and again once evicted."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers.bounded_toy import SESSION_BYTES, BoundedToy
from helpers.cloud.replaying_robot import ReplayingRobot
from helpers.cloud.worker_robot import OWN, Costly, Robot, do_all, opening
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.lab.harness.scripted.model import ScriptedPrefill
from edge_cloud_spec.lab.harness.toy import ToyVlm, spec_of
from edge_cloud_spec.wire.messages import Opened, Verdict


class LongPrompts(Costly):
    """Its prompts are read in two steps, a second for each row."""

    def prefill(self, prompt: Any) -> Any:
        return ScriptedPrefill(lambda: self.session(prompt), 8, self._read)

    def _read(self, share: float) -> None:
        self.now += 8 * share


@pytest.mark.parametrize(
    ("verified", "is_read", "costs"),
    [
        (0, False, (4 + 3, 1.0 + 1 + 3)),  # half of the prompt, and the draft
        (0, True, (1.0 + 3, 1.0 + 1 + 3)),
        (2, False, (4 + 1.0 + 2 + 3, 1.0 + 1 + 3)),
    ],
    ids=[
        "the first verdict costs no pass and the next one does",
        "a draft that arrives later has a pass",
        "an answer that another verifier began is read first",
    ],
)
def test_a_draft_that_waits_for_its_prompt(
    verified: int, is_read: bool, costs: tuple[float, float]
) -> None:
    target: Any = LongPrompts(1)
    worker = Worker(target, spec_of(60), None, WorkerLimits(batch_rows=4), lambda: target.now)
    robot = Robot(worker)
    robot.say(opening(verified=OWN[:verified]))
    while not target.now:  # half of it
        worker.run_one()
    if is_read:
        do_all(worker)
    robot.base, robot.at = robot.last(Opened).base, verified
    for number, cost in enumerate(costs):
        before = target.now
        robot.settle(3)
        assert (robot.count(Verdict), robot.last(Verdict).path) == (number + 1, (0, 1, 2))
        assert target.now - before == cost
    # Nothing is learned of passes that were none.
    own_passes = 2 if is_read or verified else 1
    assert worker._scheduler.estimator.passes == own_passes


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
    assert [(tuple(robot.tokens), robot.faults) for robot in robots] == [(OWN, [])] * 64
    assert worker.kv_memory.evictions > 64
    assert worker.kv_memory.peak <= room * SESSION_BYTES


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


def test_a_prompt_that_never_fits_is_refused_at_once() -> None:
    worker = toy_cloud(0.5)
    robot = ReplayingRobot(worker, opening(1), OWN)
    do_all(worker)
    (fault,) = robot.faults
    assert (fault.code, fault.retry_after_s, worker.sessions) == ("overloaded", 0, 0)
    assert "--kv-memory" in fault.text


def test_who_waits_for_room_gets_it_from_those_that_never_stop() -> None:
    """Pushed drafts follow one another at once: without a rule such a session would stay."""
    worker = toy_cloud(1)
    opened = [opening(nonce, draft_identity="toy") for nonce in range(3)]
    robots = [
        ReplayingRobot(worker, one, OWN, depth=1, generates=nonce > 0)
        for nonce, one in enumerate(opened)
    ]
    while worker.pending:
        worker.run_one()
        begun = [len(robot.tokens) for robot in robots]
        assert max(begun) <= 45 or min(begun) > 0, "one is nearly done, another has not begun"
    assert [tuple(robot.tokens) for robot in robots] == [OWN] * 3
