"""When the swept footprint meets a point, beside a body that is moved on in small steps."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.pose import Velocity

BODY = ObstacleSettings(front=0.4, rear=0.3, side=0.2, margin=0.05)
STEP, LONG = 0.004, 6.0  # s
FASTEST = 0.6 + 1.5 * 1.3  # m/s at which a point within 1.3 m comes nearer at most
HARDLY = 1e-3 + FASTEST * STEP  # m that it may pass into the footprint between two steps

Place = tuple[float, float]


def enters(points: list[Place], velocity: Velocity, wide: list[float]) -> list[float]:
    """When each point is within the body, wider by ``wide``, first; the body takes small steps."""
    at, heading, now, seconds = 0.0 + 0.0j, 0.0, 0.0, [math.inf] * len(points)
    while now < LONG:
        ahead = complex(math.cos(heading), math.sin(heading))
        for number, (x, y) in enumerate(points):
            seen = (complex(x, y) - at) * ahead.conjugate()
            more = wide[number]
            within = -BODY.rear - more < seen.real < BODY.front + more
            if within and abs(seen.imag) < BODY.side + more:
                seconds[number] = min(seconds[number], now)
        middle = heading + velocity.wz * STEP / 2
        at += complex(velocity.vx, velocity.vy) * complex(math.cos(middle), math.sin(middle)) * STEP
        heading, now = heading + velocity.wz * STEP, now + STEP
    return seconds


def check(points: list[Place], velocity: Velocity) -> None:
    """Where it meets a point it comes in there; and it comes into none before."""
    array = np.array(points)
    told = BODY.seconds_to(array, velocity, BODY.margin)
    assert told.shape == (len(points),) and not np.isnan(told).any() and (told >= 0.0).all()
    more = [
        min(BODY.margin, max(x - BODY.front, -BODY.rear - x, abs(y) - BODY.side)) for x, y in points
    ]
    surely = enters(points, velocity, [m - HARDLY for m in more])
    maybe = enters(points, velocity, [m + HARDLY for m in more])
    for point, seconds, late, early in zip(points, told, surely, maybe, strict=True):
        assert seconds <= late + STEP, (point, velocity, seconds, late)
        begins_inside = early == 0.0
        assert seconds >= LONG - STEP or begins_inside or seconds >= early - STEP, (point, velocity)


places = st.tuples(st.floats(-1.2, 1.2), st.floats(-1.2, 1.2))
speeds = st.one_of(st.just(0.0), st.floats(-0.6, 0.6))
turns = st.one_of(st.just(0.0), st.floats(-1.5, 1.5), st.floats(-2e-4, 2e-4))


@given(st.lists(places, min_size=8, max_size=8), speeds, st.floats(-0.2, 0.2), turns)
def test_it_meets_what_a_body_that_is_moved_in_small_steps_meets(
    points: list[Place], vx: float, vy: float, wz: float
) -> None:
    check(points, Velocity(vx, vy, wz))


CORNERS = [
    (x, y)
    for far in (-1e-3, 0.0, 1e-3, 0.05, 0.051)
    for x, y in product((-0.3 - far, 0.0, 0.4 + far), (-0.2 - far, 0.0, 0.2 + far))
]


@pytest.mark.parametrize("vx", [-0.5, 0.0, 0.5])
@pytest.mark.parametrize("wz", [-1.0, 0.0, 1e-5, 1.0])
def test_edges_corners_insides_and_what_is_behind(vx: float, wz: float) -> None:
    check(CORNERS, Velocity(vx, 0.0, wz))


BESIDE, RIGHT_AHEAD, BEHIND = (0.1, -0.23), (0.43, -0.1), (-0.33, 0.0)  # 3 cm from the body


@pytest.mark.parametrize(
    ("point", "velocity", "may"),
    [
        (BESIDE, Velocity(0.5, 0.0, 0.0), False),  # along it: legs sway
        (BESIDE, Velocity(-0.5, 0.0, 0.0), False),
        (BESIDE, Velocity(0.5, 0.02, 0.0), False),  # hardly away
        (BESIDE, Velocity(0.0, 0.1, 0.0), True),
        (BESIDE, Velocity(0.0, -0.1, 0.0), False),
        (BESIDE, Velocity(0.0, 0.0, 1.0), True),  # its flank goes away, ahead of the middle
        (BESIDE, Velocity(0.0, 0.0, -1.0), False),
        (RIGHT_AHEAD, Velocity(-0.5, 0.0, 0.0), True),
        (RIGHT_AHEAD, Velocity(0.5, 0.0, 0.0), False),
        (RIGHT_AHEAD, Velocity(0.0, 0.0, -1.0), True),
        (RIGHT_AHEAD, Velocity(0.0, 0.0, 1.0), False),
        (BEHIND, Velocity(0.5, 0.0, 0.0), True),
        (BEHIND, Velocity(0.0, 0.1, 0.0), False),
    ],
)
def test_what_is_within_the_margin_only_gets_farther_away(
    point: Place, velocity: Velocity, may: bool
) -> None:
    (seconds,) = BODY.seconds_to(np.array([point]), velocity, BODY.margin)
    assert (seconds > 0.0) == may
    just_outside = np.array(point) * (1.0, 1.3) if point is BESIDE else np.array(point) * 1.3
    (seconds,) = BODY.seconds_to(just_outside[None], velocity, BODY.margin)
    assert seconds > 0.0
