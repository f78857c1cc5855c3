"""A robot that stops where the floor ends, as far as a cloud shows the floor."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from helpers.stairs import ENDS, GOOD, LIDARS, NO_FLOOR, STAND_M, Walk, flat, stairs, step, walk

from edge_cloud_spec.nav.floor import BEARINGS, DIRECTIONS, JUDGED_M, plane_of
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.obstacles import FLOOR_ENDS, NO_EDGES
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.sight import LEFT, RIGHT, cloud_of

AHEAD = [0, -1]  # the sectors
FEW, DEPTH = LIDARS["few rays"], LIDARS["a depth camera"]


@pytest.mark.parametrize("number", [0, 2, 9, 13, 14, 19])
def test_no_robot_goes_over_an_edge(number: int) -> None:
    """Of stairs, steps of 10 cm and more, platforms, and a floor under which nothing is seen."""
    done = walk(number, ENDS, sways=6.0)
    assert not done.fell and FLOOR_ENDS in " ".join(done.reports)


@pytest.mark.parametrize("number", [3, 4, 12, 14])
def test_a_good_floor_stops_nobody_whose_body_pitches_and_whose_lidar_is_noisy(number: int) -> None:
    done = walk(number, GOOD, sways=10.0)
    assert not done.seen and not done.reports and done.base.pose.x > 2.5


@pytest.mark.parametrize("name", LIDARS)
def test_an_edge_is_found_however_the_lidar_is_mounted(name: str) -> None:
    for lean in (0.0, 8.0):
        walk = Walk(stairs(0.85), replace(LIDARS[name], noise=0.01), sways=lean)
        walk.drill.now += 0.1  # in its gait
        floor = cloud_of(walk.places(), walk.settings)[1]
        edges = floor.edges(np.ones(DIRECTIONS, bool))[AHEAD]
        assert ((edges > 0.65) & (edges < 0.95)).all(), edges
        walk.ground = flat
        floor = cloud_of(walk.places(), walk.settings)[1]
        assert not floor.drops.any() and (floor.seen[AHEAD] > JUDGED_M).all()


def test_a_floor_that_returns_nothing_for_a_moment_lets_it_go_on() -> None:
    done = Walk(flat, replace(FEW, noise=0.01), start=Pose(-1.0))
    done.run(3.0)
    black = done.drill.now + 0.6, done.drill.now + 1.1
    done.blank = lambda now: black[0] < now < black[1]
    done.act("move forward large")
    assert done.seen[FLOOR_ENDS] or "not seen" in str(done.seen), "it does not drive on blindly"
    assert "done" in done.act("move forward large") and done.base.pose.x > 0.0


def test_who_turns_in_place_or_goes_back_needs_no_floor_ahead() -> None:
    done = Walk(stairs(0.6), FEW)
    done.run(0.5)
    assert FLOOR_ENDS in done.act("move forward small")
    assert {"left", "right"} <= {*done.drill.navigator.status.clear}, "as it says"
    assert "done" in done.act("turn left large") and "done" in done.act("turn right large")
    assert "done" in done.act("move backward small") and not done.fell
    close = Walk(stairs(0.5), FEW)  # a corner of the body turns to where the edge is
    close.run(0.5)
    assert "done" in close.act("turn left large")


def test_an_edge_beside_the_way_stops_nobody() -> None:
    for side in (1.0, -1.0):
        done = Walk(lambda x, y, side=side: np.where(side * y > 0.6, -0.5, 0.0), FEW)  # type: ignore[misc]
        done.run(1.0)
        assert "done" in done.act("move forward large") and not done.seen


def test_who_sees_edges_goes_around_only_on_floor_that_is_shown() -> None:
    """A camera that looks ahead shows no floor beside the body, where a scan sees no wall."""
    done = Walk(flat, LIDARS["high on a mast"])
    done.run(4.0)
    obstacles = done.drill.navigator.obstacles
    around = obstacles.around(done.drill.now)
    assert around is not None and {*around[1]} == {LEFT, RIGHT}
    obstacles._floor_shown[np.sin(BEARINGS) > 0.9] = 0
    around = obstacles.around(done.drill.now)
    assert around is not None and [*around[1]] == [RIGHT]


def test_a_robot_whose_lidar_never_shows_the_floor_says_so_once_and_moves() -> None:
    done = Walk(lambda x, y: np.where(x < 3.0, 0.0, 1.0), NO_FLOOR)
    done.run(4.0)
    assert "done" in done.act("move forward small") and "done" in done.act("move forward small")
    done.run(2.0)
    assert done.reports == [NO_EDGES] and not done.drill.navigator.obstacles.sees_edges
    done = Walk(lambda x, y: np.where(x < 3.0, 0.0, 1.0), FEW)
    done.run(6.0)
    assert done.reports == [] and done.drill.navigator.obstacles.sees_edges


def test_the_plane_is_the_floor_on_which_it_stands_and_not_what_is_lower_or_on_it() -> None:
    random, settings = Random(5), ObstacleSettings(points="points")
    for _ in range(20):
        slopes = np.array([random.uniform(-0.15, 0.15), random.uniform(-0.15, 0.15), -STAND_M])
        ground = step(random.uniform(0.5, 1.0), random.uniform(0.1, 1.0))
        x, y = np.random.default_rng(random.getrandbits(32)).uniform(-1.3, 1.3, (2, 1500))
        z = slopes @ np.stack([x, y, np.ones(1500)]) + ground(x, y)
        z = np.where((y > 0.6) & (x < 0.0), z + 0.08, z)  # a board lies there
        plane = plane_of(np.stack([x, y, z], 1), settings)
        assert plane == pytest.approx(slopes, abs=0.03)
