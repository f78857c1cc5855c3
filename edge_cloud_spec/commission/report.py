"""What figures mean: parameters of the robot, what is refused, what is not known, and a page."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..errors import UserError
from ..nav.motion import REACTION, Axis, Limits
from ..nav.settings import CONTINUOUS, STOP_AND_GO
from .camera import FITS, LAGS, Frame, blur_of, lag_of
from .figures import (
    MOVE,
    TURN,
    AxisFigures,
    Recording,
    Run,
    axis_figures,
    obeys_zero,
    odometry_of,
    rate_of,
    timeout_of,
)
from .trials import Settings

DRIFTS = (0.02, 0.05)  # m/s, rad/s at most of a base that stands
SCALE = 0.05  # of a metre that odometry may be off by
SLOW_ODOMETRY, SLOW_CAMERA = 10.0, 5.0  # messages a second at least
SHARP = 0.6  # of the sharpness at least, while it turns
VARIES = 0.05  # s by which the lag may differ between thirds of the time
RANGES = {"response": 1.0, "braking": 1.5, "slowest": 1.0, "overshoot": 1.0, "drift": 0.5}
NOT_MEASURED = (
    "the camera's height and tilt: the models were trained at about 0.6 m and more; measure both",
    "its exposure: the pictures' topic does not carry it; blur is what shows of it",
)
Curve = tuple[str, Sequence[float], Sequence[float]]  # colour, x, y


@dataclass
class Report:
    """``lines``: (what, value) to read; ``missing``: what is not known. ``parameters`` by node.

    Sentences: ``refused`` is what nobody should drive with, ``slower`` which speeds are refused,
    ``stands`` why it must stand to decide.
    """

    axes: tuple[AxisFigures, AxisFigures]
    lines: list[tuple[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    slower: list[str] = field(default_factory=list)
    stands: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    fits: np.ndarray | None = None

    def tell(self, what: str, value: float | tuple[float, ...] | None, text: str) -> None:
        """A figure in these words, or that it is not known."""
        if value is None:
            self.missing.append(what)
        else:
            values = value if isinstance(value, tuple) else (value,)
            self.lines.append((what, text.format(*values)))

    def __str__(self) -> str:
        wide = max((len(what) for what, _ in self.lines), default=0)
        parts = [
            *(f"  {what:{wide}}  {text}" for what, text in self.lines),
            *(f"refused: {one}" for one in [*self.refused, *self.slower]),
            *(f"stands to decide: {one}" for one in self.stands),
            *(f"not measured: {one}" for one in [*self.missing, *NOT_MEASURED]),
        ]
        return "\n".join(parts)


def report_of(recording: Recording, settings: Settings) -> Report:
    """What a recording tells, whole or not."""
    report = Report((axis_figures(recording, MOVE), axis_figures(recording, TURN)))
    for axis, name in ((MOVE, "moves"), (TURN, "turns")):
        _tell_axis(report, axis, name)
    _tell_base(report, recording)
    _tell_odometry(report, recording)
    lag = _tell_camera(report, recording)
    report.parameters = _parameters(report, settings, lag)
    return report


def _tell_axis(report: Report, axis: int, name: str) -> None:
    found, unit = report.axes[axis], ("{:.3f} m", "{:.1f} degrees")[axis]

    def shown(value: float | None) -> float | None:
        return value if value is None or axis == MOVE else math.degrees(value)

    report.tell(
        f"{name}: dead band", shown(found.slowest), unit + "/s" if found.slowest else "none"
    )
    report.tell(f"{name}: response", found.response, "{:.3f} s")
    report.tell(f"{name}: braking", found.braking, "{:.3f} s")
    report.tell(f"{name}: speed over commanded", found.ratio, "{:.3f}")
    about = "{:.2f} of the commanded (from {:.2f} to {:.2f})"
    report.tell(f"{name}: executed", found.executed, about)
    report.tell(f"{name}: overshoot, at most", shown(found.overshoot), unit)
    report.tell(f"{name}: drift at zero", shown(found.drift), unit + "/s")
    for speed, far, took in found.stopping:
        at = f"{name}: stops from {unit}/s".format(shown(speed))
        report.tell(at, shown(max(0.0, far)), f"within {unit} and {took:.2f} s")
    if (found.drift or 0.0) > DRIFTS[axis]:
        moving = unit.format(shown(found.drift))
        report.refused.append(
            f"it moves though it is told to stand, {moving}/s: trim it, or have its driver stand"
        )


def _tell_base(report: Report, recording: Recording) -> None:
    timeout = timeout_of(recording, report.axes)
    report.tell("zero commands", obeys_zero(recording), "it stands {:.2f} s after the first")
    said = "none" if timeout == math.inf else "{:.2f} s after the last command"
    report.tell("the base's own time-out", timeout, said)
    if timeout == math.inf:
        report.refused.append(
            "it goes on when commands end: nothing stops it when this computer fails; give its "
            "driver a time-out"
        )


def _tell_odometry(report: Report, recording: Recording) -> None:
    stamps = recording.stamps
    rate = rate_of([stamp for stamp, _ in stamps])
    delay = float(np.median([came - stamp for stamp, came in stamps])) if stamps else None
    steps = [math.dist(a[1:3], b[1:3]) for a, b in pairwise(recording.poses)]
    scale = recording.metre and recording.metre[1] / recording.metre[0]
    report.tell("odometry: rate", rate, "{:.0f} Hz")
    report.tell("odometry: delay, by its stamps", delay, "{:.3f} s")
    report.tell("odometry: longest step", max(steps, default=None), "{:.3f} m")
    report.tell("odometry: of a metre by the tape", scale, "{:.3f} m")
    if abs((scale or 1.0) - 1.0) > SCALE:
        report.refused.append(
            f"odometry tells {scale:.2f} m of a metre by the tape: set its scale in its driver"
        )
    if rate is not None and rate < SLOW_ODOMETRY:
        report.refused.append(f"odometry comes at {rate:.1f} Hz; {SLOW_ODOMETRY:g} are needed")


def _tell_camera(report: Report, recording: Recording) -> float | None:
    """The lag to drive on with; None: it must stand to decide, and ``stands`` has why."""
    frames, stands = recording.frames, report.stands
    rate = rate_of([frame.taken for frame in frames])
    report.tell("camera: rate", rate, "{:.1f} Hz")
    if rate is None or not recording.stamps:
        stands.append("the camera's lag is not known: there were no pictures")
        report.missing += ["camera: lag", "camera: sharpness when it turns"]
        return None
    if rate < SLOW_CAMERA:
        stands.append(f"pictures come at {rate:.1f} Hz; {SLOW_CAMERA:g} are needed")
    at, yaw = odometry_of(recording)
    lag = None
    try:
        looks = frames[recording.looks[0] :], at[recording.looks[1] :], yaw[recording.looks[1] :]
        lag, fit, report.fits = lag_of(*looks)
        lags = [lag, *_thirds(*looks)]
        found = max(lags), fit, min(lags)
        report.tell("camera: lag", found, "{:.2f} s, fit {:.2f}, from {:.2f}")
        lag = max(0.0, *lags)
        if max(lags) - min(lags) > VARIES:
            stands.append(f"the camera's lag goes from {min(lags):.2f} to {max(lags):.2f} s")
        if min(lags) < -VARIES:
            stands.append("pictures are stamped ahead of their time: synchronize clocks (chrony)")
    except UserError as error:
        report.missing.append("camera: lag")
        stands.append(f"the camera's lag is not known: {error}")
    blur = blur_of(frames, lag or 0.0, at, yaw)
    turning = "{:.2f} of that at rest, at {:.1f} rad/s"
    report.tell("camera: sharpness when it turns", blur, turning)
    if blur and blur[0] < SHARP:
        stands.append(
            f"pictures are blurred while it turns, to {blur[0]:.2f} of their sharpness: turn "
            "slower (limits.turn_speed), or shorten the exposure"
        )
    return None if stands else lag


def _thirds(frames: Sequence[Frame], at: np.ndarray, yaw: np.ndarray) -> Iterable[float]:
    """The lag in each third of the time in which it turned much, where it can be told."""
    turned = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(yaw)))])
    edges = np.interp(np.linspace(0.0, turned[-1], 4), turned, at)
    for begin, end in pairwise(edges):
        inside = (at >= begin) & (at <= end)
        seen = [one for one in frames if begin <= one.taken <= end]
        try:
            yield lag_of(seen, at[inside], yaw[inside])[0]
        except UserError:
            continue


def _parameters(report: Report, settings: Settings, lag: float | None) -> dict[str, Any]:
    """Of navigator and drafter, by node; may add to what is refused."""
    axes: list[dict[str, float]] = [{}, {}]
    for found, axis in zip(report.axes, axes, strict=True):
        for name, most in RANGES.items():
            value: float | None = getattr(found, name)
            if value is not None:
                axis[name] = float(f"{min(most, max(0.0, value)):.3f}")
    limits = Limits(
        speed=settings.speed,
        turn_speed=settings.turn_speed,
        stops_within=settings.stops_within,
        move=Axis(**axes[MOVE]),
        turn=Axis(**axes[TURN]),
    )
    tried = tried_within(report.axes[MOVE], settings)
    top = math.floor(100 * min(limits.top_speed, tried) + 1e-6) / 100
    if top < settings.speed:
        report.slower.append(
            f"above {top:g} m/s it does not stand within {settings.stops_within:g} m of a fault, "
            "or was not tried; limits.speed is that"
        )
    if top < max(0.05, limits.move.slowest):
        report.refused.append("it is slower to stop than to move: there is no speed for it")
    chosen = {
        "drive": STOP_AND_GO if report.stands or report.refused else CONTINUOUS,
        "limits": {
            "speed": max(0.05, top),
            "turn_speed": settings.turn_speed,
            "stops_within": settings.stops_within,
            "move": axes[MOVE],
            "turn": axes[TURN],
        },
    }
    parameters: dict[str, Any] = {"/**/navigator": {"ros__parameters": chosen}}
    if lag is not None:
        parameters["/**/drafter"] = {"ros__parameters": {"camera_lag": round(lag, 2)}}
    return parameters


def tried_within(moves: AxisFigures, settings: Settings) -> float:
    """The fastest speed, of those that were tried and between them, from which it stood in time."""
    if not moves.stopping:
        return settings.speed
    speeds, ways, _ = np.array(moves.stopping).T
    totals = np.maximum.accumulate(ways + REACTION * speeds * (moves.ratio or 1.0))
    return float(np.interp(settings.stops_within, [0.0, *totals], [0.0, *speeds]))


def write_parameters(report: Report, path: Path) -> Path:
    """``robot.yaml``, whole or not at all; where something is refused, under a name that says so.

    Raises UserError.
    """
    if report.refused:
        path = path.with_suffix(".refused" + path.suffix)
    said = [f"# refused: {one}\n" for one in [*report.refused, *report.slower]]
    said += [f"# stands to decide: {one}\n" for one in report.stands]
    text = "".join(["# Written by edge-cloud-spec commission; launch with robot:=FILE.\n", *said])
    write_whole(path, text + yaml.safe_dump(report.parameters, sort_keys=False))
    return path


def write_whole(path: Path, text: str) -> None:
    """The file with this text, or as it was; raises UserError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


# The page

_STYLE = """body{font:15px/1.45 sans-serif;margin:2em auto;max-width:60em;color:#222;padding:0 1em}
table{border-collapse:collapse}td{padding:.15em 1em .15em 0;border-bottom:1px solid #eee}
.bad{color:#a30}svg{margin:.5em 1em .5em 0}text{font:11px sans-serif;fill:#555}
pre{background:#f5f5f2;padding:1em}"""
COLOURS = ("#2b6cb0", "#d69e2e", "#c53030", "#2f855a", "#6b46c1")
GREY = "#bbb"


def page_of(report: Report, title: str) -> str:
    """A page that needs nothing else: figures, what is refused, curves."""
    rows = "".join(f"<tr><td>{_text(a)}<td>{_text(b)}" for a, b in report.lines)
    bad = [f"<b>Refused:</b> {_text(one)}" for one in [*report.refused, *report.slower]]
    bad += [f"<b>Stands to decide:</b> {_text(one)}" for one in report.stands]
    missing = "".join(f"<li>{_text(one)}" for one in [*report.missing, *NOT_MEASURED])
    charts = [
        chart
        for axis, name, unit in ((MOVE, "Moves", "m/s"), (TURN, "Turns", "rad/s"))
        for chart in (
            _chart(f"{name}: speed, {unit}, over s", _speeds(report.axes[axis].runs)),
            _chart(f"{name}: executed over commanded, by {unit}", _shares(report.axes[axis].runs)),
        )
    ]
    if report.fits is not None:
        fits: list[Curve] = [
            (COLOURS[0], LAGS.tolist(), report.fits.tolist()),
            (GREY, [LAGS[0], LAGS[-1]], [FITS] * 2),
        ]
        charts.append(_chart("Camera: fit over its lag, s", fits))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{_text(title)}</title>"
        f"<style>{_STYLE}</style><h1>{_text(title)}</h1>"
        + "".join(f"<p class=bad>{one}</p>" for one in bad)
        + f"<table>{rows}</table><p>Grey: commanded. A colour: a speed.</p>{''.join(charts)}"
        + f"<h2>Not measured</h2><ul>{missing}</ul><h2>Parameters</h2>"
        + f"<pre>{_text(yaml.safe_dump(report.parameters, sort_keys=False))}</pre></html>\n"
    )


def _text(text: str) -> str:
    return html.escape(text, quote=False)


def _speeds(runs: Sequence[Run]) -> list[Curve]:
    """Executed speed over time of the fastest that were held, and in grey what was commanded."""
    speeds = sorted({round(run.speed, 2) for run in runs if run.held >= 1.0})[-4:]
    held = [run for run in runs if run.held >= 1.0 and round(run.speed, 2) in speeds]
    curves: list[Curve] = []
    for run in held:
        grid = np.arange(run.begin - 0.2, min(run.rest, run.end + 2.0), 0.02)
        made = (
            np.interp(grid + 0.06, run.times, run.covered)
            - np.interp(grid - 0.06, run.times, run.covered)
        ) / 0.12
        ends = run.end - run.begin
        curves.append(
            (GREY, [-0.2, 0.0, 0.0, ends, ends, ends + 2.0], [0, 0, run.speed, run.speed, 0, 0])
        )
        colour = COLOURS[speeds.index(round(run.speed, 2)) % len(COLOURS)]
        curves.append((colour, (grid - run.begin).tolist(), made.tolist()))
    return sorted(curves, key=lambda curve: curve[0] != GREY)


def _shares(runs: Sequence[Run]) -> list[Curve]:
    """A short stroke for each run: executed over commanded at its speed."""
    most = max((run.speed for run in runs), default=1.0)
    strokes = [
        (
            COLOURS[run.sign < 0],
            [run.speed - most / 90, run.speed + most / 90],
            [run.stands / run.commanded] * 2,
        )
        for run in runs
    ]
    return [(GREY, [0.0, most], [1.0, 1.0]), *strokes]


def _chart(title: str, curves: Sequence[Curve]) -> str:
    """An SVG of 430 by 230; empty where there is nothing to draw."""
    if len(curves) < 2:
        return ""
    xs = np.concatenate([np.asarray(x, float) for _, x, _ in curves])
    ys = np.concatenate([np.asarray(y, float) for _, _, y in curves])
    left, right, low, high = xs.min(), xs.max(), min(0.0, ys.min()), ys.max() or 1.0
    parts = [f"<text x=8 y=14><tspan font-weight=bold>{_text(title)}</tspan></text>"]
    for share in (0.0, 0.5, 1.0):
        x, y = 44 + 376 * share, 205 - 180 * share
        parts.append(f"<line x1=44 x2=420 y1={y:.0f} y2={y:.0f} stroke=#eee />")
        parts.append(f"<text x=4 y={y + 4:.0f}>{low + share * (high - low):.2g}</text>")
        parts.append(f"<text x={x - 8:.0f} y=222>{left + share * (right - left):.2g}</text>")
    across, up = 376 / (right - left), 180 / (high - low)
    for colour, along, made in curves:
        points = " ".join(
            f"{44 + across * (a - left):.1f},{205 - up * (b - low):.1f}"
            for a, b in zip(along, made, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill=none stroke="{colour}" stroke-width=1.5 />')
    return f"<svg width=430 height=230>{''.join(parts)}</svg>"
