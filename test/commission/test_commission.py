"""What `edge-cloud-spec commission` promises, on kinematic bases in virtual time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.bags import make_bag
from helpers.commissioned import Kinematic, Trial, write_bag

from edge_cloud_spec.bringup.graph import GraphSettings, NodeSpec
from edge_cloud_spec.cli import main
from edge_cloud_spec.commission.command import main as command_main
from edge_cloud_spec.commission.figures import (
    FASTEST_RATIOS,
    MOVE,
    STRAFE,
    TURN,
    axis_figures,
    runs_of,
)
from edge_cloud_spec.commission.report import (
    CommissionReport,
    report_of,
    write_parameters,
)
from edge_cloud_spec.commission.trials import CIRCLE, TrialSettings
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.events import EStop, Hold
from edge_cloud_spec.nav.limits import REACTION_S, Axis
from edge_cloud_spec.nav.pose import Pose
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec_lab.bags.drive import recording_of
from edge_cloud_spec_lab.running.running_graph import command

DRIFT = math.radians(3.5)
ROOM = 4
BASES: dict[str, dict[str, Any]] = {
    "ideal": {},
    "laggy": {"response": 0.2, "braking": 0.2},
    "dead band": {"slowest": (0.1, 0.2)},
    "drift": {"drift": (0.0, DRIFT)},
    "overshoot": {"braking": 0.25},
    "short": {"told": 0.9},
    "aside": {"response": 0.15, "braking": 0.15, "slowest": (0.0, 0.0, 0.1), "strafes": 0.9},
}
# A tenth; but 1 cm, 1 degree, and 1 cm/s where the truth is nothing, and 25 ms of a time-out, which
# is looked at between two commands.
ABSOLUTE = {"overshoot": 0.017, "slowest": 0.0, "drift": 0.003, "timeout": 0.025}


def truth_of(base: Kinematic, axis: int) -> dict[str, float]:
    """What its figures should be."""
    most = (0.6, 1.2, 0.2)[axis]
    scale = (base.told, 1.0, base.told * base.strafes)[axis]
    return {
        "response": base.response,
        "braking": base.braking,
        "slowest": (*base.slowest, 0.0)[axis],
        "overshoot": scale * most * (base.braking - base.response),
        "drift": abs((*base.drift, 0.0)[axis]),
        "ratio": scale,
    }


def wrong(measured: dict[str, Any], truth: dict[str, float]) -> dict[str, tuple[float, float]]:
    """The figures that are further off than a tenth or their floor."""
    return {
        name: (measured[name], true)
        for name, true in truth.items()
        if abs(measured[name] - true) > max(0.1 * true, ABSOLUTE.get(name, 0.0))
    }


@pytest.mark.parametrize("name", BASES)
def test_each_figure_is_within_a_tenth_and_the_base_stays_in_its_circle(name: str) -> None:
    trial = Trial(Kinematic(**BASES[name])).run()
    assert trial.problem == "" and trial.farthest < CIRCLE
    assert trial.now - 100.0 < 300.0 and trial.way < 12.0, "five minutes, 12 m"
    recording = trial.commission.recording
    report = report_of(recording, TrialSettings())
    for axis in (MOVE, TURN, STRAFE):
        assert not wrong(vars(report.axes[axis]), truth_of(trial.base, axis)), axis
    figures = dict(report.lines)
    assert abs(float(figures["the base's own time-out"].split()[0]) - 0.5) <= ABSOLUTE["timeout"]
    assert float(figures["odometry: of a metre by the tape"][:5]) == pytest.approx(
        trial.base.told, rel=0.02
    )
    assert abs(float(figures["camera: lag"][:4]) - 0.15) <= 0.02
    refused = {"drift": "commanded to stand, 3.5 degrees/s", "short": "0.90 m of a metre"}.get(name)
    assert bool(report.refused) == bool(refused) and (refused or "") in "".join(report.refused)
    assert ("does not stand within 0.35 m" in "".join(report.slower)) == (name == "overshoot")


def test_a_base_that_cannot_go_sideways_is_found_so_and_one_that_must_not_is_not_tried() -> None:
    for base, most, said in (
        (Kinematic(strafes=0.0), 0.2, "strafes no: sideways commands do not move it"),
        (Kinematic(), 0.0, "not measured: strafes: nothing was commanded sideways"),
    ):
        trial = Trial(base, settings=TrialSettings(lateral_speed=most)).run()
        assert trial.problem == "" and base.rates[2] == 0.0
        recording = trial.commission.recording
        sideways = {aside for _, _, _, aside in recording.commands if not math.isnan(aside)}
        assert (sideways == {0.0}) == (not most)
        report = report_of(recording, TrialSettings())
        assert said in " ".join(str(report).split())
        assert not report.refused
        limits = limits_of(report)
        assert "strafe" not in limits and limits.get("lateral_speed") == (0.0 if most else None)


def test_what_a_base_does_sideways_is_in_its_parameters_and_slower_where_it_outruns_them() -> None:
    base = Kinematic(0.2, 0.3, slowest=(0.0, 0.0, 0.06), strafes=1.15)
    trial = Trial(base, answered, camera=None).run()
    assert trial.problem == ""
    limits = limits_of(report_of(trial.commission.recording, TrialSettings()))
    strafe = Axis(**limits["strafe"])
    assert 0.05 <= strafe.slowest <= 0.07 and strafe.response == pytest.approx(0.2, rel=0.1)
    assert limits["lateral_speed"] == pytest.approx(0.2 / 1.15, abs=0.011)
    assert strafe.stopping(limits["lateral_speed"]) >= 0.17 * 1.15 * (REACTION_S + 0.9 * 0.3)


def test_another_base_is_not_taken_for_it() -> None:
    trial = Trial(Kinematic(0.2, 0.25, slowest=(0.1, 0.2))).run()
    for axis in (MOVE, TURN):
        found = wrong(
            vars(axis_figures(trial.commission.recording, axis)), truth_of(Kinematic(), axis)
        )
        assert found.keys() == {"response", "braking", "slowest", "overshoot"}


@pytest.mark.parametrize("seed", range(6))
def test_it_stands_and_nothing_is_left_to_write_when_it_is_interrupted_anywhere(seed: int) -> None:
    abort = Random(seed).uniform(0.0, 125.0)
    trial = Trial(Kinematic(0.2, 0.2), seed=seed).run([(abort, Hold("Ctrl-C"))])
    assert trial.problem == "Ctrl-C" and trial.halts >= 11
    assert not any(trial.velocity) and max(map(abs, trial.base.rates)) < 0.01
    str(report_of(trial.commission.recording, TrialSettings()))  # what there is can be told


def pauses(at: float, lasts: float) -> Callable[[Pose, float], Pose | None]:
    """Odometry that pauses once for so many s."""
    return lambda pose, now: None if at <= now < at + lasts else pose


@pytest.mark.parametrize("seed", range(3))
def test_a_short_pause_of_odometry_only_repeats_the_trial(seed: int) -> None:
    draw = Random(seed)
    lasts = draw.uniform(0.3, 0.95)
    base = Kinematic(0.2, 0.2)
    trial = Trial(base, odometry=pauses(draw.uniform(100.0, 220.0), lasts), seed=seed).run()
    assert trial.problem == "" and trial.farthest < CIRCLE
    recording = trial.commission.recording
    for axis in (MOVE, TURN):
        assert not wrong(vars(axis_figures(recording, axis)), truth_of(base, axis)), axis


def answered(text: str, trial: Trial) -> str:
    """A person who agrees, and has no tape."""
    return "" if "cm did" in text else trial.agree(text)


def limits_of(report: CommissionReport) -> dict[str, Any]:
    """The limits that it writes."""
    return report.parameters["/**/navigator"]["ros__parameters"]["limits"]


@pytest.mark.parametrize("gain", [1.0, 1.05, 1.12, 1.3, 1.5, 1.9])
def test_a_base_that_outruns_its_commands_is_refused_or_its_limits_are_lower(gain: float) -> None:
    trial = Trial(Kinematic(0.15, 0.15, gain=gain), answered, camera=None).run()
    report = report_of(trial.commission.recording, TrialSettings())
    limits = limits_of(report)
    assert trial.problem == "" and trial.fastest < FASTEST_RATIOS[1] * 0.6 * 1.02
    assert bool(report.refused) == (gain > FASTEST_RATIOS[0])
    assert limits["speed"] * gain <= 0.61 and limits["turn_speed"] * gain <= 1.21
    assert limits["speed"] == pytest.approx(0.6 / gain, abs=0.02) or report.refused
    axis, speed = Axis(**limits["move"]), limits["speed"]
    assert axis.stopping(speed) >= speed * gain * (REACTION_S + 0.9 * 0.15) or report.refused


@pytest.mark.parametrize(
    "base",
    [
        Kinematic(follows=lambda v, w: (1.6 * v, w)),
        Kinematic(follows=lambda v, w: (1.6 * v if v > 0.0 else v, w)),
        Kinematic(follows=lambda v, w: (v, 1.6 * w if w < 0.0 else w)),
        Kinematic(told=1.3),
    ],
)
def test_one_axis_one_direction_or_odometry_alone_that_is_too_much_is_refused(
    base: Kinematic,
) -> None:
    trial = Trial(replace(base), answered, camera=None).run()
    report = report_of(trial.commission.recording, TrialSettings())
    assert "of its commands" in report.refused[0]


def test_a_tape_counts_where_base_and_odometry_are_wrong_by_the_same() -> None:
    base = Kinematic(gain=1.3, told=1 / 1.3)
    report = report_of(Trial(base).run().commission.recording, TrialSettings())
    assert "moves: it goes up to 1.30 of its commands" in "".join(report.refused)
    assert "0.77 m of a metre by the tape" in "".join(report.refused)


@pytest.mark.parametrize(
    "follows",
    [lambda v, w: (0.6 * v, w), lambda v, w: (max(-0.2, v), w)],
)
def test_a_base_that_is_too_slow_to_arrive_is_told(
    follows: Callable[[float, float], tuple[float, float]], tmp_path: Path
) -> None:
    report = report_of(
        Trial(Kinematic(follows=follows), answered).run().commission.recording, TrialSettings()
    )
    text = write_parameters(report, tmp_path / "robot.yaml").read_text()
    assert "a step ends short of its goal" in text


def test_of_an_ideal_base_nothing_is_noted_and_nothing_refused() -> None:
    ideal = report_of(Trial(Kinematic(), answered).run().commission.recording, TrialSettings())
    assert not ideal.notes and not ideal.refused


@pytest.mark.parametrize(("wall", "lag"), [(0.3, 0.05), (0.5, 0.15), (0.7, 0.05), (0.8, 0.15)])
def test_a_wall_ends_it_and_no_figure_is_made_of_it(wall: float, lag: float) -> None:
    trial = Trial(Kinematic(lag, lag, wall=wall), answered, camera=None).run()
    assert any(why in (trial.problem or "") for why in ("lost its speed", "does not follow"))
    figures = dict(report_of(trial.commission.recording, TrialSettings()).lines)
    assert not figures.get("moves: braking", "").startswith("-")


@pytest.mark.parametrize(
    ("base", "camera", "said", "of"),
    [
        ({}, None, "lag is not known: there were no pictures", ("camera: lag", "camera: rate")),
        ({"gain": 1.5}, (0.15, 0.0), "moves: it goes up to 1.50", ("outruns", "ends short")),
        ({"response": 0.15, "wall": 0.5}, (0.15, 0.0), "moves: it lost its speed", ("ends short",)),
    ],
)
def test_what_one_sentence_says_no_other_repeats(
    base: dict[str, Any], camera: Any, said: str, of: tuple[str, ...]
) -> None:
    recording = Trial(Kinematic(**base), answered, camera=camera).run().commission.recording
    lines = str(report_of(recording, TrialSettings())).splitlines()
    assert sum(said in line for line in lines) == 1 and len({*lines}) == len(lines)
    assert not [line for line in lines if any(what in line for what in of)]


def test_a_camera_whose_lag_cannot_be_told_is_told_of_once() -> None:
    """Its pictures show nothing that moves."""
    recording = Trial(Kinematic(), answered).run().commission.recording
    still = replace(recording.frames[0])
    recording.frames = [replace(still, taken=one.taken) for one in recording.frames]
    text = str(report_of(recording, TrialSettings()))
    assert text.count("camera: lag") + text.count("lag is not known") == 1


@pytest.mark.parametrize("seed", range(4))
def test_noise_and_a_gait_are_no_wall(seed: int) -> None:
    random, draw = np.random.default_rng(seed), Random(seed)
    sways, beats = draw.uniform(0.0, 0.006), draw.uniform(2.0, 4.0)

    def sway(pose: Pose, now: float) -> Pose:
        dx, dy = random.normal(0.0, 0.002, 2)
        dx += sways * math.sin(math.tau * beats * now)
        return replace(pose, x=pose.x + dx, y=pose.y + dy, yaw=pose.yaw + random.normal(0, 0.003))

    lag = draw.uniform(0.05, 0.25)
    base = Kinematic(lag, lag, gain=draw.uniform(0.85, 1.08))
    trial = Trial(base, odometry=sway, camera=None).run()
    report = report_of(trial.commission.recording, TrialSettings())
    assert trial.problem == "" and not report.refused


@pytest.mark.parametrize(
    ("metres", "radians"),
    [(0.0, 0.0), (0.002, 0.0), (0.005, 0.01), (0.019, 0.0), (0.0, 0.05), (0.05, 0.02), (0.2, 0.3)],
)
def test_it_stays_in_its_circle_where_odometry_drifts_and_the_base_does_not(
    metres: float, radians: float
) -> None:
    def drifts(pose: Pose, now: float) -> Pose:
        lasted = now - 100.0
        return Pose(pose.x + metres * lasted, pose.y, pose.yaw + radians * lasted)

    trial = Trial(Kinematic(0.1, 0.1), answered, odometry=drifts, camera=None).run()
    assert trial.astray < CIRCLE
    assert trial.problem == "" or metres + radians > 0.01


class Sticky(Kinematic):
    """Drops zeros, and has no time-out."""

    kept = (0.0, 0.0)

    def move(self, command: tuple[float, float], dt: float) -> None:
        self.kept = command if any(command) else self.kept
        super().move(self.kept, dt)


class Crab(Kinematic):
    """Turns by what it is to go sideways."""

    def move(self, command: tuple[float, ...], dt: float) -> None:
        ahead, turn, aside = command
        super().move((ahead, turn + 3.0 * aside, 0.0), dt)


class Hesitates(Kinematic):
    """Stands for 0.45 s before it follows, as legs may."""

    waited = 0.0

    def move(self, command: tuple[float, float], dt: float) -> None:
        self.waited = self.waited + dt if any(command) else 0.0
        super().move(command if self.waited > 0.45 else (0.0, 0.0), dt)


def test_a_base_that_takes_its_time_to_get_going_follows_its_commands() -> None:
    trial = Trial(Hesitates()).run()
    assert not trial.problem


def freezes(at: float) -> Callable[[Pose, float], Pose]:
    """Odometry whose stamps go on and whose poses do not, from then on."""
    kept: list[Pose] = []

    def tell(pose: Pose, now: float) -> Pose:
        kept.extend([] if kept or now < at else [pose])
        return kept[0] if kept else pose

    return tell


@pytest.mark.parametrize(
    ("base", "odometry", "why"),
    [
        (Kinematic(gain=-1.0), None, "against its commands"),
        (Kinematic(follows=lambda v, w: (-v, w)), None, "against its commands"),
        (Kinematic(told=-1.0), None, "against its commands"),
        (Kinematic(follows=lambda v, w: (0.5, 0.0)), None, "m from its start"),
        (Kinematic(follows=lambda v, w: (v, 1.0)), None, "commanded to stand"),
        (Sticky(), None, "does not stand 5 s after"),
        (Kinematic(slowest=(0.5, 0.0)), None, "does not move|does not follow"),
        (Kinematic(told=0.1), None, "does not move at up to 0.3 m/s"),
        (Kinematic(told=3.0), None, "more than twice"),
        (Kinematic(follows=lambda v, w: (w, v)), None, "moves when it is commanded to turn"),
        (Kinematic(follows=lambda v, w: (v, w + 2 * v)), None, "when it is commanded to move"),
        (Kinematic(follows=lambda v, w: (max(v, 0.0), w)), None, "does not move|does not follow"),
        (Kinematic(), lambda p, now: replace(p, yaw=-p.yaw), "against its commands"),
        (Kinematic(), lambda p, now: replace(p, x=-p.y, y=p.x), "goes aside|does not"),
        (Crab(), None, "turns or moves ahead when it is commanded to go sideways"),
        (Kinematic(), lambda pose, now: None, "there is no odometry"),
        (Kinematic(), freezes(0.0), "does not move|does not follow"),
        (Kinematic(), freezes(195.0), "does not follow|does odometry freeze"),
        (Kinematic(), pauses(180.0, 1e9), "stamps did not go on"),
        (Kinematic(), pauses(180.0, 1.2), "stamps did not go on"),
        (Kinematic(), lambda p, now: p if now % 4.0 < 3.2 else None, "paused in each of 3 tries"),
        (Kinematic(), lambda p, now: replace(p, x=p.x + (now > 180.0)), "odometry jumped"),
        (Kinematic(), lambda p, now: replace(p, x=math.nan), "not a number"),
        (Kinematic(), lambda p, now: replace(p, yaw=math.nan), "no unit quaternion"),
    ],
)
def test_a_base_or_odometry_that_lies_ends_it_within_its_circle(
    base: Kinematic, odometry: Callable[[Pose, float], Pose | None] | None, why: str
) -> None:
    told = odometry or (lambda pose, now: pose)
    trial = Trial(replace(base), odometry=told, camera=None).run()
    assert trial.problem is not None and any(one in trial.problem for one in why.split("|"))
    assert not any(trial.velocity) and trial.halts >= 11
    assert trial.farthest < CIRCLE or base.follows, "what goes by itself is not to be held"


@pytest.mark.parametrize(
    ("says", "why"), [("no", "you said no"), ("\0perhaps", "no yes or no"), ("", "no yes or no")]
)
def test_only_yes_moves_it(says: str, why: str) -> None:
    trial = Trial(Kinematic(), lambda text, trial: says).run()
    assert why in (trial.problem or "") and trial.sent == -math.inf


def test_who_says_nothing_is_waited_for_standing_and_an_e_stop_ends_it() -> None:
    trial = Trial(Kinematic(), lambda text, trial: None).run([(60.0, EStop(True))])
    assert trial.problem == "the e_stop was pressed" and trial.sent == -math.inf
    assert 160.0 <= trial.now < 163.0 and len(trial.asked) == 1


def test_what_the_tape_says_is_asked_again_and_may_be_left_out() -> None:
    said = iter(["a metre", "1e9", ""])
    trial = Trial(Kinematic(), lambda text, t: next(said) if "cm did" in text else "y").run()
    assert trial.problem == "" and trial.commission.recording.metre is None


def test_a_base_without_time_out_is_refused_and_a_blurred_or_late_camera_has_it_stand() -> None:
    report = report_of(Trial(Kinematic(timeout=1e9)).run().commission.recording, TrialSettings())
    assert "when commands end" in report.refused[0]
    blurred = Trial(Kinematic(), camera=(0.15, 1.0)).run().commission.recording
    report = report_of(blurred, TrialSettings())
    assert "blurred" in report.stop_and_go[0] and "stop_and_go" in yaml.safe_dump(report.parameters)
    late = report_of(
        Trial(Kinematic(), camera=(9.0, 0.0)).run().commission.recording, TrialSettings()
    )
    assert "turn left and right, slower" in late.stop_and_go[0]
    none = report_of(Trial(Kinematic(), camera=None).run().commission.recording, TrialSettings())
    assert "no pictures" in none.stop_and_go[0] and "/**/drafter" not in none.parameters


def names_of(values: Any, given: dict[str, Any]) -> None:
    """Each parameter is the navigator's, and in its range."""
    for name, value in given.items():
        if isinstance(value, dict):
            names_of(getattr(values, name), value)
        else:
            replace(values, **{name: value})


def test_the_launch_takes_what_it_writes_over_the_parameter_file(tmp_path: Path) -> None:
    report = report_of(
        Trial(Kinematic(slowest=(0.1, 0.2))).run().commission.recording, TrialSettings()
    )
    path = write_parameters(report, tmp_path / "robot.yaml")
    given = yaml.safe_load(path.read_text())["/**/navigator"]["ros__parameters"]
    names_of(NavigatorSettings(), given)
    assert given["limits"]["turn"]["slowest"] == 0.2 and given["drive"] == "continuous"
    settings = GraphSettings(sim="false", robot=str(path))
    (other := path.with_name("other.yaml")).write_text("other_node: {ros__parameters: {a: 1}}")
    with pytest.raises(UserError, match="says nothing of the navigator"):
        GraphSettings(robot=str(other))
    assert settings.driving == ("continuous", "as it was given")
    files = [a for a in command(NodeSpec("navigator", "navigator"), settings) if "yaml" in a]
    assert files == [settings.parameter_file, str(path)], "what stands in the later one counts"


def test_what_is_refused_has_another_name_and_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    report = report_of(Trial(Kinematic(told=0.8)).run().commission.recording, TrialSettings())
    path = write_parameters(report, tmp_path / "robot.yaml")
    assert path.name == "robot.refused.yaml" and "# refused: odometry" in path.read_text()
    with pytest.raises(UserError, match="cannot be written"):
        write_parameters(report, tmp_path / "no" / "robot.yaml")
    assert [one.name for one in tmp_path.iterdir()] == [path.name], "nothing half written"


def test_a_bag_of_the_drive_tells_the_same_and_what_is_not_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recording = Trial(Kinematic(0.2, 0.2, slowest=(0.1, 0.2))).run().commission.recording
    write_bag(tmp_path / "drive", recording, nudge=0.001)
    assert main(["commission", "--bag", "drive"]) == 0
    said = capsys.readouterr().out
    assert "moves: dead band                  0.100 m/s" in said
    assert "braking                    0.19" in said
    assert "not known: there were no pictures" in said and "0.6 m and more" in said
    assert [path.name for path in tmp_path.iterdir()] == ["drive"]
    recording.commands.clear()
    del recording.poses[:-2000]  # 40 s
    write_bag(tmp_path / "still", recording, nudge=0.0)
    assert main(["commission", "--bag", "still"]) == 0
    said = capsys.readouterr().out
    assert "not measured: turns: response" in said
    assert "not measured: turns: drift at zero" in said, "it moved, and nobody knows what for"
    assert not runs_of(recording)


@pytest.mark.parametrize(("lag", "raw"), [(0.0, None), (1.2, "bgr8")])
def test_the_lag_of_a_camera_is_measured_from_a_bag_of_turns(
    lag: float, raw: str | None, tmp_path: Path
) -> None:
    bag = make_bag(tmp_path / "turns", seed=ROOM, lag=lag, seconds=8.0, raw=raw)
    lags = report_of(recording_of(bag), TrialSettings()).lags
    assert lags and abs(lags.lag - lag) <= 0.03 and abs(lags.most - lag) <= 0.03


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ([], "record 20 seconds"),
        (["--camera", "/cam"], "--camera must name a topic"),
        (["--speed", "9"], "speed must be a number from 0.1 to 1.5"),
    ],
)
def test_a_bag_without_a_lag_or_an_option_that_cannot_be_is_one_sentence(
    asked: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag = make_bag(tmp_path / "bag", seed=ROOM, seconds=2.0)
    out = ["--out", str(tmp_path / "robot.yaml")]
    done = main(["commission", "--bag", str(bag), *asked, *out])
    said, refused = capsys.readouterr()
    assert why in (refused if asked else said) and (done == 2) == bool(asked)
    assert asked or "stands to decide: the camera's lag is not known" in said


def test_an_option_of_the_ros_command_that_is_no_path_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["commission", "--out", "x" * 3000, "--ros-args"])
    assert command_main() == 2
    assert "is no path" in capsys.readouterr().err
