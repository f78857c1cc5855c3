"""A draft that arrives before its prompt is read is scored with it, and has no pass of its own."""

from __future__ import annotations

from typing import Any

from helpers.cloud.worker_robot import OWN, Costly, Robot, do_all, opening

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.lab.harness.scripted.model import ScriptedPrefill
from edge_cloud_spec.lab.harness.toy import spec_of
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
    robot.draft(draft)
    do_all(robot.worker)
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
