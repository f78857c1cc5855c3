"""The path over what a mission has seen: it goes around what lidars showed, and looks where nobody
has looked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from edge_cloud_spec.nav.answer import parse_action
from edge_cloud_spec.nav.free_space import RANGES, FreeSpace
from edge_cloud_spec.nav.pose import Pose, ahead_of, wrap
from edge_cloud_spec.pilot.costmap import REACH, SHUT_DECISIONS, Costmap, cost_to_go
from edge_cloud_spec.pilot.memory import MissionMemory

FRONT, SIDE = 0.42, 0.235
Segment = tuple[float, float, float, float]
Place = tuple[float, float]
ROOM: tuple[Segment, ...] = (
    (-3.0, -3.0, 3.0, -3.0),
    (3.0, -3.0, 3.0, 3.0),
    (3.0, 3.0, -3.0, 3.0),
    (-3.0, 3.0, -3.0, -3.0),
)
WALL: Segment = (0.0, -3.0, 0.0, 1.0)  # with a way around its upper end


def ranges_at(pose: Pose, walls: Sequence[Segment]) -> tuple[float, ...]:
    """What a lidar measures among these walls."""
    angles = pose.yaw + np.arange(RANGES) * math.tau / RANGES
    nearest = np.full(RANGES, math.inf)
    for x0, y0, x1, y1 in walls:
        dx, dy, wx, wy = np.cos(angles), np.sin(angles), x1 - x0, y1 - y0
        across = dx * wy - dy * wx
        with np.errstate(divide="ignore", invalid="ignore"):
            far = ((x0 - pose.x) * wy - (y0 - pose.y) * wx) / across
            along = ((x0 - pose.x) * dy - (y0 - pose.y) * dx) / across
        hit = (far > 0.0) & (along >= 0.0) & (along <= 1.0)
        nearest = np.where(hit, np.minimum(nearest, far), nearest)
    return tuple(nearest.tolist())


def space_at(pose: Pose, walls: Sequence[Segment]) -> FreeSpace:
    front = ahead_of(pose, FRONT)
    return FreeSpace(1.0, ranges=ranges_at(pose, walls), body=(FRONT, SIDE), front=front)


def follow(
    costmap: Costmap, pose: Pose, walls: Sequence[Segment], goal: Place | None
) -> list[Pose]:
    """The poses of a robot that goes some way along each leg and looks again."""
    poses = [pose]
    for _ in range(60):
        assert costmap.add(space_at(poses[-1], walls))
        path = costmap.path(goal)
        if path is None or (goal and math.dist(goal, (poses[-1].x, poses[-1].y)) < 0.6):
            break
        here = poses[-1]
        turned = Pose(here.x, here.y, here.yaw + path[0])
        poses.append(ahead_of(turned, min(path[1], 0.4)))
    return poses


def gap(pose: Pose, walls: Sequence[Segment]) -> float:
    """Metres from a pose to the nearest wall."""
    gaps = []
    for x0, y0, x1, y1 in walls:
        wall, off = np.array((x1 - x0, y1 - y0)), np.array((pose.x - x0, pose.y - y0))
        along = np.clip(off @ wall / (wall @ wall), 0.0, 1.0)
        gaps.append(float(np.hypot(*(off - along * wall))))
    return min(gaps)


def test_where_nothing_is_in_the_way_the_path_is_straight() -> None:
    costmap, pose = Costmap(), Pose(-1.0, 0.5, 0.3)
    assert costmap.add(space_at(pose, ROOM))
    path = costmap.path((1.0, 1.0))
    assert path is not None
    assert path[1] == pytest.approx(math.hypot(2.0, 0.5))
    assert wrap(path[0] + pose.yaw) == pytest.approx(math.atan2(0.5, 2.0))


@pytest.mark.parametrize("yaw", [0.0, 1.5, -2.5])
def test_a_path_leads_around_a_wall_and_keeps_away_from_it(yaw: float) -> None:
    walls, goal = (*ROOM, WALL), (1.5, -1.0)
    poses = follow(Costmap(), Pose(-1.5, -1.0, yaw), walls, goal)
    assert math.dist(goal, (poses[-1].x, poses[-1].y)) < 0.6
    assert min(gap(pose, walls) for pose in poses[1:]) > SIDE - 0.05
    length = sum(math.dist((a.x, a.y), (b.x, b.y)) for a, b in pairwise(poses))
    assert length < 1.4 * 2 * math.hypot(1.5, 2.3)


def test_without_its_wall_the_path_would_have_been_straight_on() -> None:
    """The control of the one above."""
    poses = follow(Costmap(), Pose(-1.5, -1.0, 0.0), ROOM, (1.5, -1.0))
    assert max(abs(pose.y + 1.0) for pose in poses) < 0.1


def test_it_looks_at_all_of_a_room_and_then_has_nowhere_left() -> None:
    """Also behind the wall, which nothing from the first place shows."""
    walls, costmap = (*ROOM, WALL), Costmap()
    poses = follow(costmap, Pose(-1.5, -1.0, 0.0), walls, None)
    assert len(poses) < 60 and costmap.path(None) is None
    assert max(pose.x for pose in poses) > 0.5, "it never looked behind the wall"


def test_what_is_gone_is_forgotten_and_what_has_come_is_gone_around() -> None:
    costmap, pose, goal = Costmap(), Pose(-1.5, -1.0, 0.0), (1.5, -1.0)
    for walls, straight in ((ROOM, True), ((*ROOM, WALL), False), (ROOM, True)):
        for _ in range(4):
            costmap.add(space_at(pose, walls))
        path = costmap.path(goal)
        assert path is not None and (abs(path[0]) < 0.1) == straight, (straight, path)


def test_what_is_shut_in_has_no_path_and_one_looks_elsewhere() -> None:
    walls, goal = (*ROOM, (0.0, -3.0, 0.0, 3.0)), (1.5, -1.0)
    costmap = Costmap()
    poses = follow(costmap, Pose(-1.5, -1.0, 0.0), walls, goal)
    assert max(pose.x for pose in poses) < 0.0, "it was led through the wall"
    assert costmap.path(goal) is None


@pytest.mark.parametrize("far", [3.5, 4.0, 4.2, 4.6, 5.5])
def test_no_path_leads_through_a_wall_as_far_as_a_lidar_shows_it(far: float) -> None:
    """Points beyond 4 m are not kept by the navigator."""
    wall, costmap = ((far, -30.0, far, 30.0), (-3.0, -30.0, -3.0, 30.0)), Costmap()
    space = space_at(Pose(), wall)
    kept = tuple(m if m <= 4.0 else math.inf for m in space.ranges)
    costmap.add(replace(space, ranges=kept))
    path = costmap.path((far + 1.0, 0.0))
    before = costmap._odds[REACH + round(10 * far) :, REACH]
    assert (before >= 0.0).all(), "what is behind the wall counts as free"
    assert path is None or path[1] > 4.0 or abs(path[0]) > 0.3


@pytest.mark.parametrize("seed", range(20))
def test_near_to_the_place_the_path_leads_to_it(seed: int) -> None:
    random, costmap = Random(seed), Costmap()
    place = -2.7, random.uniform(-2.0, 2.0)  # against a wall
    pose = Pose(place[0] + 0.7 + 0.2 * random.random(), place[1] + 0.2, random.uniform(-3, 3))
    costmap.add(space_at(pose, ROOM))
    path = costmap.path(place)
    assert path is not None
    assert path[1] == pytest.approx(math.dist(place, (pose.x, pose.y)))


@pytest.mark.parametrize("seed", range(20))
def test_where_its_corners_have_no_room_it_leaves_before_it_turns_to_the_place(seed: int) -> None:
    random, costmap = Random(seed), Costmap()
    place = -1.7, random.uniform(-1.0, 1.0)
    pose = Pose(-3.0 + 0.46, place[1], random.choice((-1, 1)) * math.pi / 2)
    turned_at = []
    for _ in range(8):
        costmap.add(space_at(pose, ROOM))
        path = costmap.path(place)
        assert path is not None
        if path[1] == pytest.approx(math.dist(place, (pose.x, pose.y))):
            break
        back = abs(path[0]) > math.pi / 2
        turn = wrap(path[0] + math.pi * back)
        turned_at += [gap(pose, ROOM)] * (abs(turn) > 0.8)
        pose = ahead_of(replace(pose, yaw=pose.yaw + turn), -path[1] if back else path[1])
    assert gap(pose, ROOM) > FRONT + 0.08, "its front has no room where it turns to the place"
    assert all(room > FRONT + 0.08 for room in turned_at)


def test_what_no_lidar_sees_is_neither_free_nor_in_the_way() -> None:
    costmap, pose = Costmap(), Pose()
    space = space_at(pose, ROOM)
    blind = tuple(m if n < 45 or n > 135 else math.nan for n, m in enumerate(space.ranges))
    costmap.add(FreeSpace(1.0, ranges=blind, body=space.body, front=space.front))
    behind, ahead = costmap.path((-2.0, 0.0)), costmap.path((2.0, 0.0))
    assert behind is not None and ahead is not None
    assert abs(behind[0]) == pytest.approx(math.pi) and ahead[0] == pytest.approx(0.0)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_told_it_says_a_leg_within_its_grid_or_none(seed: int) -> None:
    """Odometry that jumps, drops, covers, nothing at all, and places anywhere."""
    random, costmap, memory = Random(seed), Costmap(), MissionMemory()
    for step in range(30):
        walls = [w for w in (*ROOM, WALL) if random.random() < 0.9]
        pose = Pose(random.uniform(-2.5, 2.5), random.uniform(-2.5, 2.5), random.uniform(-9, 9))
        if random.random() < 0.2:
            pose = Pose(10.0 ** random.uniform(0, 6), -random.random(), 0.0)
        noisy = [
            random.choice((math.nan, math.inf, 0.0, 0.02, 1e30)) if random.random() < 0.1 else m
            for m in ranges_at(pose, walls)
        ]
        few = tuple(noisy[: random.choice((RANGES, RANGES, 7, 0))])
        front = ahead_of(pose, FRONT) if random.random() < 0.9 else None
        space = FreeSpace(1.0, ranges=few, body=(FRONT, SIDE), front=front)
        place = None if random.random() < 0.5 else (random.uniform(-30, 30), random.uniform(-3, 3))
        if costmap.add(space):
            path = costmap.path(place)
            assert path is None or (abs(path[0]) <= math.pi and 0.0 <= path[1] < 30.0), (step, path)
        told = memory.tell("it", space, tells_path=True)
        assert told.told and (front is not None or told.path is None)


def test_a_paths_cost_is_that_of_its_cells() -> None:
    cost, goals = np.ones((5, 7)), np.zeros((5, 7), bool)
    goals[2, 6], cost[:, 3] = True, np.inf
    assert np.isinf(cost_to_go(cost, goals)[2, 0])
    cost[4, 3] = 1.0
    found = cost_to_go(cost, goals)
    assert found[2, 0] == pytest.approx(2 + 4 * math.sqrt(2)) and found[2, 6] == 0.0


def box(x: float, y: float, half: float) -> tuple[Segment, ...]:
    """The four sides of a square thing."""
    a, b, c, d = x - half, x + half, y - half, y + half
    return (a, c, b, c), (b, c, b, d), (b, d, a, d), (a, d, a, c)


@pytest.mark.parametrize("far", [0.7, 1.0, 1.3, 1.6])
def test_no_path_leads_past_the_thing_to_face_it_from_behind(far: float) -> None:
    """The thing's own points are not in the way; backing over it would save the turn."""
    costmap = Costmap()
    costmap.add(space_at(Pose(), (*ROOM, *box(-far, 0.0, 0.15))))
    path = costmap.path((-far, 0.0))
    assert path is not None and path[1] < far + 0.01


@pytest.mark.parametrize("far", [6.0, 7.0, 9.0])
@pytest.mark.parametrize("sees_behind", [True, False])
def test_a_place_far_off_is_gone_to_whatever_is_seen_behind(far: float, sees_behind: bool) -> None:
    costmap, walls = Costmap(), ((-20.0, -20.0, -20.0, 20.0), (20.0, -20.0, 20.0, 20.0))
    space = space_at(Pose(), walls)
    seen = [m if sees_behind or n < 45 or n > 135 else math.nan for n, m in enumerate(space.ranges)]
    costmap.add(replace(space, ranges=tuple(seen)))
    path = costmap.path((far, 0.0))
    assert path is not None and path[1] > 2.0 and abs(path[0]) < 0.1


@pytest.mark.parametrize("gap_m", [0.40, 0.44, 0.8])
def test_a_door_farther_off_is_better_than_a_gap_in_which_the_body_does_not_fit(
    gap_m: float,
) -> None:
    """The door is beyond the cells in which headings count."""
    half, costmap = gap_m / 2, Costmap()
    walls = (
        *((x, -9.0, x, -half) for x in (2.0, 2.8)),
        *((x, half, x, 4.6) for x in (2.0, 2.8)),
        *((x, 6.0, x, 9.0) for x in (2.0, 2.8)),
        *((2.0, y, 2.8, y) for y in (-half, half, 4.6, 6.0)),
        (-4.0, -9.0, -4.0, 9.0),
    )
    for y in np.linspace(0.0, 5.0, 11):
        costmap.add(space_at(Pose(1.0, float(y), 0.0), walls))
        costmap.add(space_at(Pose(3.6, float(y), 0.0), walls))
    costmap.add(space_at(Pose(), walls))
    path = costmap.path((4.5, 0.0))
    assert path is not None and (path[0] > 0.5) == (gap_m < 0.5), path


@pytest.mark.parametrize("ahead", [True, False])
def test_where_the_navigator_does_not_let_it_go_the_path_leads_the_other_way(ahead: bool) -> None:
    """Out of a passage in which it cannot turn, at the other end."""
    sides = [(-1.0, y, 1.0, y) for y in (-0.3, 0.3)]
    walls, sign = (*ROOM, *sides), 1.0 if ahead else -1.0

    def told(pose: Pose, **free: float) -> float:
        """Cosine of the bearing of the first leg to a place at the end of the passage that is
        tried first."""
        costmap.add(replace(space_at(pose, walls), **free))
        path = costmap.path((sign * 2.5, 0.0))
        assert path is not None
        return sign * math.cos(path[0])

    costmap = Costmap()
    here, away = Pose(0.1 * sign), Pose(-0.2 * sign)
    shut, free = {"ahead" if ahead else "behind": 0.0}, {"ahead": 1.0, "behind": 1.0}
    assert told(here, **free) > 0.9
    assert told(here, **shut) < -0.9
    assert told(away, **free) < -0.9, "it remembers why"
    assert told(here, **free) > 0.9, "what was in the way has gone"
    assert told(here, **shut) < -0.9
    assert any(told(away, **free) > 0.9 for _ in range(SHUT_DECISIONS + 1)), "it may have gone"


@pytest.mark.parametrize("seed", range(30))
def test_a_leg_goes_somewhere_or_to_the_place(seed: int) -> None:
    """Also where only turns are left, in narrow places."""
    random, costmap = Random(seed), Costmap()
    wide, far = random.uniform(0.6, 1.2), random.uniform(0.5, 1.4)
    walls = ((-3.0, wide / 2, 3.0, wide / 2), (-3.0, -wide / 2, 3.0, -wide / 2))
    pose = Pose(0.0, random.uniform(-0.05, 0.05), random.uniform(-math.pi, math.pi))
    place = far, random.uniform(-wide / 2, wide / 2)
    costmap.add(space_at(pose, walls))
    path = costmap.path(place)
    assert path is not None
    assert path[1] > 0.05 or path[1] == pytest.approx(math.dist(place, (pose.x, pose.y)))


SEARCH = parse_action("search")


def memory_of(seen: Place) -> MissionMemory:
    """A mission in a room whose last answer saw the thing there, rad and m."""
    memory, space = MissionMemory(), space_at(Pose(), ROOM)
    assert SEARCH is not None
    memory.act("it", memory.tell("it", space, tells_path=True), SEARCH, seen)
    return memory


@pytest.mark.parametrize(
    ("seen", "there"),
    [((0.1, 1.2), False), ((-0.3, 0.5), False), ((0.1, 2.0), True), ((1.0, 1.2), True)],
)
def test_a_thing_that_is_not_where_it_should_be_in_the_picture_is_looked_for_again(
    seen: Place, there: bool
) -> None:
    memory, space = memory_of(seen), space_at(Pose(), ROOM)
    assert SEARCH is not None
    told = memory.tell("it", space, tells_path=True)
    assert told.seen == pytest.approx(seen)
    memory.act("it", told, SEARCH, None)  # alone, or cut before the reason
    assert memory.tell("it", space, tells_path=True).seen == told.seen
    memory.act("it", told, SEARCH, None, absent=True)
    again = memory.tell("it", space, tells_path=True)
    assert (again.seen is not None) == there
    assert again.path is not None and (again.path == told.path) == there


def test_another_mission_has_a_map_of_its_own() -> None:
    memory, pose = MissionMemory(), Pose(-1.5, -1.0, 0.0)
    assert SEARCH is not None
    for mission, walls in (("one", (*ROOM, WALL)), ("two", ROOM)):
        told = memory.tell(mission, space_at(pose, walls), tells_path=True)
        memory.act(mission, told, SEARCH, (-FRONT / 10, 2.5))
        path = memory.tell(mission, space_at(pose, walls), tells_path=True).path
        assert path is not None and (abs(path[0]) < 0.2) == (mission == "two")


def test_a_dialect_that_does_not_tell_the_path_costs_no_map() -> None:
    memory = MissionMemory()
    assert memory.tell("it", space_at(Pose(), ROOM)).path is None
