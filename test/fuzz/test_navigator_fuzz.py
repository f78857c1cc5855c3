"""Random events to the navigator break no promise; a navigator that breaks one is found out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fuzz import Broken
from fuzz.navigator import run

from edge_cloud_spec.nav import motion
from edge_cloud_spec.nav import navigator as navigating
from edge_cloud_spec.nav.answer_assembler import AnswerAssembler, Settled
from edge_cloud_spec.nav.events import Drive, Effect, Instruction, Scan, Words
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.motion import NOTHING, Budget, Motion
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.obstacles import Obstacles
from edge_cloud_spec.nav.pose import Velocity
from edge_cloud_spec.nav.settings import Settings, Unverified
from edge_cloud_spec.nav.status import StopLatch

Patch = pytest.MonkeyPatch


def test_a_sample_of_random_events_breaks_no_promise() -> None:
    counts = run(20_000, seed=5)
    assert counts["steps"] > 60 and counts["commands"] > 800
    assert counts["unverified steps"] > 5 and counts["stops"] > 100
    assert counts["steps that took over"] > 10
    assert counts["commands near a thing"] > 50 and counts["in the way"] > 0


def _forgets_to_wait(patch: Patch) -> None:
    stop = StopLatch.stop

    def stop_without_waiting(self: StopLatch, cause: str, why: str, now: float) -> None:
        stop(self, cause, why, now)
        self._awaits = False

    patch.setattr(StopLatch, "stop", stop_without_waiting)


def _moves_on_old_frames(patch: Patch) -> None:
    objection = Navigator._objection

    def about_now(self: Navigator, settled: Settled, now: float) -> str:
        words = replace(settled.words, stops=self.stops)
        return objection(self, replace(settled, words=words, frame_time=now), now)

    patch.setattr(Navigator, "_objection", about_now)


def _goes_on_for_another_instruction(patch: Patch) -> None:
    instruct = Navigator._instruct

    def unmoved(self: Navigator, event: Instruction, now: float) -> list[Effect]:
        running, self._run = self._run, None
        effects = instruct(self, event, now)
        self._run = None if self.stop_latch.why else running
        return effects

    patch.setattr(Navigator, "_instruct", unmoved)


def _goes_on_under_old_parameters(patch: Patch) -> None:
    def configure(self: Navigator, settings: Settings, now: float) -> list[Effect]:
        self.settings = self.odometer.settings = self.obstacles.settings = settings
        return []

    patch.setattr(Navigator, "configure", configure)


def _carries_out_again(patch: Patch) -> None:
    hear = AnswerAssembler.hear

    def forgets(self: AnswerAssembler, words: Words, now: float) -> Settled | None:
        settled = hear(self, words, now)
        if settled is not None:
            self._answers.clear()
        return settled

    patch.setattr(AnswerAssembler, "hear", forgets)


def _takes_an_old_frame_for_a_new_one(patch: Patch) -> None:
    hear = AnswerAssembler.hear

    def believes(self: AnswerAssembler, words: Words, now: float) -> Settled | None:
        return hear(self, replace(words, age=0.0), now)

    patch.setattr(AnswerAssembler, "hear", believes)


def _creeps_backwards(patch: Patch) -> None:
    along = Motion._along

    def reversed_when_slow(self: Motion, *given: Any) -> Velocity:
        velocity = along(self, *given)
        slow = max(velocity.speed, abs(velocity.wz)) < 0.1
        return Velocity(-velocity.vx, velocity.vy, -velocity.wz) if slow else velocity

    patch.setattr(Motion, "_along", reversed_when_slow)


class _WithoutEnd(Drive):
    def __init__(self, velocity: Velocity, until: float, stop_by: float = math.inf) -> None:
        super().__init__(velocity, until)


def _has_a_fresh_budget_at_each_replacement(patch: Patch) -> None:
    patch.setattr(Navigator, "_used_since", lambda self, frame, now: NOTHING)


def _takes_a_scan_that_is_none(patch: Patch) -> None:
    hear = Obstacles.hear

    def believes(self: Obstacles, scan: Scan, now: float) -> str:
        return hear(self, replace(scan, problem=""), now)

    patch.setattr(Obstacles, "hear", believes)


def _takes_an_old_scan(patch: Patch) -> None:
    missing = Obstacles.missing

    def ever(self: Obstacles, now: float) -> str:
        return missing(self, now) if not self._seen else ""

    patch.setattr(Obstacles, "missing", ever)


def _stops_at_once(patch: Patch) -> None:
    stopping = ObstacleSettings.stopping

    def quick(self: ObstacleSettings, *given: Any) -> tuple[float, float, float]:
        rate, _, lasts = stopping(self, *given)
        return rate, 0.0, lasts / 3

    patch.setattr(ObstacleSettings, "stopping", quick)


def _sees_only_what_is_nearest(patch: Patch) -> None:
    def nearest(self: ObstacleSettings, points: Any, *given: Any) -> Any:
        return meets(self, points[np.hypot(*points.T).argsort()[:1]], *given[:-1], self.margin)

    meets = ObstacleSettings.seconds_to
    patch.setattr(ObstacleSettings, "seconds_to", nearest)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ((StopLatch, "refusal", ""), "while the robot is held|without a newer instruction"),
        (_forgets_to_wait, "without a newer instruction"),
        (_moves_on_old_frames, "from before the release"),
        ((Unverified, "limits", lambda self, limits: limits), "beyond the limit"),
        ((Unverified, "goal", lambda self, goal: goal), "a long move on unverified words"),
        ((motion, "_sped_up", lambda given, wanted, *_: wanted), "within"),
        ((navigating, "STALL", 10.0), "after the last one's end"),
        ((navigating, "PERIOD", 1.0), "valid for too long"),
        (_goes_on_for_another_instruction, "the instruction before"),
        (_goes_on_under_old_parameters, "old parameters"),
        ((Navigator, "_drives_on", lambda self, run, now: True), "before the end of another"),
        ((Motion, "lasts", math.inf), "of a step that may"),
        (_has_a_fresh_budget_at_each_replacement, "of a step that may"),
        ((Budget, "grant", lambda self, wanted, now: wanted), "of a step that may"),
        ((navigating, "Drive", _WithoutEnd), "of a step that may"),
        (_creeps_backwards, "against the step's direction"),
        (_takes_an_old_frame_for_a_new_one, "old frame of the move"),
        (_carries_out_again, "carried out again"),
        ((Obstacles, "slowed", lambda self, wanted, now: wanted), "towards|without a scan"),
        (_takes_a_scan_that_is_none, "towards|without a scan"),
        (_takes_an_old_scan, "without a scan"),
        (_stops_at_once, "towards"),
        (_sees_only_what_is_nearest, "towards"),
        (
            (Obstacles, "_here", lambda self, seen, now: (seen.points, 0.0)),
            "towards|without a scan",
        ),
    ],
)
def test_a_navigator_that_is_wrong_is_found_out(wrong: Any, what: str, monkeypatch: Patch) -> None:
    if callable(wrong):
        wrong(monkeypatch)
    else:
        monkeypatch.setattr(*wrong)
    with pytest.raises(Broken, match=what):
        run(200_000, seed=2)
