"""The base that tests of motions run on does what is commanded, and knows what it has made."""

from __future__ import annotations

import pytest
from helpers.lagging_base import Base

from edge_cloud_spec.nav.events import Drive, Halt
from edge_cloud_spec.nav.pose import Velocity


def test_the_base_covers_what_was_commanded_and_has_a_watchdog() -> None:
    base = Base(lag=0.1, now=0.0)
    base.obey(Drive(Velocity(vx=0.5), until=0.05))
    covered = sum(vx * dt for vx, _, _, dt in base.run(0.55))
    assert not base.stands
    covered += sum(vx * dt for vx, _, _, dt in base.run(3.0))
    assert covered == pytest.approx(0.5 * 0.55, abs=1e-3) and base.stands
    assert base.pose.x == pytest.approx(covered, abs=0.01)
    base.obey(Drive(Velocity(wz=1.0), until=3.05, stop_by=3.1))
    assert sum(wz * dt for _, _, wz, dt in base.run(5.0)) == pytest.approx(0.1, abs=1e-3)


def test_what_a_base_has_made_is_known_for_any_time() -> None:
    base = Base(lag=0.1, now=0.0)
    base.obey(Drive(Velocity(vx=-0.5, wz=0.4), until=1.0))
    list(base.run(1.0))
    base.obey(Halt())
    list(base.run(3.0))
    early, rolling, late = (base.made(time) for time in (-1.0, 1.0, 9.0))
    assert early.path == early.turned == 0.0
    assert rolling.path == pytest.approx(0.45, abs=1e-3)
    assert late.path == pytest.approx(0.5, abs=1e-3) and late.turned == pytest.approx(0.4, abs=1e-3)
    between = base.made(0.505)
    assert base.made(0.5).path < between.path < base.made(0.51).path
    assert base.made(0.5).pose.yaw < between.pose.yaw < base.made(0.51).pose.yaw
