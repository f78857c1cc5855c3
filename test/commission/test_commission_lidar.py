"""What `edge-cloud-spec commission` finds of a lidar, on kinematic bases in virtual time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import yaml
from helpers.commissioned import CORRIDOR, Kinematic, Lidar, Trial

from edge_cloud_spec.commission.figures import TrialMeasurements
from edge_cloud_spec.commission.lidar import EVERY
from edge_cloud_spec.commission.report import CommissionReport, report_of
from edge_cloud_spec.commission.trials import TrialSettings
from edge_cloud_spec.nav.events import EStop
from edge_cloud_spec.nav.footprint import ObstacleSettings

LEGS = np.array([[x, y] for x in (-0.3, -0.25, 0.25, 0.3) for y in (0.17, 0.18, -0.17, -0.18)])
MAST = np.array([[0.44, y] for y in (-0.02, 0.0, 0.02)])


def recorded(lidar: Lidar, base: Kinematic | None = None, seed: int = 0) -> TrialMeasurements:
    """The recording of a trial with this lidar, without a tape."""

    def answer(text: str, trial: Trial) -> str:
        return "" if "cm did" in text else trial.agree(text)

    trial = Trial(base or Kinematic(0.15, 0.15), answer, camera=None, seed=seed, lidar=lidar).run()
    assert trial.problem == ""
    return trial.commission.recording


def reported(lidar: Lidar, base: Kinematic | None = None, seed: int = 0) -> CommissionReport:
    """The report of a trial with this lidar, without a tape."""
    return report_of(recorded(lidar, base, seed), TrialSettings())


@pytest.mark.parametrize(
    ("degrees", "hangs"),
    [(180, False), (90, False), (-90, False), (-25, False), (15, False), (0, True), (135, True)],
)
def test_a_lidar_that_is_turned_is_refused_and_its_mount_is_proposed(
    degrees: float, hangs: bool
) -> None:
    report = reported(Lidar(math.radians(degrees), hangs, LEGS))
    assert "does not move as the base does" in report.refused[0] and not report.notes
    given = report.parameters["/**/navigator"]["ros__parameters"]["obstacles"]["scan_at"]
    settings = ObstacleSettings()
    mount = type(settings.scan_at)(**given)
    away = Lidar(math.radians(degrees), hangs, noise=0.0)
    assert not hangs or mount.roll == pytest.approx(math.pi, abs=1e-4)
    ahead = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    cos, sin = math.cos(away.yaw), math.sin(away.yaw)
    shown = (ahead[:, :2] @ np.array([[cos, sin], [-sin, cos]])) * (1.0, -1.0 if hangs else 1.0)
    back = mount.to_base(np.column_stack([shown, [0.0, 0.0]]))
    assert np.abs(back - ahead)[:, :2].max() < math.sin(math.radians(5)), "as it is mounted"


@pytest.mark.parametrize(
    ("seed", "noise", "lag"), [(0, 0.0, 0.0), (1, 0.015, 0.1), (2, 0.04, 0.3), (3, 0.03, 0.2)]
)
def test_a_lidar_that_is_mounted_as_said_is_not_refused(
    seed: int, noise: float, lag: float
) -> None:
    degrees = (seed - 1.5) * 3.0
    base = Kinematic(0.05 + 0.05 * seed, 0.1, gain=(1.0, 0.9, 1.1, 1.0)[seed])
    report = reported(Lidar(math.radians(degrees), noise=noise, lag=lag), base, seed)
    figures = dict(report.lines)["scan: its mount"]
    assert not report.refused and not report.obstacles
    assert abs(float(figures.split()[2]) - degrees) <= 4.0, figures


def test_what_a_lidar_always_sees_of_the_robot_is_its_body() -> None:
    body = reported(Lidar(legs=LEGS)).obstacles
    assert body.keys() == {"side"} and 0.18 <= body["side"] <= 0.23
    report = reported(Lidar(legs=MAST), seed=1)
    assert report.obstacles.keys() == {"front"} and 0.44 <= report.obstacles["front"] <= 0.5
    assert "it sees the robot itself; obstacles.front" in "".join(report.notes)
    assert "front: 0.4" in yaml.safe_dump(report.parameters)


def test_a_wall_beside_its_start_is_no_part_of_the_robot() -> None:
    beside = Lidar(walls=np.concatenate([Lidar().walls, [[[-0.6, 0.35], [0.6, 0.35]]]]))
    assert not reported(beside).obstacles


def test_a_corridor_does_not_tell_how_a_lidar_is_mounted_and_a_blind_one_is_named() -> None:
    report = reported(Lidar(math.pi, walls=CORRIDOR))
    assert not report.refused and "scan: its mount" in report.missing
    recording = recorded(Lidar())
    recording.blind["scan"] = "its frame is 'laser', not 'base_link'"
    assert any("its frame is" in one for one in report_of(recording, TrialSettings()).missing)
    recording.blind.clear()
    assert "scan: nothing came" in report_of(recording, TrialSettings()).missing


@pytest.mark.parametrize(("scale", "degrees"), [(0.75, 0), (1.0, 0), (1.3, 90), (1.5, 0)])
def test_a_lidar_tells_that_base_and_odometry_are_wrong_by_the_same(
    scale: float, degrees: int
) -> None:
    base = Kinematic(0.15, 0.15, told=1 / scale, follows=lambda v, w: (scale * v, w))
    report = reported(Lidar(math.radians(degrees)), base)
    assert bool(report.refused) == (scale != 1.0 or degrees != 0)
    told = float(dict(report.lines)["scan: its mount"].rpartition(" tells ")[2].split()[0])
    assert told == pytest.approx(1 / scale, abs=0.04)


def test_scans_are_few_and_none_are_kept_while_a_person_thinks() -> None:
    recording = recorded(Lidar())
    lasted = recording.poses[-1][0] - recording.poses[0][0]
    scans = recording.scans["scan"]
    assert len(scans) <= lasted / EVERY and max(len(points) for _, points in scans) <= 360
    waits = Trial(Kinematic(), lambda text, trial: None, lidar=Lidar()).run([(60.0, EStop(True))])
    assert not waits.commission.recording.scans
