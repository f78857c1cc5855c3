"""Interprets figures: the robot's parameters, what is refused, and what is unknown."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..errors import UserError
from ..nav.budget import BUDGET_RATIO
from ..nav.clock_offset import ANOTHER_TIME, clock_sentence
from ..nav.limits import REACTION_S, Axis, Limits
from ..nav.odometer import ODOMETRY_RATE_HZ
from ..nav.settings import CONTINUOUS, STOP_AND_GO
from .camera import Lags, blur_of, lags_of
from .figures import (
    FASTEST_RATIOS,
    MOVE,
    STRAFE,
    TURN,
    AxisFigures,
    TrialMeasurements,
    axis_figures,
    median,
    obeys_zero,
    odometry_of,
    rate_of,
    timeout_of,
)
from .lidar import body_around, mount_of, own_points
from .trials import LOST_ITS_SPEED, TrialSettings

DRIFT_SPEEDS = (0.02, 0.05)  # m/s, rad/s at most of a base that stands
SCALE, BY_LIDAR = 0.05, 0.1  # of a metre that odometry may be off by: by a tape, and by a lidar
MOUNT_TURN_RAD = math.radians(10)  # that a lidar may be off by
NO_FIGURE = -0.05  # s; less is no braking time, but a wall's
SET_SCALE = "set the scale of commands or of odometry in its driver"
SLOW_CAMERA = 5.0  # pictures a second at least
LEAST_SHARPNESS = 0.6  # of the sharpness at least, while it turns
VARIES = 0.05  # s by which the lag may differ between thirds of the time
NOT_MEASURED = (
    "the camera's height and tilt: the models were trained at about 0.6 m and more; measure both",
    "its exposure: the pictures' topic does not carry it; blur is what shows of it",
)


@dataclass
class CommissionReport:
    """``lines``: (what, value) to read; ``missing``: unknown figures; ``parameters`` by node.

    Sentences: ``refused``: what makes the robot unfit to drive, ``slower``: which speeds are
    refused, ``stop_and_go``: why it must stand while deciding, ``notes``: what else to know.
    ``obstacles``: parameters by a lidar; ``metre``: metres by odometry of one by the tape.
    """

    axes: tuple[AxisFigures, AxisFigures, AxisFigures]
    lines: list[tuple[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    slower: list[str] = field(default_factory=list)
    stop_and_go: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    obstacles: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    lags: Lags | None = None
    metre: float | None = None

    def add(self, what: str, value: Any, text: str, each: float = 1.0) -> None:
        """Add a figure (one number or several) formatted by ``text``; None: add it to the unknown
        ones.

        ``each``: how many of the text's unit one of the figure's is.
        """
        if value is None:
            self.missing.append(what)
        else:
            self.lines.append((what, text.format(*(each * np.atleast_1d(value)))))

    @property
    def sentences(self) -> list[str]:
        """What a person should know before driving."""
        return [
            *(f"refused: {one}" for one in [*self.refused, *self.slower]),
            *(f"stands to decide: {one}" for one in self.stop_and_go),
            *(f"note: {one}" for one in self.notes),
        ]

    def __str__(self) -> str:
        wide = max((len(what) for what, _ in self.lines), default=0)
        figures = [f"  {what:{wide}}  {text}" for what, text in self.lines]
        missing = [f"not measured: {one}" for one in [*self.missing, *NOT_MEASURED]]
        return "\n".join([*figures, *self.sentences, *missing])


def report_of(recording: TrialMeasurements, settings: TrialSettings) -> CommissionReport:
    """The report of a recording, even of an incomplete one."""
    moves, turns, strafes = (axis_figures(recording, axis) for axis in (MOVE, TURN, STRAFE))
    report = CommissionReport((moves, turns, strafes))
    report.metre = recording.metre and recording.metre[1] / recording.metre[0]
    _add_axis(report, MOVE, "moves", "{:.3f} m", 1.0)
    _add_axis(report, TURN, "turns", "{:.1f} degrees", math.degrees(1.0))
    if recording.strafes is False:
        report.add("strafes", 0.0, "no: sideways commands do not move it")
    elif strafes.runs:
        _add_axis(report, STRAFE, "strafes", "{:.3f} m", 1.0)
    else:
        report.missing.append("strafes: nothing was commanded sideways")
    _add_base(report, recording)
    _add_camera(report, recording)
    for source in recording.obstacles.promised:
        _add_lidar(report, recording, source)
    report.parameters = _parameters(report, settings, recording.strafes)
    return report


def _add_axis(report: CommissionReport, axis: int, name: str, unit: str, each: float) -> None:
    """Report an axis. ``each``: how many of the unit are a metre, or a radian."""
    found = report.axes[axis]
    for what, value, text, scale in (
        ("dead band", found.slowest, unit + "/s" if found.slowest else "none", each),
        ("response", _lag(found.response), "{:.3f} s", 1.0),
        ("braking", _lag(found.braking), "{:.3f} s", 1.0),
        ("speed over commanded", found.ratio, "{:.3f}", 1.0),
        ("executed", found.executed, "{:.2f} of the commanded (from {:.2f} to {:.2f})", 1.0),
        ("overshoot, at most", found.overshoot, unit, each),
        ("drift at zero", found.drift, unit + "/s", each),
    ):
        report.add(f"{name}: {what}", value, text, scale)
    for speed, far, took in found.stopping:
        at = f"{name}: stops from {unit}/s".format(each * speed)
        report.add(at, (each * max(0.0, far), took), f"within {unit} and {{:.2f}} s")
    metre = report.metre if axis != TURN and report.metre else 1.0
    least, most = (pick((*found.ratios, 1.0)) / metre for pick in (min, max))
    mean = float(np.mean(found.ratios or 1.0)) / metre
    is_blocked = any(run.blocked for run in found.runs) or (found.braking or 0.0) < NO_FIGURE
    refusals = {
        f"it moves though it is commanded to stand, {unit.format(each * (found.drift or 0.0))}/s: "
        "trim it, or have its driver stand": axis != STRAFE
        and (found.drift or 0.0) > DRIFT_SPEEDS[axis],
        f"{name}: it goes up to {most:.2f} of its commands; {FASTEST_RATIOS[0]:g} is the bound "
        f"({FASTEST_RATIOS[1]:g} in one direction): {SET_SCALE}": mean > FASTEST_RATIOS[0]
        or most > FASTEST_RATIOS[1],
        f"{name}: {LOST_ITS_SPEED}": is_blocked,
    }
    report.refused += [sentence for sentence, holds in refusals.items() if holds]
    if least < 1 / BUDGET_RATIO and not is_blocked and axis != STRAFE:
        report.notes.append(
            f"{name}: it goes {least:.2f} of its commands, at least one way, so a step ends short "
            f"of its goal: {SET_SCALE}"
        )


def _lag(value: float | None) -> float | None:
    return None if value is None or value < NO_FIGURE else max(0.0, value)


def _add_lidar(report: CommissionReport, recording: TrialMeasurements, source: str) -> None:
    """Report the mount of a lidar, and what it sees of the robot; adds to the parameters."""
    problem, body = recording.blind.get(source, "nothing came"), recording.obstacles
    if problem or source not in recording.scans:
        return report.missing.append(f"{source}: {problem}")
    own = own_points(recording, source)
    mount = mount_of(recording, source, [run for found in report.axes for run in found.runs], own)
    figures = mount and (math.degrees(mount.yaw), mount.metre)
    text = "turned by {:.0f} degrees; odometry tells {:.2f} m of a metre"
    report.add(f"{source}: its mount", figures, text)
    if mount and (mount.hangs or abs(mount.yaw) > MOUNT_TURN_RAD):
        at = getattr(body, f"{source}_at")
        yaw = math.remainder((-at.yaw if mount.hangs else at.yaw) - mount.yaw, math.tau)
        roll = math.remainder(at.roll + math.pi * mount.hangs, math.tau)
        found = {"yaw": round(yaw, 2) + 0.0, "roll": round(abs(roll), 5)}
        report.obstacles[f"{source}_at"] = found
        report.refused.append(
            f"{source}: what it shows does not move as the base does; it would with "
            f"obstacles.{source}_at.yaw: {found['yaw']:g} and roll: {found['roll']:g}"
        )
        return None
    for name, far in body_around(own, body).items():
        report.obstacles[name] = max(far, report.obstacles.get(name, 0.0))
        report.notes.append(f"{source}: it sees the robot itself; obstacles.{name} is {far:g}")
    if mount and abs(mount.metre - 1.0) > BY_LIDAR:
        report.refused.append(
            f"odometry tells {mount.metre:.2f} m of a metre by {source}: does the base slip? Or "
            f"{SET_SCALE}"
        )
    return None


def _add_base(report: CommissionReport, recording: TrialMeasurements) -> None:
    """Report the base's drift, its stops and its odometry."""
    stamps, came = np.array(recording.stamps).reshape(-1, 2).T
    steps = [math.dist(a[1:3], b[1:3]) for a, b in pairwise(recording.poses)]
    timeout, rate = timeout_of(recording, report.axes), rate_of(stamps)
    scale = report.metre
    endless = timeout == math.inf
    for what, value, text in (
        ("zero commands", obeys_zero(recording), "it stands {:.2f} s after the first"),
        (
            "the base's own time-out",
            timeout,
            "none" if endless else "{:.2f} s after the last command",
        ),
        ("odometry: rate", rate, "{:.0f} Hz"),
        ("odometry: delay, by its stamps", median(came - stamps), "{:.3f} s"),
        ("odometry: longest step", max(steps, default=None), "{:.3f} m"),
        ("odometry: of a metre by the tape", scale, "{:.3f} m"),
    ):
        report.add(what, value, text)
    if abs(ahead := median(stamps - came) or 0.0) > ANOTHER_TIME:
        report.notes.append(clock_sentence("odometry's", ahead))
    refusals = {
        "it goes on when commands end: nothing stops it when this computer fails; give its "
        "driver a time-out": endless,
        f"odometry tells {scale or 1.0:.2f} m of a metre by the tape: set its scale in its "
        "driver": abs((scale or 1.0) - 1.0) > SCALE,
        f"odometry comes at {rate or 0.0:.1f} Hz; {ODOMETRY_RATE_HZ:g} are needed": (
            rate is not None and rate < ODOMETRY_RATE_HZ
        ),
    }
    report.refused += [sentence for sentence, holds in refusals.items() if holds]


def _add_camera(report: CommissionReport, recording: TrialMeasurements) -> None:
    frames, (frame, pose) = recording.frames, recording.looks
    rate, lag, blur, unknown = rate_of([one.taken for one in frames]), None, None, ""
    if rate is None or not recording.stamps:
        unknown = "there were no pictures"
    else:
        at, yaw = odometry_of(recording)
        try:
            report.lags = lag = lags_of(frames[frame:], at[pose:], yaw[pose:])
        except UserError as error:
            unknown = str(error)
        blur = blur_of(frames, lag.lag if lag else 0.0, at, yaw)
    ahead = median([one.taken - one.came for one in frames]) or 0.0
    unknown = clock_sentence("its", ahead) if abs(ahead) > ANOTHER_TIME else unknown
    least, most = (lag.least, lag.most) if lag else (0.0, 0.0)
    found = lag and (most, lag.fit, least)
    sharp = 1.0 if blur is None else blur[0]
    for what, value, text in (
        ("camera: rate", rate, "{:.1f} Hz"),
        ("camera: lag", found, "{:.2f} s, fit {:.2f}, from {:.2f}"),
        ("camera: sharpness when it turns", blur, "{:.2f} of that at rest, at {:.1f} rad/s"),
    ):
        if rate is not None and (value is not None or not unknown):  # else one sentence says it
            report.add(what, value, text)
    sentences = {
        f"the camera's lag is not known: {unknown}": bool(unknown),
        f"pictures come at {rate or 0.0:.1f} Hz; {SLOW_CAMERA:g} are needed": (
            rate is not None and rate < SLOW_CAMERA
        ),
        f"the camera's lag goes from {least:.2f} to {most:.2f} s": most - least > VARIES,
        "pictures are stamped ahead of their time: synchronize clocks (chrony)": least < -VARIES,
        f"pictures are blurred while it turns, to {sharp:.2f} of their sharpness: turn slower "
        "(limits.turn_speed), or shorten the exposure": sharp < LEAST_SHARPNESS,
    }
    report.stop_and_go += [sentence for sentence, holds in sentences.items() if holds]


def _parameters(
    report: CommissionReport, settings: TrialSettings, strafes: bool | None
) -> dict[str, Any]:
    """The parameters of navigator and drafter, by node; may add to ``refused``."""
    moves, turns, aside = report.axes
    turn = _axis(turns)
    limits = {
        "speed": settings.speed,
        "turn_speed": settings.turn_speed,
        "stops_within": settings.stops_within,
    }
    tried = tried_within(moves, settings.speed, settings.stops_within)
    faster, turning = moves.fastest, turns.fastest
    move = _stopping_axis(moves, tried)
    fastest = Limits(**limits, move=Axis(**move), turn=Axis(**turn), strafe=Axis())
    asked = round(settings.speed / faster, 2)  # the base goes faster than its command
    limits["turn_speed"] = round(settings.turn_speed / turning, 2)
    lower = asked < settings.speed or limits["turn_speed"] < settings.turn_speed
    if lower and not report.refused:  # which says more
        report.notes.append(
            "it outruns its commands; limits.speed and limits.turn_speed are lower by that"
        )
    top = min(asked, math.floor(100 * min(fastest.top_speed, tried) + 1e-6) / 100)
    if top < max(0.05, fastest.move.slowest):
        report.refused.append("it is slower to stop than to move: there is no speed for it")
    elif top < asked:
        report.slower.append(
            f"above {top:g} m/s it does not stand within {settings.stops_within:g} m of a fault, "
            "or was not tried; limits.speed is that"
        )
    drive = STOP_AND_GO if report.stop_and_go or report.refused else CONTINUOUS
    limits["speed"] = max(0.05, top)
    axes = {"move": move, "turn": turn}
    if strafes is False:
        limits["lateral_speed"] = 0.0
    elif aside.runs:
        most = tried_within(aside, settings.lateral_speed, settings.stops_within)
        axes["strafe"] = _stopping_axis(aside, most)
        top = math.floor(100 * min(most, settings.lateral_speed / aside.fastest) + 1e-6) / 100
        limits["lateral_speed"] = top if top > axes["strafe"].get("slowest", 0.0) else 0.0
    nodes: dict[str, Any] = {"navigator": {"drive": drive, "limits": {**limits, **axes}}}
    if report.obstacles:
        nodes["navigator"]["obstacles"] = report.obstacles
    if report.lags and not report.stop_and_go:
        nodes["drafter"] = {"camera_lag": round(max(0.0, report.lags.most), 2)}
    return {f"/**/{node}": {"ros__parameters": values} for node, values in nodes.items()}


def _axis(found: AxisFigures) -> dict[str, float]:
    """The known fields of ``Axis``, limited to their ranges."""
    known = {item.name: item.metadata["range"] for item in fields(Axis)}
    return {
        name: float(f"{min(most, max(least, value)):.3f}")
        for name, (least, most) in known.items()
        if (value := getattr(found, name)) is not None
    }


def _stopping_axis(found: AxisFigures, tried: float) -> dict[str, float]:
    """As ``_axis``, with an overshoot of what it needed to stop from the speeds up to ``tried``, so
    that ``Axis.stopping`` is never less."""
    axis = _axis(found)
    beyond = REACTION_S * (found.fastest - 1.0) - max(0.0, found.braking or 0.0)
    ways = [far + speed * beyond for speed, far, _ in found.stopping if speed <= tried]
    most = max([axis.get("overshoot", 0.0), *ways])
    return {**axis, "overshoot": float(f"{min(1.0, most):.3f}")}


def tried_within(found: AxisFigures, fastest: float, stops_within: float) -> float:
    """The fastest tried speed, or one between, from which the base stopped within this, m; at most
    ``fastest``, m/s."""
    if not found.stopping:
        return fastest
    speeds, ways, _ = np.array(found.stopping).T
    totals = np.maximum.accumulate(ways + REACTION_S * speeds * found.fastest)
    return min(fastest, float(np.interp(stops_within, [0.0, *totals], [0.0, *speeds])))


def write_parameters(report: CommissionReport, path: Path) -> Path:
    """Write ``robot.yaml`` atomically; if something is refused, under a name that says so.

    Raises UserError.
    """
    if report.refused:
        path = path.with_suffix(".refused" + path.suffix)
    lines = ["Written by edge-cloud-spec commission; launch with robot:=FILE.", *report.sentences]
    lines += [f"not measured: {one}" for one in report.missing]
    text = "".join(f"# {one}\n" for one in lines)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text + yaml.safe_dump(report.parameters, sort_keys=False), "utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    return path
