"""A camera that repeats its pictures with new stamps stops the robot, whenever it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from random import Random

import pytest
from helpers import rover
from helpers.rover import CAMERA, Rover

from edge_cloud_spec.nav import navigator
from edge_cloud_spec.nav.budget import COMMAND_PERIOD_S
from edge_cloud_spec.nav.limits import Limits
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.pilot import decision_loop
from edge_cloud_spec.pilot.decision_loop import MOVED_S, SAME_PICTURE

ACTIONS = (
    "move forward large",
    "move forward small",
    "turn left large",
    "search",
    "move backward small",
)
SECONDS = 60.0
LIMITS = Limits()


class Camera:
    """Shows where the robot is; ``freeze`` has it repeat the newest ``count`` pictures."""

    def __init__(self) -> None:
        self.shown: list[bytes] = []
        self.repeats: cycle[bytes] | None = None

    def __call__(self, pose: Pose) -> bytes:
        if self.repeats is not None:
            return next(self.repeats)
        self.shown.append(f"{pose.x} {pose.y} {pose.yaw} {len(self.shown)}".encode())  # its noise
        return self.shown[-1]

    def freeze(self, count: int) -> None:
        self.repeats = cycle(self.shown[-count:])


def frozen(seed: int) -> tuple[Rover, Camera, float]:
    """A robot whose camera freezes while it goes its way, a minute later; and when that was."""
    random, camera = Random(seed), Camera()
    drive = random.choice(["stop_and_go", "continuous"])
    takes = random.uniform(0.05, 1.5)
    rover = Rover(
        lambda seen: random.choices(ACTIONS, [6, 2, 1, 1, 1])[0],
        lambda number: takes,
        NavigatorSettings(drive=drive),
        picture=camera,
        dead_time=random.choice([0.0, 0.15, 0.3]),
    )
    rover.until(lambda: rover.done > 0)
    rover.run(random.uniform(0.0, 8.0))
    camera.freeze(random.choice([1, 1, 2, 5]))
    at = rover.now
    rover.run(SECONDS)
    return rover, camera, at


# Told to move so long (a picture may be a period late), and then one more step to its end.
MOVED = MOVED_S + CAMERA * COMMAND_PERIOD_S
FAR = MOVED * LIMITS.speed + 1.5 * 0.9 + 0.05
TURNED = MOVED * LIMITS.turn_speed + math.radians(1.5 * 48.0 + 5.0)


@pytest.mark.parametrize("seed", range(10))
def test_whenever_a_camera_begins_to_repeat_its_pictures_the_robot_comes_to_rest(seed: int) -> None:
    rover, camera, at = frozen(seed)
    path, turned = rover.made(at, at + SECONDS)
    far, angle = LIMITS.speed * rover.dead_time, LIMITS.turn_speed * rover.dead_time
    assert path <= FAR + far and turned <= TURNED + angle, (path, turned)
    assert rover.made(rover.now - 30.0, rover.now) == (0.0, 0.0)
    said = rover.loop._published
    assert said and (said.state, said.detail) == ("following", SAME_PICTURE)
    assert rover.loop.instruction and rover.deciding is None, "it waits for pictures that change"
    rover.instruct("go somewhere else")
    rover.run(10.0)
    assert rover.made(rover.now - 9.0, rover.now) == (0.0, 0.0), "a program may repeat instructions"
    camera.repeats = None
    done = rover.done
    rover.until(lambda: rover.done > done)


def test_a_base_that_drifts_is_not_taken_for_one_that_stands() -> None:
    """Its heading stays, though turns against the drift are commanded."""
    camera = Camera()
    settings = NavigatorSettings(drive="stop_and_go")
    rover = Rover(lambda s: ACTIONS[0], lambda n: 0.3, settings, drift=0.17, picture=camera)
    rover.until(lambda: rover.done > 0)
    camera.freeze(1)
    rover.run(15.0)
    assert rover.loop.sees_the_same


def test_that_bound_is_what_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_loop, "MOVED_S", math.inf)
    rover, _, at = frozen(1)
    assert rover.made(at, rover.now)[0] > 2 * FAR


def without_noise(pose: Pose) -> bytes:
    return f"{pose.x:.4f} {pose.y:.4f} {pose.yaw:.4f}".encode()


SELDOM, OFTEN = (0.0, 0.0, 0.3, 2.5), (0.6, 0.9, 1.2, 1.45)  # s that a program stands still


def held(seed: int, gaps: Sequence[float] = SELDOM, most: float = 3.5) -> bool:
    """Whether a robot in a simulator, which is held by walls now and then, is taken for one whose
    camera is frozen, and so stands for ever; its program goes on for ``most`` s between gaps."""
    random = Random(seed)
    weights = [6.0, 2.0, *(random.random() for _ in ACTIONS[2:])]
    robot = Rover(
        lambda seen: random.choices(ACTIONS, weights)[0],
        lambda number: random.choice([0.05, 0.2, 0.5, 1.5]),
        NavigatorSettings(drive=random.choice(["stop_and_go", "continuous"])),
        picture=without_noise,
    )
    for _ in range(20):
        robot.blocked = random.random() < 0.5
        robot.now += random.choice(gaps)
        robot.run(random.uniform(0.1, most))
        if robot.loop.sees_the_same:
            robot.run(15.0)
            if robot.loop.sees_the_same:
                return True
    return False


@pytest.mark.parametrize("seed", range(6, 14))
def test_a_robot_that_walls_hold_is_not_taken_for_one_whose_camera_is_frozen(seed: int) -> None:
    assert not held(seed) and not held(seed, OFTEN, 0.6)


def test_it_would_be_if_time_in_which_a_program_stands_still_were_motion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rover, "TICK_GAP_S", decision_loop.WATCHED_S)
    assert sum(held(seed, OFTEN, 0.6) for seed in range(6, 14)) > 1


def test_it_would_be_without_the_stalls_that_the_navigator_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(navigator, "STALLED_LEAST", (math.inf, math.inf))
    assert held(7) and held(11)
