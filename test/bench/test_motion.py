"""``bench motion`` on a sample: steps keep their bounds, and what does not keep them is noticed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from edge_cloud_spec.cli import main
from edge_cloud_spec.lab.bench import motion
from edge_cloud_spec.lab.bench.motion import FAULTS, MISSED, Base, WorstStep
from edge_cloud_spec.nav import navigator as navigating
from edge_cloud_spec.nav.answer_assembler import AnswerAssembler
from edge_cloud_spec.nav.events import Drive, Halt
from edge_cloud_spec.nav.motion import NOTHING, Budget, Motion
from edge_cloud_spec.nav.navigator import YOUNG, Navigator
from edge_cloud_spec.nav.odometer import Track
from edge_cloud_spec.nav.pose import Velocity


def test_no_step_leaves_its_bounds_or_goes_backwards(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    assert main(["bench", "motion", "--events", "40000", "--seed", "5", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["fault"] for row in rows] == list(FAULTS)
    assert sum(row["events"] for row in rows) == 40000 and all(row["steps"] > 20 for row in rows)
    for row in rows:
        assert row["worst_ratio"] <= 1.5 and row["reversed"] == 0
        assert row["longest_overrun_s"] <= 0.5 and row["passed"]
        for what in ("age_s", "driving_s", "way_m", "way_deg"):
            assert row[f"{what}_p50"] <= row[f"{what}_p99"] <= row[f"{what}_worst"]
        assert row["driving_s_worst"] <= YOUNG + 0.01
    assert max(row["way_m_worst"] for row in rows) > 0.2, "frames of the move"


def _unclamped(self: Any, speed: float, lateral: float, turn: float, time: float) -> Velocity:
    if self._turns:
        return Velocity(wz=self._sign * max(-1.2, min(1.2, speed)))
    return Velocity(vx=self._sign * max(-0.6, min(0.6, speed)))


class _Unwatched(Drive):
    def __init__(self, velocity: Velocity, until: float, stop_by: float = math.inf) -> None:
        super().__init__(velocity, until)


_hear = AnswerAssembler.hear


def _of_a_new_frame(self: Any, words: Any, now: float) -> Any:
    return _hear(self, replace(words, age=0.0), now)


def _newest(self: Any, time: int) -> Any:
    return self.newest if self.begun else None


Probe = Callable[[WorstStep], bool]


def ratio(worst: WorstStep) -> bool:
    return worst.ratio > 1.5


def reversed_(worst: WorstStep) -> bool:
    return worst.reversed > 0


def overrun(worst: WorstStep) -> bool:
    return worst.overrun > 0.5


def old(worst: WorstStep) -> bool:
    return max(driven for _, driven, *_ in worst.frames) > YOUNG + 0.01


def missed(worst: WorstStep) -> bool:
    return worst.missed[0] > MISSED[0] and worst.missed[1] > MISSED[1]


EVENTS, SEEDS = 20_000, (5, 6, 8)  # of one run, and of three: a defect shows in one of them


@cache
def sound(fault: str, seed: int) -> WorstStep:
    return motion.measure(fault, EVENTS, seed=seed)


DEFECTS: dict[str, tuple[Any, str, Any, str, Probe]] = {
    "unbounded": (Budget, "grant", lambda self, wanted, now: wanted, "frozen", ratio),
    "unclamped": (Motion, "_along", _unclamped, "lies", reversed_),
    "silence unheard": (Track, "silence", lambda self, now: now - self._came, "frozen", overrun),
    "unwatched": (navigating, "Drive", _Unwatched, "none", ratio),
    "a fresh budget": (Navigator, "_used_since", lambda self, frame, now: NOTHING, "none", ratio),
    "an old frame as new": (AnswerAssembler, "hear", _of_a_new_frame, "none", old),
    "another anchor": (Track, "at", _newest, "none", missed),
    "hangs after a decision": (Motion, "lasts", math.inf, "none", ratio),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    where, attribute, defect, fault, is_found = DEFECTS[name]
    before = [sound(fault, seed) for seed in SEEDS]
    assert all(each.passed and not is_found(each) for each in before)
    monkeypatch.setattr(where, attribute, defect)
    found = (motion.measure(fault, EVENTS, seed=seed) for seed in SEEDS)
    assert any(not worst.passed and is_found(worst) for worst in found)


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


def test_what_a_base_has_made_is_known_for_any_time() -> None:
    base = Base(lag=0.1, now=0.0)
    base.obey(Drive(Velocity(vx=-0.5, wz=0.4), until=1.0))
    list(base.run(1.0))
    base.obey(Halt())
    list(base.run(3.0))
    early, rolling, late = (base.made(time) for time in (-1.0, 1.0, 9.0))
    assert early.path == early.driven == 0.0
    assert rolling.path == pytest.approx(0.45, abs=1e-3) and rolling.driven == pytest.approx(1.0)
    assert late.path == pytest.approx(0.5, abs=1e-3) and late.turned == pytest.approx(0.4, abs=1e-3)
    between = base.made(0.505)
    assert base.made(0.5).path < between.path < base.made(0.51).path
    assert base.made(0.5).pose.yaw < between.pose.yaw < base.made(0.51).pose.yaw
