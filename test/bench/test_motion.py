"""``bench motion`` on a sample: steps keep their bounds, and what does not keep them is noticed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from edge_cloud_spec.cli import main
from edge_cloud_spec.lab.bench import motion
from edge_cloud_spec.lab.bench.motion import FAULTS, Base
from edge_cloud_spec.nav import navigator as navigating
from edge_cloud_spec.nav.events import Announce, Drive, Halt
from edge_cloud_spec.nav.motion import Budget, Motion
from edge_cloud_spec.nav.odometer import Track
from edge_cloud_spec.nav.pose import Velocity


def test_no_step_leaves_its_bounds_or_goes_backwards(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    assert main(["bench", "motion", "--events", "40000", "--seed", "5", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["fault"] for row in rows] == list(FAULTS)
    assert sum(row["events"] for row in rows) == 40000 and all(row["steps"] > 30 for row in rows)
    for row in rows:
        assert row["worst_ratio"] <= 1.5 and row["reversed"] == 0
        assert row["longest_overrun_s"] <= 0.5 and row["passed"]


def _unclamped(self: Any, speed: float, lateral: float, turn: float) -> Velocity:
    if self._turns:
        return Velocity(wz=self._sign * max(-1.2, min(1.2, speed)))
    return Velocity(vx=self._sign * max(-0.6, min(0.6, speed)))


def _too_long(velocity: Velocity, until: float, stop_by: float) -> Drive:
    return Drive(velocity, until + 1.0, stop_by)


def _unwatched(velocity: Velocity, until: float, stop_by: float) -> Drive:
    return Drive(velocity, until)


@pytest.mark.parametrize(
    ("where", "name", "defect", "fault", "field"),
    [
        (Budget, "grant", lambda self, wanted, now: wanted, "frozen", "ratio"),
        (Motion, "_along", _unclamped, "lies", "reversed"),
        (Track, "silence", lambda self, now: now - self._came, "frozen", "overrun"),
        (navigating, "Drive", _too_long, "none", "late"),
        (navigating, "Drive", _unwatched, "none", "ratio"),
    ],
)
def test_a_defect_is_found_out(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, defect: Any, fault: str, field: str
) -> None:
    assert motion.measure(fault, 12000, seed=5).passed
    monkeypatch.setattr(where, name, defect)
    worst = motion.measure(fault, 12000, seed=5)
    bound = {"ratio": 1.5, "reversed": 0, "overrun": 0.5, "late": 1e-6}[field]
    assert not worst.passed and getattr(worst, field) > bound


def test_the_base_covers_what_was_commanded_and_has_a_watchdog() -> None:
    base = Base(lag=0.1, now=0.0)
    base.obey(Drive(Velocity(vx=0.5), until=0.05))
    covered = sum(vx * dt for vx, _, _, dt in base.run(0.55))
    assert not base.stands and base.stopped_at == math.inf
    covered += sum(vx * dt for vx, _, _, dt in base.run(3.0))
    assert covered == pytest.approx(0.5 * 0.55, abs=1e-3) and base.stands
    assert base.pose.x == pytest.approx(covered, abs=0.01)
    assert base.stopped_at == pytest.approx(0.55)
    base.obey(Drive(Velocity(wz=1.0), until=3.05, stop_by=3.1))
    assert sum(wz * dt for _, _, wz, dt in base.run(5.0)) == pytest.approx(0.1, abs=1e-3)
    base.obey(Drive(Velocity(vx=0.5), until=5.05))
    list(base.run(5.04))
    base.obey(Halt())
    assert base.stopped_at == pytest.approx(5.04)


def test_what_rolls_on_from_the_step_before_is_not_the_next_ones() -> None:
    base = Base(lag=0.1, now=0.0)
    base.obey(Drive(Velocity(vx=0.5), until=0.05))
    list(base.run(0.2))
    base.obey(Halt())
    base.obey(Announce("r", None, None, 0, 0.0, True))  # type: ignore[arg-type]
    assert sum(abs(vx) * dt for vx, _, _, dt in base.run(1.0)) == 0.0 and base.pose.x > 0.09
