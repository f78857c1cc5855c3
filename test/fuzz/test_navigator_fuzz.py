"""Random events to the navigator break no promise; a navigator that breaks one is found out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fuzz import Broken, spoil
from fuzz.navigator import episode, run

from edge_cloud_spec.nav import free_space, motion, obstacles, plausibility
from edge_cloud_spec.nav import navigator as navigating
from edge_cloud_spec.nav.answer_sequencer import AnswerSequencer, HeardAnswer
from edge_cloud_spec.nav.budget import NOTHING_USED, Budget
from edge_cloud_spec.nav.detour import Detour
from edge_cloud_spec.nav.events import Drive, Effect, Halt, Instruction
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.free_space import FreeSpace
from edge_cloud_spec.nav.motion import Motion
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.obstacles import Obstacles
from edge_cloud_spec.nav.plausibility import Plausibility
from edge_cloud_spec.nav.pose import Velocity
from edge_cloud_spec.nav.settings import NavigatorSettings, Unverified
from edge_cloud_spec.nav.status import IMPLAUSIBLE_HOLD, WAYS, NavCode, StopLatch
from edge_cloud_spec.nav.steps import Goal


def test_a_sample_of_random_events_breaks_no_promise() -> None:
    counts = run(20_000, seed=5)
    assert counts["steps"] > 60 and counts["commands"] > 800
    assert counts["unverified steps"] > 5 and counts["stops"] > 40
    assert counts["steps that took over"] > 10
    assert counts["commands near a thing"] > 50 and counts["in the way"] > 0
    assert counts["commands where it is blind elsewhere"] > 20 and counts["falls"] > 0
    assert counts["ways that are clear"] > 0
    assert counts["held for another publisher"] > 5
    assert counts["steps that may go around"] > 20 and counts["commands to a side"] > 10


def test_what_a_base_makes_while_nothing_comes_is_not_held_against_the_navigator() -> None:
    assert episode("12 67", 2000)["bases held"] > 0  # two pauses, of 1.7 s and 0.35 s


EAGER = {way: (what, (-1.0, -1.0)) for way, (what, _) in plausibility.EXCESSES.items()}
# The seed, and the number of the episode, that find what is wrong there soon: (2, 0) where none is.
SOON = {"TICK_GAP_S": (1, 1), "problem": (1, 4), "stopping": (1, 10)}
SOON |= {"limits": (2, 2), "goal": (2, 2), "_instruct": (2, 2), "no_faster": (2, 2)}
SOON |= {"configure": (2, 4), "blindness": (2, 26), "_objection": (2, 9), "_latch": (2, 10)}
SOON |= {"_drives_on": (2, 13), "_here": (2, 24), "receive": (3, 4), "seconds_to": (3, 0)}
SOON |= {"free_space": (3, 0), "_see": (2, 6)}
SOON |= {"UNSEEN_KEPT_S": (12, 61), "reference": (2, 37), "_detour": (3, 4)}
SOON |= {"slowed": (2, 1), "missing": (2, 1), "_hold_fallen": (3, 8)}

# What is wrong: each gets what is right first.


def _forgets_to_wait(stop: Any, latch: StopLatch, *given: Any) -> None:
    stop(latch, *given)
    latch._awaits = False


def _moves_on_old_frames(objection: Any, self: Navigator, settled: HeardAnswer, now: float) -> str:
    words = replace(settled.words, stops=self.stops)
    return objection(self, replace(settled, words=words, frame_time=now), now)


def _goes_twice_as_far(goal_of: Any, *given: Any) -> Goal:
    goal: Goal = goal_of(*given)
    return Goal(2.0 * goal.distance, 2.0 * goal.angle)


def _goes_on(instruct: Any, self: Navigator, event: Instruction, now: float) -> list[Effect]:
    running, self._run = self._run, None
    effects = instruct(self, event, now)
    self._run = None if self.stop_latch.why else running
    return effects


def _only_notes(_: Any, self: Navigator, settings: NavigatorSettings, now: float) -> list[Effect]:
    self.settings = self.odometer.settings = self.obstacles.settings = settings
    return []


def _forgets(receive: Any, self: AnswerSequencer, *given: Any) -> HeardAnswer | None:
    settled = receive(self, *given)
    if settled is not None:
        self._answers.clear()
    return settled


def _creeps_backwards(along: Any, *given: Any) -> Velocity:
    velocity = along(*given)
    slow = max(velocity.speed, abs(velocity.wz)) < 0.1
    return Velocity(-velocity.vx, velocity.vy, -velocity.wz) if slow else velocity


def _holds_no_base(latch: Any, self: Navigator, cause: str, *given: Any) -> list[Effect]:
    return [Halt()] if cause == IMPLAUSIBLE_HOLD else latch(self, cause, *given)


def _stops_at_once(stopping: Any, *given: Any) -> tuple[float, float, float]:
    rate, _, lasts = stopping(*given)
    return rate, 0.0, lasts / 3


def _says_all_is_clear(right: Any, *given: Any) -> FreeSpace:
    return replace(right(*given), clear=WAYS)


def _sees_the_nearest(meets: Any, self: ObstacleSettings, points: Any, *given: Any) -> Any:
    return meets(self, points[np.hypot(*points.T).argsort()[:1]], *given[:-1], self.margin)


def _goes_around_for_anybody(detour: Any, self: Navigator, settled: HeardAnswer, goal: Goal) -> Any:
    return detour(self, replace(settled, verified=True), Goal(abs(goal.distance)))


def _goes_farther_aside(reference: Any, *given: Any) -> tuple[float, float]:
    aside, slope = reference(*given)
    return 3.0 * aside, slope


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "what"),
    [
        (StopLatch, "refusal", "", "while the robot is held|without a newer instruction"),
        (StopLatch, "stop", _forgets_to_wait, "without a newer instruction"),
        (StopLatch, "code", NavCode.NONE, "another publisher is not told of"),
        (navigating, "goal_of", _goes_twice_as_far, "more than the largest step"),
        (Navigator, "_objection", _moves_on_old_frames, "from before the release"),
        (Unverified, "limits", lambda _, self, limits: limits, "beyond the limit"),
        (Unverified, "goal", lambda _, self, goal: goal, "a long move on unverified words"),
        (motion, "_sped_up", lambda _, given, wanted, *more: wanted, "within"),
        (navigating, "TICK_GAP_S", 10.0, "after the last one's end"),
        (motion, "COMMAND_PERIOD_S", 1.0, "valid for too long"),
        (Navigator, "_instruct", _goes_on, "the instruction before"),
        (Navigator, "configure", _only_notes, "old parameters"),
        (Navigator, "_drives_on", lambda *_: True, "before the end of another"),
        (Motion, "lasts", math.inf, "of a step that may"),
        (Navigator, "_used_since", lambda *_: NOTHING_USED, "of a step that may"),
        (Budget, "grant", lambda _, self, wanted, now: wanted, "of a step that may"),
        (
            *(Drive, "__init__"),
            lambda init, self, velocity, until, stop_by=0.0: init(self, velocity, until),
            "of a step that may",
        ),
        (Motion, "_along", _creeps_backwards, "against the step's direction"),
        (
            *(AnswerSequencer, "receive"),
            lambda receive, self, words, *more: receive(self, replace(words, age=0.0), *more),
            "old frame of the move",
        ),
        (AnswerSequencer, "receive", _forgets, "carried out again"),
        (Obstacles, "slowed", lambda _, self, wanted, now: wanted, "towards|without a scan"),
        (
            *(Obstacles, "receive"),
            lambda receive, self, scan, now: receive(self, replace(scan, problem=""), now),
            "towards|without a scan",
        ),
        (
            *(Obstacles, "missing"),
            lambda missing, self, now: "" if self._seen else missing(self, now),
            "without a scan",
        ),
        (obstacles, "blindness", lambda _, *given: "", "a blind command"),
        (obstacles, "UNSEEN_KEPT_S", 0.0, "towards"),
        (ObstacleSettings, "stopping", _stops_at_once, "towards"),
        (ObstacleSettings, "seconds_to", _sees_the_nearest, "towards"),
        (obstacles, "free_space", _says_all_is_clear, "said to be clear towards"),
        (free_space, "_see", lambda *_: True, "said to be clear where it is blind"),
        (free_space, "blindness", lambda *_: "", "said to be clear where it is blind"),
        (Navigator, "_hold_fallen", lambda *_: [], "a fall without a halt"),
        (Plausibility, "problem", lambda *_: "", "far against the commands"),
        (plausibility, "EXCESSES", EAGER, "a base that follows is held"),
        (Navigator, "_latch", _holds_no_base, "while the robot is held|with no step under way"),
        (Velocity, "no_faster", lambda _, velocity, speed: velocity, "beyond the limit"),
        (Navigator, "_detour", _goes_around_for_anybody, "must not go around"),
        (Detour, "reference", _goes_farther_aside, "beyond its ellipse|of a step that may"),
        (
            *(Obstacles, "_here"),
            lambda _, self, seen, now: (seen.points, 0.0),
            "towards|without a scan",
        ),
    ],
)
def test_a_navigator_that_is_wrong_is_found_out(
    owner: Any, name: str, wrong: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, owner, name, wrong)
    with pytest.raises(Broken, match=what):
        run(200_000, *SOON.get(name, (2, 0)))
