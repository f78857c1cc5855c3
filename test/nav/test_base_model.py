"""Bases that do not do what they are told: dead bands, lags, drift; and what is made of that."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from helpers.rover import Rover

from edge_cloud_spec.nav import navigator
from edge_cloud_spec.nav.motion import (
    BLOCKED,
    REACTION,
    Axis,
    Goal,
    Limits,
    Motion,
)
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import STOP_AND_GO, Settings

STEPS = (
    *(f"move {way} {size}" for way in ("forward", "backward") for size in ("small", "large")),
    *(f"turn {side} {size}" for side in ("left", "right") for size in ("small", "medium")),
)
FORWARD = "move forward medium"


def standing(limits: Limits | None = None, answer: str = "", seed: int = 0, **base: Any) -> Rover:
    """A robot that stands to decide, on this base; without an answer it says anything."""
    random, settings = Random(seed), Settings(drive=STOP_AND_GO, limits=limits or Limits())
    return Rover(lambda seen: answer or random.choice(STEPS), lambda number: 0.2, settings, **base)


def commissioned(lag: float, dead: tuple[float, float]) -> Limits:
    move, turn = (Axis(response=lag, braking=lag, slowest=slowest) for slowest in dead)
    return Limits(move=move, turn=turn)


@pytest.mark.parametrize("dead", [(0.0, 0.0), (0.05, 0.1), (0.1, 0.2), (0.2, 0.3)])
@pytest.mark.parametrize("known", [False, True], ids=["default", "commissioned"])
def test_a_base_with_a_dead_band_arrives(dead: tuple[float, float], known: bool) -> None:
    rover = standing(commissioned(0.2, dead) if known else None, lag=0.2, dead=dead)
    rover.until(lambda: rover.done > 25, 120.0)
    assert rover.navigator.counts["not_arrived"] == 0, rover.reports
    for step in rover.steps.values():
        if step.end is not None:
            size, covered, _ = step.covered(rover.settings)
            near = math.radians(5) if step.action.verb == "turn" else 0.05
            assert covered == pytest.approx(size, abs=near)


@pytest.mark.parametrize("each", [1, 2, 5, 10])
def test_odometry_that_is_slow_does_for_a_base_that_is_slow(each: int) -> None:
    rover = standing(commissioned(0.3, (0.1, 0.2)), lag=0.3, dead=(0.1, 0.2), odometry_each=each)
    rover.until(lambda: rover.done > 20, 120.0)
    assert rover.navigator.counts["not_arrived"] == 0, rover.reports
    for step in rover.steps.values():
        if step.end is not None:
            size, covered, _ = step.covered(rover.settings)
            assert covered <= 1.5 * size + (math.radians(5) if step.action.verb == "turn" else 0.05)


def test_a_base_that_is_held_is_blocked_and_one_that_is_slow_is_not() -> None:
    rover = standing(answer=FORWARD)
    rover.blocked = True
    rover.until(lambda: len(rover.reports) > 1)
    assert all(BLOCKED in report for report in rover.reports)
    slow = standing(answer=FORWARD, lag=0.8)
    slow.until(lambda: slow.done > 5)
    assert not slow.reports


def test_a_pulse_is_as_fast_as_moves_the_base_or_none() -> None:
    slowest = 0.2
    motion = Motion(Goal(distance=0.3), Limits(move=Axis(slowest=slowest)), 0.0, here := Pose())
    speeds = []
    for tick in range(80):
        step = motion.step(0.05 * tick, here)
        if step.done:
            break
        speeds.append(step.velocity.vx)
        here = replace(here, x=min(0.25, here.x + 0.05 * step.velocity.vx))
    after = speeds[round(motion.duration / 0.05) + 1 :][:10]  # then its budget ends
    assert after and all(speed == 0.0 or speed >= slowest for speed in after)


@pytest.mark.parametrize("waits", [True, False])
def test_who_stands_to_decide_looks_once_the_body_rests(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not waits:  # what it would see else: a control
        monkeypatch.setattr(navigator, "REST_S", 0.0)
    rover, rolling = standing(lag=0.3, seed=3), []
    for _ in range(20):
        before = len(rover.requests)
        rover.until(lambda before=before: len(rover.requests) > before)  # type: ignore[misc]
        taken = rover.frames[rover.requests[-1]].taken
        path, turn = rover.made(taken - 0.05, taken + 0.05)
        rolling.append(path > 0.05 * 0.1 or turn > math.radians(5) * 0.1)
    assert any(rolling) != waits


def test_a_base_that_never_rests_is_decided_on_all_the_same() -> None:
    rover = standing(answer="turn left small")
    rover.drift = 0.3
    rover.until(lambda: rover.done > 3)


def test_odometry_that_falters_again_and_again_does_not_make_a_motion_expire() -> None:
    rover = standing(answer=FORWARD)
    rover.until(lambda: rover.navigator.moving)
    for _ in range(5):
        rover.odometry = False
        rover.run(0.3)
        rover.odometry = True
        rover.run(0.15)
    rover.until(lambda: rover.done > 0)
    assert rover.navigator.counts["expired"] == 0 and not rover.reports


def test_a_base_that_moves_by_itself_is_told_of_once() -> None:
    rover = standing(answer="stop")
    rover.run(5.0)
    rover.sway = 0.02
    rover.run(5.0)
    assert not rover.reports, "it rests, or trots where it is"
    rover.sway, rover.drift = 0.0, math.radians(7.6)
    rover.run(8.0)
    [report] = rover.reports
    assert "the base moves though nothing is commanded" in report and "degrees/s" in report


@pytest.mark.parametrize("within", [0.0, 0.2, 0.35, 1.0])
def test_it_is_no_faster_than_it_stands_within(within: float) -> None:
    limits = Limits(stops_within=within, move=Axis(braking=0.3, overshoot=0.08))
    assert limits.top_speed <= limits.speed
    if within:
        assert limits.move.stopping(limits.top_speed) <= within + 1e-9
    motion = Motion(Goal(distance=2.0), limits, 0.0)
    fastest = max(motion.step(0.05 * tick).velocity.vx for tick in range(60))
    assert fastest == pytest.approx(limits.top_speed, abs=0.01)
    assert REACTION * fastest < limits.move.stopping(fastest)
