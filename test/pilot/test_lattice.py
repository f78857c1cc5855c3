"""Paths over headings and cells: as cheap as Dijkstra's, and only where the body fits."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from edge_cloud_spec.pilot.lattice import (
    BACK_TIMES,
    HEADING_STEPS,
    HEADINGS,
    HEADINGS_RAD,
    TIGHT_COST,
    Lattice,
    LatticePath,
    State,
    nearest_heading,
)

FRONT, SIDE, KEEPS = 4.03, 2.02, 1.52  # cells, and none of them just there
EAST, NORTH = 0, HEADINGS // 4
BEFORE, ACROSS = (EAST, 4, 15), (NORTH, 15, 15)


def room(seed: int, walls: int = 12) -> tuple[Lattice, np.ndarray, np.ndarray]:
    """A lattice with walls and blocks, what is solid, and goals."""
    rng = np.random.default_rng(seed)
    solid = np.zeros((18, 15), bool)
    for _ in range(walls):
        i, j, w, d = (int(n) for n in rng.integers((0, 0, 1, 1), (18, 15, 4, 4)))
        solid[i : i + w, j : j + d] = True
    cost = np.where(rng.random(solid.shape) < 0.2, 1.5, 1.0)
    cost[solid] = math.inf
    goals = np.zeros((HEADINGS, *solid.shape), bool)
    row, column = rng.choice(np.argwhere(~solid))
    goals[int(rng.integers(HEADINGS)), row, column] = True
    return Lattice(cost, solid, FRONT, SIDE, KEEPS), solid, goals


def ends_at(goals: np.ndarray) -> np.ndarray:
    return np.where(goals, 0.0, math.inf)


def cheapest(lattice: Lattice, goals: np.ndarray, start: State) -> float:
    """What Dijkstra finds."""
    costs, queue = {start: 0.0}, [(0.0, start)]
    while queue:
        cost, state = heapq.heappop(queue)
        if goals[state]:
            return cost
        for more, _, following in lattice.following(state):
            if cost + more < costs.get(following, math.inf):
                costs[following] = cost + more
                heapq.heappush(queue, (cost + more, following))
    return math.inf


def test_each_heading_is_that_of_its_step() -> None:
    assert [nearest_heading(angle) for angle in HEADINGS_RAD] == list(range(HEADINGS))
    assert [nearest_heading(math.atan2(j, i) + math.tau) for i, j in HEADING_STEPS] == list(
        range(HEADINGS)
    )
    assert (np.diff(np.unwrap(HEADINGS_RAD)) > 0.0).all(), "they go around to the left"


@pytest.mark.parametrize("seed", range(12))
def test_a_path_is_as_cheap_as_dijkstras(seed: int) -> None:
    lattice, solid, goals = room(seed)
    rng = np.random.default_rng(seed)
    for _ in range(6):
        row, column = rng.choice(np.argwhere(~solid)).tolist()
        start = int(rng.integers(HEADINGS)), row, column
        far = lattice.costs_to_go(ends_at(goals), start)
        assert far[start] == pytest.approx(cheapest(lattice, goals, start))


@pytest.mark.parametrize("seed", range(4))
def test_a_state_costs_more_where_the_body_or_what_is_kept_before_it_meets_what_is_solid(
    seed: int,
) -> None:
    lattice, solid, _ = room(seed, walls=5)
    places, rng = np.argwhere(solid), np.random.default_rng(seed)
    for _ in range(60):
        heading, row, column = (int(n) for n in rng.integers((HEADINGS, 18, 15)))
        cos, sin = math.cos(HEADINGS_RAD[heading]), math.sin(HEADINGS_RAD[heading])
        off = places - (row, column)
        along, aside = off @ (cos, sin), np.abs(off @ (-sin, cos))
        strip = aside <= SIDE
        if solid[row, column]:
            continue
        touches = bool((strip & (np.abs(along) <= FRONT)).any())
        state, length = (heading, row, column), math.hypot(*HEADING_STEPS[heading])
        assert (lattice._stand[state] >= TIGHT_COST) == touches
        for moves, sign in (
            (lattice._ahead / length, 1),
            (lattice._back / length / BACK_TIMES, -1),
        ):
            kept = strip & (sign * along >= FRONT) & (sign * along <= FRONT + KEEPS)
            assert (moves[state] - lattice._stand[state] > TIGHT_COST - 1.0) == kept.any()


@pytest.mark.parametrize("seed", range(12))
def test_a_leg_ends_in_the_grid_and_where_nothing_is_solid(seed: int) -> None:
    lattice, solid, goals = room(seed)
    ends = ends_at(goals)
    reached = lattice.costs_to_go(ends, (0, 0, 0))
    for start in np.argwhere(np.isfinite(reached))[:: 97 + seed].tolist():
        state = (start[0], start[1], start[2])
        far, leg = (
            lattice.costs_to_go(ends, state),
            LatticePath(lattice, ends, state, (0, 0)).first_leg,
        )
        assert not solid[leg] and min(far[:, leg[0], leg[1]]) <= far[state] + 1e-9


def corridor(width: int) -> np.ndarray:
    """A gap of so many cells to the east, between walls."""
    solid = np.zeros((31, 31), bool)
    solid[14:17] = True
    solid[14:17, 15 - width // 2 : 15 - width // 2 + width] = False
    return solid


@pytest.mark.parametrize(("width", "fits"), [(3, False), (5, True), (7, True)])
def test_a_body_goes_through_a_gap_along_it(width: int, fits: bool) -> None:
    solid = corridor(width)
    cost = np.where(solid, math.inf, 1.0)
    lattice = Lattice(cost, solid, FRONT, SIDE, KEEPS)
    goals = np.zeros((HEADINGS, 31, 31), bool)
    goals[:, 27, 15] = True
    far = {start: lattice.costs_to_go(ends_at(goals), start)[start] for start in (BEFORE, ACROSS)}
    assert (far[BEFORE] < TIGHT_COST) == fits
    assert far[ACROSS] > TIGHT_COST, "across the gap its ends touch the walls"


def test_it_turns_where_there_is_room_before_a_gap() -> None:
    """From beside the gap: away from the wall, and not with its corners along it."""
    solid = corridor(5)
    lattice = Lattice(np.where(solid, math.inf, 1.0), solid, FRONT, SIDE, KEEPS)
    goals = np.zeros((HEADINGS, 31, 31), bool)
    goals[:, 27, 15] = True
    along, ends = (NORTH, 11, 8), ends_at(goals)  # facing along the wall, beside it
    far = lattice.costs_to_go(ends, along)
    leg = LatticePath(lattice, ends, along, (0, 0)).first_leg
    assert leg[0] <= 11 and leg[1] > 8, "along the wall, and no nearer to it"
    path, state = [along], along
    while far[state] > 0.0:
        _, _, state = min((cost + far[s], sign, s) for cost, sign, s in lattice.following(state))
        path.append(state)
    assert all(lattice._stand[state] < TIGHT_COST for state in path)
    through = [heading for heading, row, _ in path if 14 <= row <= 16]
    nearly_along = {EAST, EAST + 1, HEADINGS - 1}
    assert through and set(through) <= nearly_along
