"""The figures that docs/safety.md promises: other tests of a bound take it from the code."""

from __future__ import annotations

import math
from pathlib import Path

from edge_cloud_spec.nav import (
    answer_sequencer,
    budget,
    limits,
    motion,
    navigator,
    obstacles,
    odometer,
    people,
    plausibility,
    sight,
    watchdog,
)
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nodes import lidar, stop_guard
from edge_cloud_spec.pilot import decision_loop

SAFETY = Path(__file__).parents[2] / "docs/safety.md"
SHARES = {0.25: "a quarter", 0.5: "half"}
DEFAULT = NavigatorSettings()


def degrees(radians: float) -> str:
    return f"{math.degrees(radians):g} degrees"


def extra(bounds: tuple[float, float]) -> str:
    return f"{100 * bounds[0]:g} cm or {degrees(bounds[1])}"


def bound(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:g} m or {degrees(bounds[1])}"


PROMISES = (
    f"at most {DEFAULT.frame_age:g} s old (`frame_age`), at most "
    f"{answer_sequencer.FRAME_FUTURE_S} s ahead of the camera's clock",
    f"within {odometer.FRAME_AWAY_M:g} m and {degrees(odometer.FRAME_AWAY_RAD)} of where the frame",
    f"at most {DEFAULT.limits.speed} m/s and the turning {DEFAULT.limits.turn_speed} rad/s",
    f"at most {budget.BUDGET_RATIO} of its size plus {extra(budget.BUDGET_EXTRA)}, whatever",
    f"turn by up to {degrees(budget.MOVE_TURN_RAD)} and go sideways by up to "
    f"{100 * budget.MOVE_ASIDE_M:g} cm",
    f"{DEFAULT.unverified.speed} m/s over ground, {DEFAULT.unverified.turn_speed} rad/s, "
    f"{DEFAULT.unverified.move} m a decision",
    f"planned time plus {motion.STEP_GRACE_S:g} s, and never lasts longer than "
    f"`command_lifetime` | {DEFAULT.command_lifetime:g} s",
    f"after {odometer.OVERDUE_PERIODS} of the usual periods without a message | "
    f"{1000 * odometer.OVERDUE_SOONEST_S:g} ms at 50 Hz",
    f"leans by more than {math.degrees(DEFAULT.tilt_limit):.0f} degrees (`tilt_limit`)",
    f"further away than {motion.JUMP_RATIO} of what was commanded plus {bound(motion.JUMP_EXTRA)}",
    f"{bound(plausibility.AGAINST_BOUNDS)} against its commands",
    f"for {plausibility.STOP_SETTLES_S:g} s after a stop",
    f"made less than {SHARES[motion.STEP_PROGRESS_SHARE]} of what was commanded",
    f"After {navigator.OBSTACLE_WAIT_S:g} s the step ends as not arrived",
    f"within {people.NEAR_PEOPLE_M:g} m of the body, to any side, allows "
    f"{SHARES[obstacles.BESIDE_PEOPLE_SHARE]} of the top speed",
    "{} to {} s, of two scans".format(*obstacles.PEOPLE_SCANS_S),
    f"{DEFAULT.obstacles.timeout} s (`obstacles.timeout`)",
    f"told to move for {decision_loop.MOVED_S:g} s without a new picture",
    f"the base, {watchdog.STOP_REPEATS} times, 0.5 s after the last command's end",
    f"No motion continues after a gap of {navigator.TICK_GAP_S} s",
    f"for {stop_guard.GuardSettings().silence} s after a `true` (`silence`",
    f"after {navigator.FRAME_DRIVEN_S:g} s of driving",
    f"decisions take longer than {navigator.QUICK_DECISION_S} s",
    f"further away than {motion.REACH_RATIO} of its size plus {extra(budget.BUDGET_EXTRA)}",
    f"makes less than {SHARES[navigator.DRIVE_PROGRESS_SHARE]} of its commands for "
    f"{navigator.DRIVE_PROGRESS_S:g} s",
    f"{100 * DEFAULT.obstacles.margin:g} cm wider (`margin`)",
    f"the reaction time ({limits.REACTION_S} s)",
    f"{100 * DEFAULT.obstacles.clearance:g} cm of `clearance`",
    f"counts for {obstacles.UNSEEN_KEPT_S:g} s more**: points within {obstacles.UNSEEN_KEPT[0]} m",
    f"more than `range_max` or {sight.FARTHEST_M:g} m",
    f"more than {degrees(lidar.COARSEST_RAD)} apart",
    f"if {100 * sight.TELLING_SHARE:g} % of its rays tell something",
    f"needs {SHARES[sight.SIDE_RAYS_SHARE]} of a scan's rays** into each of the two "
    f"{sight.SIDE_DEGREES} degrees",
    f"by {sight.SIDE_RETURNS} points to either side",
)


def test_the_figures_that_safety_promises_are_those_of_the_code() -> None:
    text = " ".join(SAFETY.read_text("utf-8").split())
    assert not [promise for promise in PROMISES if promise not in text]
