"""What a lidar's rays tell, and whether it sees where the robot goes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.lidar import BODY, FARTHEST, NEAREST, hidden, scan_of
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.footprint import Mount, ObstacleSettings
from edge_cloud_spec.nav.motion import BLIND
from edge_cloud_spec.nav.pose import Velocity
from edge_cloud_spec.nav.sight import (
    BODY_EDGE_M,
    LidarSight,
    blindness,
    cloud_of,
    ends_of,
    rays_of_scan,
)

FORWARD, BACK, LEFT = Velocity(0.4), Velocity(-0.4), Velocity(wz=0.8)
CLOUD = ObstacleSettings(points="points")
NOTHING = [math.nan, 0.0, -0.0, -math.inf, 0.06, 0.03, -1.0, FARTHEST + 1.0]
ANGLES = np.radians(np.arange(-180.0, 180.0))


def told(rays: np.ndarray, velocity: Velocity, source: str = "scan") -> str:
    return blindness([LidarSight.of(source, rays, BODY)], velocity, BODY.reach)


@given(
    says=st.sampled_from(NOTHING),
    begin=st.integers(-180, 179),
    wide=st.integers(0, 350),
    where=st.sampled_from([0, 180]),
)
def test_less_than_a_quarter_of_the_rays_to_a_side_of_the_way_is_blind(
    says: float, begin: int, wide: int, where: int
) -> None:
    rays = scan_of([], [(begin, begin + wide)], says)
    velocity = FORWARD if where == 0 else BACK
    shares = [
        1.0 - hidden(np.arange(where + side, where + side + 31), [(begin, begin + wide)]).mean()
        for side in (-30, 0)
    ]
    assert bool(told(rays, velocity)) == (min(shares) < 0.25), told(rays, velocity)
    windows = [(at, at + 61) for at in range(30, 330, 60)] + [(-30, 1), (0, 31)]
    shares = [
        1.0 - hidden(np.arange(*window), [(begin, begin + wide)]).mean() for window in windows
    ]
    assert bool(told(rays, LEFT)) == (min(shares) < 0.25)


def test_the_sentence_says_where_it_is_blind_and_how_many_rays_it_has() -> None:
    rays = scan_of([], [(-90.0, 90.0)])
    why = told(rays, FORWARD)
    assert why.startswith(f"{BLIND}: scan sees too little ahead (0 of 31 rays); is it covered?")
    assert told(rays, BACK) == ""
    assert "too little behind" in told(scan_of([], [(90.0, 270.0)]), BACK)
    assert "too little to its left (" in told(scan_of([], [(30.0, 100.0)]), LEFT)


@pytest.mark.parametrize("says", NOTHING)
def test_a_scan_of_which_next_to_nothing_tells_something_is_refused(says: float) -> None:
    for few in (0, 1, 3):
        ranges = np.full(360, says)
        ranges[[180, 0, 90][:few]] = 7.9
        with pytest.raises(ValueError, match=f"{few} of 360 rays tell anything .* covered"):
            rays_of_scan(ranges, ANGLES, NEAREST, FARTHEST, BODY)


@pytest.mark.parametrize(
    ("says", "farthest", "why"),
    [
        (math.inf, math.inf, "no ray of the scan meets anything"),
        (FARTHEST, FARTHEST, "no ray of the scan meets anything"),
        (3e38, 3e38, "no ray of the scan meets anything"),
        (1e30, 3e38, "0 of 360 rays tell anything"),
        (2000.0, math.inf, "0 of 360 rays tell anything .* in metres"),
    ],
)
def test_a_constant_without_a_return_and_millimetres_are_no_free_way(
    says: float, farthest: float, why: str
) -> None:
    ranges = np.full(360, says)
    with pytest.raises(ValueError, match=why):
        rays_of_scan(ranges, ANGLES, NEAREST, farthest, BODY)
    with pytest.raises(ValueError, match=r"360 points are farther than 500 m|0 of 360 rays tell"):
        cloud_of(np.stack([ranges, ranges, np.zeros(360)], 1) + 600.0, CLOUD)
    ranges[::2] = 3.0
    sight = LidarSight.of("scan", rays_of_scan(ranges, ANGLES, NEAREST, farthest, BODY), BODY)
    assert len(sight.points) == 180, "what has a return is seen"


@pytest.mark.parametrize("wall_mm", [400.0, 2500.0])
def test_a_scan_in_millimetres_is_refused_however_near_things_are(wall_mm: float) -> None:
    with pytest.raises(ValueError, match=r"range_max of the scan is 12000 m; .* millimetres"):
        rays_of_scan(np.full(360, wall_mm), ANGLES, 50.0, 12000.0, BODY)


def test_a_cloud_whose_bytes_have_another_order_is_refused() -> None:
    places = np.random.default_rng(4).uniform(-4.0, 4.0, (400, 3)).astype("<f4")
    assert len(cloud_of(places.astype(float), CLOUD)[0]) == 400
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"is_bigendian"):
        cloud_of(places.view(">f4").astype(float), CLOUD)


@pytest.mark.parametrize("says", [math.nan, 0.0])
def test_a_room_in_which_a_third_of_the_rays_is_lost_and_a_field_with_a_tree_are_seen(
    says: float,
) -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        ranges = rng.uniform(0.7, 6.0, 360)
        ranges[rng.random(360) < 1 / 3] = says
        rays = rays_of_scan(ranges, ANGLES, NEAREST, FARTHEST, BODY)
        assert not any(told(rays, velocity) for velocity in (FORWARD, BACK, LEFT)), seed
    field = np.full(360, math.inf)
    with pytest.raises(ValueError, match="all are inf or range_max; is it covered"):
        rays_of_scan(field, ANGLES, NEAREST, FARTHEST, BODY)
    field[7] = 9.0
    rays = rays_of_scan(field, ANGLES, NEAREST, FARTHEST, BODY)
    assert not any(told(rays, velocity) for velocity in (FORWARD, BACK, LEFT))


@pytest.mark.parametrize("field", [(-35.0, 35.0), (-60.0, 60.0), (-135.0, 135.0)])
def test_what_looks_ahead_by_its_build_lets_the_robot_move_and_turn(
    field: tuple[float, float],
) -> None:
    rays = scan_of([], field=field)
    assert not any(told(rays, velocity) for velocity in (FORWARD, BACK, LEFT))
    covered = scan_of([], [(0.0, 90.0)], field=field)
    assert told(covered, FORWARD) and told(covered, LEFT), "a hand on its left half"
    assert "no lidar looks ahead" in told(scan_of([], field=(90.0, 270.0)), FORWARD)


def test_each_lidar_must_see_where_it_looks() -> None:
    free, covered = (
        LidarSight.of("scan", scan_of([], sectors), BODY) for sectors in ([], [(-90.0, 90.0)])
    )
    floor = np.random.default_rng(1).uniform((-3, -3, -0.31), (3, 3, -0.29), (500, 3))
    clouds = [
        LidarSight.of("points", cloud_of(places, CLOUD)[0], CLOUD)
        for places in (floor, floor[floor[:, 0] < 0.0])
    ]
    assert not blindness([free, clouds[0]], FORWARD, BODY.reach)
    assert "scan sees too little" in blindness([covered, clouds[0]], FORWARD, BODY.reach)
    assert "points sees too little" in blindness([free, clouds[1]], FORWARD, BODY.reach)


@given(st.integers(-180, 179), st.floats(-0.3, 0.4), st.floats(-0.15, 0.15))
def test_what_is_too_near_to_measure_stands_at_the_bodys_edge(at: int, x: float, y: float) -> None:
    settings = replace(BODY, scan_at=Mount(x=x, y=y))
    ranges = np.full(360, 5.0)
    ranges[at + 180] = -math.inf
    rays = rays_of_scan(ranges, ANGLES, NEAREST, FARTHEST, settings)
    (place,) = ends_of(rays, settings.scan_at)[[at + 180]]
    (beyond,) = settings.beyond(place[None])
    assert -1e-9 < beyond <= BODY_EDGE_M + 1e-9
    assert math.atan2(place[1] - y, place[0] - x) == pytest.approx(math.radians(at), abs=1e-6)
    points = LidarSight.of("scan", rays, settings).points
    assert np.isclose(points, place).all(1).any(), "an obstacle"


@pytest.mark.parametrize(
    ("nearest", "farthest", "mount", "why"),
    [
        (0.05, 0.0, Mount(), "range_min of the scan is 0.05 and range_max 0"),
        (0.05, math.nan, Mount(), "range_max nan"),
        (math.nan, 9.0, Mount(), "range_min of the scan is nan"),
        (math.inf, math.inf, Mount(), "range_min of the scan is inf"),
        (-1.0, 9.0, Mount(), "range_min of the scan is -1"),
        (0.7, 9.0, Mount(x=0.2), r"nearer than 0.70 m \(range_min\), up to 0.48 m from the body"),
        (0.6, 9.0, Mount(x=-0.3), "up to 0.55 m from the body; set obstacles.clearance to 0.55"),
    ],
)
def test_a_scan_that_does_not_see_near_the_body_or_has_no_bounds_is_refused(
    nearest: float, farthest: float, mount: Mount, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        rays_of_scan(np.full(360, 3.0), ANGLES, nearest, farthest, replace(BODY, scan_at=mount))
    boom = replace(BODY, scan_at=Mount(x=0.9))
    assert len(rays_of_scan(np.full(360, 3.0), ANGLES, 0.05, 9.0, boom)) == 360
    if "clearance" in why:
        settings = replace(BODY, scan_at=mount, clearance=0.55)
        assert len(rays_of_scan(np.full(360, 3.0), ANGLES, nearest, farthest, settings)) == 360


def test_without_a_return_a_cloud_has_no_point_wherever_the_lidar_is() -> None:
    settings = replace(CLOUD, points_at=Mount(x=0.6))
    places = np.random.default_rng(2).uniform((1, -1, -0.1), (3, 1, 0.3), (400, 3))
    places[::2] = 0.0
    places[1::40] = math.nan
    rays = cloud_of(places, settings)[0]
    assert len(rays) == 190 and (ends_of(rays, settings.points_at)[:, 0] > 1.0).all()


@pytest.mark.parametrize(
    ("low", "high", "sees"),
    [
        ((0.6, -2.0, -0.31), (3.0, 2.0, -0.29), True),  # floor
        ((-1.2, -1.2, 2.2), (1.2, 1.2, 2.4), False),  # ceiling: none of it is looked through
        ((-0.3, -0.1, -0.1), (0.4, 0.1, 0.3), False),  # within the body
        ((-2.0, -2.0, -0.1), (-0.6, 2.0, 0.3), False),  # behind alone
        ((0.6, 0.05, -0.1), (3.0, 2.0, 0.3), False),  # to the left alone
    ],
)
def test_a_cloud_sees_ahead_by_its_returns_between_the_heights(
    low: tuple[float, ...], high: tuple[float, ...], sees: bool
) -> None:
    places = np.random.default_rng(3).uniform(low, high, (600, 3))
    try:
        why = told(cloud_of(places, CLOUD)[0], FORWARD, "points")
    except ValueError as error:
        why = str(error)
    assert ("" if sees else "covered") in why and bool(why) != sees


@given(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0), st.floats(0.2, 3.0))
def test_a_clouds_ray_sees_as_far_as_it_is_within_the_heights(
    mounted: float, height: float, far: float
) -> None:
    """Beside a ray that is followed in small parts."""
    settings = replace(CLOUD, points_at=Mount(z=mounted))
    parts = np.linspace(0.0, 1.0, 20_001)
    z = mounted + parts * (height - mounted)
    within = (z >= settings.lowest) & (z <= settings.highest)
    seen = far * parts[within].max(initial=0.0)
    ahead = np.array([[5.0, 0.0, 0.1 - mounted], [far, 0.0, height - mounted]])
    ray = cloud_of(ahead, settings)[0][1]
    assert ray[1] == pytest.approx(seen, abs=1e-3 + far * 1e-4)
    assert bool(ray[2]) == within[-1]
