"""A base that does not do what it is told is held before it goes far; one that does never is."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import cycle
from random import Random

import pytest
from helpers.drill import reports
from helpers.faulty_base import BAD, GOOD, FaultyBase, Kind, drive
from helpers.lagging_base import moved
from helpers.rover import BOX, Rover

from edge_cloud_spec.nav.budget import CommandedMotion
from edge_cloud_spec.nav.events import EStop, Hold, Instruction, Odometry
from edge_cloud_spec.nav.limits import Limits
from edge_cloud_spec.nav.odometer import Odometer
from edge_cloud_spec.nav.plausibility import AGAINST_BOUNDS, Plausibility
from edge_cloud_spec.nav.pose import Pose, Velocity
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import NavCode

SIGNS = "look at the signs"
BOUNDS = {  # m against its commands, degrees against them, m of path until it is held
    "moves inverted": (0.25, 5, 0.35),
    "moves inverted, slow": (0.35, 5, 0.65),
    "moves inverted, noise of 1 cm": (0.32, 5, 0.45),
    "all inverted": (0.25, 60, 0.4),
    "turns inverted": (0.05, 110, 5.0),
    "ahead and left swapped": (0.2, 5, 0.7),
    "ahead is left": (0.2, 5, 0.8),
    "odometry's yaw inverted": (0.1, 5, 5.0),
    "odometry turned by 90 degrees": (0.1, 5, 0.8),
    "odometry turned by 180 degrees": (0.1, 5, 0.35),
    "1.9 times its commands": (0.1, 5, 4.0),
    "3 times its commands": (0.1, 5, 1.5),
    "goes on after a stop": (0.1, 5, 2.5),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", BAD)
def test_a_base_that_does_not_do_what_it_is_told_is_held_and_told_of(name: str, seed: int) -> None:
    out = drive(BAD[name], seed)
    assert "the base" in out.held and SIGNS in out.held
    metres, degrees, path = BOUNDS[name]
    assert out.against <= metres and out.travelled <= path
    assert out.turned <= math.radians(degrees)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", GOOD)
def test_a_base_that_does_what_it_is_told_is_never_held(name: str, seed: int) -> None:
    assert drive(GOOD[name], seed, 15.0).held == ""


def turning(kind: Kind, limits: Limits, each: int) -> Rover:
    """A robot that is told small turns to either side, with odometry of each so many 10 ms."""
    sides = cycle(("left", "right"))
    rover = Rover(
        lambda seen: f"turn {next(sides)} small",
        lambda number: 0.5,
        NavigatorSettings(limits=limits),
    )
    base = FaultyBase(kind, Random(0), rover.now)
    rover.base = base  # type: ignore[assignment]
    rover.tell = lambda told: (
        None if round(100 * rover.now) % each else replace(told, pose=base.pose)
    )
    begun = rover.now
    while rover.now < begun + 20.0 and not rover.navigator.stop_latch.why:
        rover.run(0.05)
    return rover


QUICK = Limits(turn_speed=2.5, turn_acceleration=20.0)


@pytest.mark.parametrize("each", [2, 5])
@pytest.mark.parametrize("limits", [Limits(), QUICK], ids=["default", "quick"])
@pytest.mark.parametrize("lag", [0.001, 0.05])
def test_a_quick_base_is_held_though_its_steps_are_short_and_each_reverses_the_last(
    lag: float, limits: Limits, each: int
) -> None:
    kind = replace(BAD["all inverted"], dead=0.0, lag=lag)
    rover = turning(kind, limits, each)
    assert "against" in rover.navigator.stop_latch.why
    assert rover.base.against[1] <= math.radians(120)  # type: ignore[attr-defined]


@pytest.mark.parametrize("limits", [Limits(), QUICK], ids=["default", "quick"])
@pytest.mark.parametrize("name", GOOD)
def test_short_steps_to_either_side_hold_no_good_base(name: str, limits: Limits) -> None:
    assert turning(GOOD[name], limits, 2).navigator.stop_latch.why == ""


def test_without_odometry_nothing_is_noticed() -> None:
    out = drive(BAD["moves inverted"], 0, 10.0, odometry="off")
    assert out.held == "" and out.against > 10 * AGAINST_BOUNDS[0], "a control of the others"


def inverted() -> Rover:
    """A robot that is held, since its base moves against its commands."""
    rover = Rover(lambda seen: "move forward large", lambda number: 0.2)
    rover.base = FaultyBase(BAD["moves inverted"], Random(0), rover.now)  # type: ignore[assignment]
    rover.until(lambda: rover.navigator.status.code is NavCode.IMPLAUSIBLE)
    return rover


def test_who_is_held_for_its_base_moves_only_after_somebody_has_released_it() -> None:
    rover = inverted()
    rover.run(1.0)
    here = rover.base.pose
    for number in range(5):  # a client that repeats its instruction releases nothing
        assert "was not taken" in reports(rover.on(Instruction(f"{BOX} {number}")))
        rover.run(0.5)
    assert rover.base.pose.x == pytest.approx(here.x, abs=1e-3)
    assert rover.navigator.status.state == "stopped"
    rover.on(EStop(False))  # nobody had pressed it
    assert rover.navigator.status.state == "stopped"
    rover.on(EStop(True))
    rover.on(EStop(False))
    rover.run(2.0)
    assert math.dist((here.x, here.y), (rover.base.pose.x, rover.base.pose.y)) < 0.02
    rover.instruct("find the door")
    rover.until(lambda: rover.navigator.status.code is NavCode.IMPLAUSIBLE)
    rover.run(1.0)
    assert abs(rover.base.pose.x - here.x) < 0.35, "no further than the first time"


@pytest.mark.parametrize("how", ["parameters", "activation"])
def test_what_sees_to_the_robot_releases_its_base(how: str) -> None:
    rover = inverted()
    if how == "parameters":
        rover.navigator.configure(replace(rover.settings, frame_age=9.0), rover.now)
    else:
        rover.on(Hold("not active", "active"))
        rover.on(Hold("", "active"))
    assert "publish an instruction" in rover.navigator.status.detail


def test_a_jump_of_odometry_neither_holds_a_good_base_nor_hides_a_bad_one() -> None:
    for kind, held in ((Kind(), False), (BAD["moves inverted"], True)):
        rover, random = Rover(lambda seen: "move forward large", lambda number: 0.2), Random(1)
        rover.base = FaultyBase(kind, random, rover.now)  # type: ignore[assignment]
        aside = [0.0, 0.0]

        def tell(told: Odometry, aside: list[float] = aside, random: Random = random) -> Odometry:
            if random.random() < 0.01:
                aside[:] = random.uniform(-3, 3), random.uniform(-3, 3)
            here = told.pose
            return replace(told, pose=Pose(here.x + aside[0], here.y + aside[1], here.yaw))

        rover.tell = tell
        begun = rover.now
        while rover.now < begun + 20.0 and not rover.navigator.stop_latch.why:
            rover.run(0.05)
        assert bool(rover.navigator.stop_latch.why) == held
        assert not held or rover.made(begun, rover.now)[0] < 1.0


@pytest.mark.parametrize(("jump", "held"), [(-0.9, False), (-0.36, True)])
def test_a_jump_between_two_seldom_messages_is_not_against_the_commands(
    jump: float, held: bool
) -> None:
    """What a base could have made in that time is."""
    odometer, commanded = Odometer(NavigatorSettings()), CommandedMotion()
    plausibility = Plausibility(odometer, commanded)
    commanded.command(Velocity(0.9), 9.0)
    x, said = 0.0, []
    for number in range(8):
        x, now = x + (jump if number == 5 else 0.18), 10.0 + 0.2 * number
        odometer.receive(Odometry(Pose(x), round(now * 1e9)), now)
        said.append(plausibility.problem(Limits(speed=0.9), now))
    assert any(said) == held


@pytest.mark.parametrize("place", [Pose(1.5), Pose(0.0, -0.5, 0.9)])
def test_odometry_that_begins_anew_in_a_motion_is_not_against_its_commands(place: Pose) -> None:
    """Whichever part of the pose has jumped, and by how little the others."""
    for velocity in (Velocity(0.9), Velocity(wz=-1.8)):
        odometer, commanded = Odometer(NavigatorSettings()), CommandedMotion()
        plausibility = Plausibility(odometer, commanded)
        commanded.command(velocity, 9.0)
        here = place
        for number in range(8):
            now = 10.0 + 0.2 * number
            here = Pose() if number == 5 else moved(here, velocity, 0.2)
            odometer.receive(Odometry(here, round(now * 1e9)), now)
            assert plausibility.problem(Limits(speed=0.9, turn_speed=1.8), now) == ""


@pytest.mark.parametrize("period", [0.05, 0.2, 0.45])
@pytest.mark.parametrize(
    ("told", "made"),
    [
        (Velocity(0.5), Velocity(-0.5, wz=5.0)),
        (Velocity(0.5), Velocity(-0.5, wz=1.0)),
        (Velocity(wz=0.8), Velocity(0.6, wz=-0.8)),
        (Velocity(0.4), Velocity(1.2, wz=1.0)),
    ],
)
def test_what_goes_on_is_no_jump_whatever_else_the_base_does(
    told: Velocity, made: Velocity, period: float
) -> None:
    """A base that spins while it moves wrongly makes as much of each sample as a jump."""
    odometer, commanded = Odometer(NavigatorSettings()), CommandedMotion()
    plausibility = Plausibility(odometer, commanded)
    commanded.command(told, 9.0)
    here, said = Pose(), []
    for number in range(round(3.0 / period)):
        now, here = 10.0 + period * number, moved(here, made, period)
        odometer.receive(Odometry(here, round(now * 1e9)), now)
        said.append(plausibility.problem(Limits(), now))
    assert any(said)


@pytest.mark.parametrize("told", [Velocity(0.9), Velocity(wz=1.8)])
def test_messages_of_elsewhere_are_jumps_there_and_back_however_many(told: Velocity) -> None:
    random = Random(0)
    odometer, commanded = Odometer(NavigatorSettings()), CommandedMotion()
    plausibility = Plausibility(odometer, commanded)
    commanded.command(told, 9.0)
    here = Pose()
    for number in range(600):
        now, here = 10.0 + 0.2 * number, moved(here, told, 0.2)
        away = Pose(random.uniform(-5, 5), random.uniform(-5, 5), random.uniform(-3, 3))
        seen = away if random.random() < 0.1 else here
        odometer.receive(Odometry(seen, round(now * 1e9)), now)
        assert plausibility.problem(Limits(speed=0.9, turn_speed=1.8), now) == ""


def test_a_base_that_is_carried_or_driven_by_others_while_it_rests_is_not_held() -> None:
    rover = Rover(lambda seen: "stop", lambda number: 0.2)
    rover.run(4.0)
    for _ in range(50):  # 0.5 m/s, by hand or joystick
        rover.base.pose = replace(rover.base.pose, x=rover.base.pose.x - 0.1)
        rover.run(0.2)
    assert rover.navigator.stop_latch.why == "" and "nothing is commanded" in rover.reports[0]
