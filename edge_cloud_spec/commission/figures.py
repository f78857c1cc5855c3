"""Figures of a base from what was commanded and what odometry told: pure functions.

A *run* is a command from standing to standing along one axis. All figures are of areas, which noise
and a gait's sway hardly change: a base with a lag covers later what was commanded, so the seconds
that it is behind are its response, and what it covers after the command's end, over its speed, its
braking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .camera import Frame

MOVE, TURN = 0, 1
UNIT = ("m", "rad")
SILENT = math.nan  # as a command: nothing was sent

NONE = (0.005, 0.005)  # m/s, rad/s; what a stop is nudged by is no command
ASIDE = (0.06, 0.12)  # m/s, rad/s that the other axis may be commanded meanwhile
STOOD = 0.9  # s of standing, after which a run has ended
BEFORE = 0.25  # s of standing, after which one may begin
SETTLE = 0.7  # s after which a speed is steady
HELD = 1.2  # s of one command, from which a steady speed is told
LATE = 0.4  # s at the end of a stand, of which the mean is where it stands
DRIFTS = 3.0  # s of standing, from which a drift is told
MOVED = 0.5  # of what was commanded, with which a base has moved
NEAR = (0.02, math.radians(2))  # m, rad about where it stands in the end
LOWEST = (0.03, 0.06)  # m/s, rad/s that count as no dead band


@dataclass
class Recording:
    """What was commanded, and what odometry and camera told; only ever added to.

    ``commands``: since when (steady s), m/s, rad/s; SILENT where nothing was sent. ``poses``: when
    it came, m, m, rad unwrapped. ``stamps`` of these: stamp and arrival by ROS time, s. ``metre``:
    what a tape measured of a way, and odometry of the same, m. ``zeroed``: when a run was ended by
    zero commands only. ``looks``: from which frame and pose on it turned for the camera.
    """

    commands: list[tuple[float, float, float]] = field(default_factory=list)
    poses: list[tuple[float, float, float, float]] = field(default_factory=list)
    stamps: list[tuple[float, float]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    metre: tuple[float, float] | None = None
    zeroed: float = math.nan
    looks: tuple[int, int] = (0, 0)

    def command(self, now: float, speed: float, turn: float) -> None:
        """This is commanded from now on."""
        last = self.commands[-1][1:] if self.commands else ()
        if last != (speed, turn) and not (math.isnan(speed) and last and math.isnan(last[0])):
            self.commands.append((now, speed, turn))


class Steady(NamedTuple):
    """Of a held command: the speed that came of it, m/s or rad/s; over what was commanded; by how
    much it was behind, and rolled on after its end, m or rad; ``sure``: s that it was steady."""

    speed: float
    ratio: float
    behind: float
    rolls: float
    sure: float


@dataclass(frozen=True)
class Run:
    """A command along one axis and what came of it, in its direction: m or rad, s.

    ``times``, ``covered``: odometry's, from ``begin`` to ``rest``, when the next began. ``speed``
    is the last that was commanded, for ``held`` s; ``silent``: since when nothing was sent.
    """

    axis: int
    sign: float
    begin: float
    end: float
    rest: float
    speed: float
    held: float
    commanded: float
    silent: float
    times: np.ndarray
    covered: np.ndarray

    def at(self, time: float) -> float:
        """Covered by then."""
        return float(np.interp(time, self.times, self.covered))

    def stands(self, drift: float) -> float:
        """Where it came to stand, without what it drifts since, at ``drift`` m/s or rad/s."""
        late = self.times >= self.rest - LATE
        beyond = self.sign * drift * (self.times[late] - self.end)
        return float(np.mean(self.covered[late] - beyond))

    def farthest(self, drift: float) -> float:
        """How far it got after the command's end, if only for a moment, without what it drifts."""
        after = self.times >= self.end
        beyond = self.sign * drift * (self.times[after] - self.end)
        return float(np.max(self.covered[after] - beyond))

    def steady(self, drift: float) -> Steady | None:
        """What it did of a command that was held; None where none was."""
        begin, end = self.end - self.held, self.end
        window = (self.times >= begin + SETTLE) & (self.times <= end)
        if self.held < HELD or window.sum() < 5 or math.isfinite(self.silent):
            return None
        speed, at_end = np.polyfit(self.times[window] - end, self.covered[window], 1)
        ratio = speed / self.speed
        moving = float(speed - self.sign * drift)
        behind, rolls = self.commanded * ratio - at_end, self.farthest(drift) - at_end
        return Steady(moving, float(ratio), float(behind), float(rolls), self.held - SETTLE)

    def moves_not(self, drift: float) -> bool:
        """Whether the base made well less of it than was commanded."""
        return self.stands(drift) < MOVED * self.commanded


@dataclass(frozen=True)
class AxisFigures:
    """What a base makes of commands along one axis; m or rad, s; None: not known.

    ``slowest`` as of ``nav.motion.Axis``; ``ratio``: steady speed over commanded; ``executed``: of
    what was commanded, once it stands, median and least and most; ``stopping``: by commanded speed,
    how far it went on at most after a command's end, and for how long.
    """

    runs: tuple[Run, ...] = ()
    slowest: float | None = None
    response: float | None = None
    braking: float | None = None
    overshoot: float | None = None
    drift: float | None = None
    ratio: float | None = None
    executed: tuple[float, float, float] | None = None
    stopping: tuple[tuple[float, float, float], ...] = ()


def runs_of(recording: Recording) -> list[Run]:
    """All runs, in order."""
    if len(recording.poses) < 2 or not recording.commands:
        return []
    poses, ends = np.array(recording.poses), [*recording.commands[1:], (recording.poses[-1][0],)]
    spans = [(*one, end[0]) for one, end in zip(recording.commands, ends, strict=True)]
    found: list[Run] = []
    group: list[tuple[float, float, float, float]] = []
    stood = math.inf
    for span in spans:
        if abs(span[1]) < NONE[0] and abs(span[2]) < NONE[1]:
            lasted = span[3] - span[0]
            if group and stood >= BEFORE and lasted >= STOOD:
                found += _run(group, span[3], poses)
            stood = lasted + (0.0 if group else stood)
            group = []
        else:
            group.append(span)
    return found


def _run(
    group: list[tuple[float, float, float, float]], rest: float, poses: np.ndarray
) -> list[Run]:
    given = np.array(group)
    sent = given[~np.isnan(given[:, 1])]
    if not len(sent):
        return []
    lasted = sent[:, 3] - sent[:, 0]
    sums = sent[:, 1:3].T @ lasted
    most = np.abs(sent[:, 1:3]).max(axis=0)
    axis = MOVE if most[MOVE] >= NONE[MOVE] and most[TURN] <= ASIDE[TURN] else TURN
    if (axis == TURN and most[MOVE] > ASIDE[MOVE]) or abs(sums[axis]) < 0.99 * np.abs(
        sent[:, 1 + axis]
    ) @ lasted:
        return []
    begin, end, sign = sent[0, 0], given[-1, 3], math.copysign(1.0, sums[axis])
    silent = float(sent[-1, 3]) if len(sent) < len(given) else math.inf
    rest = min(rest, end + 2.0)
    inside = (poses[:, 0] >= begin - 0.3) & (poses[:, 0] <= rest)
    if inside.sum() < 5 or poses[inside][-1, 0] < end:
        return []
    times, x, y, yaw = poses[inside].T
    way = yaw if axis == TURN else _ahead(x, y, yaw)
    covered = sign * (way - float(np.interp(begin, times, way)))
    same = sent[:, 1 + axis] == sent[-1, 1 + axis]
    first = len(same) - int(np.argmin(same[::-1])) if not same.all() else 0
    held, speed = float(sent[-1, 3] - sent[first, 0]), abs(float(sent[-1, 1 + axis]))
    total = abs(float(sums[axis]))
    return [Run(axis, sign, begin, end, rest, speed, held, total, silent, times, covered)]


def _ahead(x: np.ndarray, y: np.ndarray, yaw: np.ndarray) -> np.ndarray:
    """Metres made ahead, along wherever it looked."""
    heading = (yaw[1:] + yaw[:-1]) / 2
    return np.concatenate(
        [[0.0], np.cumsum(np.cos(heading) * np.diff(x) + np.sin(heading) * np.diff(y))]
    )


def drift_of(recording: Recording) -> tuple[float, float, float] | None:
    """(m/s ahead, rad/s to the left, m/s over ground) of a base that is told to stand."""
    if len(recording.poses) < 2:
        return None
    times, x, y, yaw = np.array(recording.poses).T
    commands = recording.commands or [(times[0] - 1.0, 0.0, 0.0)]
    sums = np.zeros(4)
    for (begin, speed, turn), end in zip(
        commands, [*[one[0] for one in commands[1:]], times[-1]], strict=True
    ):
        begin, end = max(begin + 1.0, times[0]), min(end, times[-1])
        if abs(speed) < NONE[0] and abs(turn) < NONE[1] and end - begin >= DRIFTS:
            dx, dy, turned = (
                np.diff(np.interp([begin, end], times, one))[0] for one in (x, y, yaw)
            )
            heading = float(np.interp((begin + end) / 2, times, yaw))
            ahead = math.cos(heading) * dx + math.sin(heading) * dy
            sums += ahead, turned, math.hypot(dx, dy), end - begin
    if not sums[3]:
        return None
    ahead, turned, ground = sums[:3] / sums[3]
    return float(ahead), float(turned), float(ground)


def axis_figures(recording: Recording, axis: int) -> AxisFigures:
    """The figures of one axis, as far as they are in it."""
    runs = tuple(run for run in runs_of(recording) if run.axis == axis)
    drifts = drift_of(recording)
    drift = drifts[axis] if drifts else 0.0
    heard = [run for run in runs if math.isinf(run.silent)]
    follows = [run for run in heard if not run.moves_not(drift) and run.speed > LOWEST[axis]]
    steady = [(run, found) for run in follows if (found := run.steady(drift))]
    stops = [run for run in follows if run.end != recording.zeroed]
    ratios = [(run.speed, found.ratio) for run, found in steady]
    shares = [run.stands(drift) / run.commanded for run in follows]
    beyond = [
        run.farthest(drift) - run.commanded * max(1.0, near(ratios, run.speed)) for run in follows
    ]
    return AxisFigures(
        runs=runs,
        slowest=slowest_of(heard, axis, drift),
        response=_slope([(found.speed, found.behind, found.sure) for _, found in steady]),
        braking=_slope(
            [(found.speed, found.rolls, found.sure) for run, found in steady if run in stops]
        ),
        overshoot=max([0.0, *beyond]) if beyond else None,
        drift=abs(drifts[2] if axis == MOVE else drift) if drifts else None,
        ratio=_slope([(run.speed, found.ratio * run.speed, found.sure) for run, found in steady]),
        executed=(float(np.median(shares)), min(shares), max(shares)) if shares else None,
        stopping=tuple(
            (
                speed,
                max(run.farthest(drift) - run.at(run.end) for run in at),
                max(_took(run, drift) for run in at),
            )
            for speed in sorted({round(run.speed, 2) for run in stops})
            if (at := [run for run in stops if round(run.speed, 2) == speed])
        ),
    )


def near(ratios: Sequence[tuple[float, float]], speed: float) -> float:
    """The ratio of the speeds that are nearest to this one; 1 where none is known."""
    least = min((abs(at - speed) for at, _ in ratios), default=0.0)
    return float(np.mean([r for at, r in ratios if abs(at - speed) <= least + 0.01] or [1.0]))


def slowest_of(runs: Sequence[Run], axis: int, drift: float) -> float | None:
    """The slowest speed from which on it moves; 0 where it moves at LOWEST; None: not tried."""
    shares: dict[tuple[float, float], list[float]] = {}
    for run in runs:
        if run.held > max(1.0, 0.9 * (run.end - run.begin)):
            of = shares.setdefault((round(run.speed, 3), run.sign), [])
            of.append(run.stands(drift) / run.commanded)
    still = [speed for (speed, _), made in shares.items() if np.mean(made) < MOVED]
    moves = [speed for speed, _ in shares if speed > max(still, default=0.0)]
    if not moves or (not still and min(moves) > LOWEST[axis]):
        return None
    return min(moves) if still else 0.0


def timeout_of(recording: Recording, axes: Sequence[AxisFigures]) -> float | None:
    """Seconds after its last command at which a base stops by itself; infinite: it does not."""
    drifts, found = drift_of(recording) or (0.0, 0.0, 0.0), []
    for run in runs_of(recording):
        made, drift, driven = axes[run.axis], run.sign * drifts[run.axis], run.silent - run.begin
        if math.isinf(run.silent) or driven < HELD:
            continue
        speed = run.speed * (made.ratio or 1.0) - drift
        if run.at(run.end) - run.at(run.end - 0.8) > 0.8 * (drift + 0.5 * speed):
            return math.inf
        rolled = run.stands(0.0) - drift * (run.rest - LATE / 2 - run.begin)
        lags = (made.response or 0.0) - (made.braking or 0.0)
        found.append(max(0.0, rolled / speed - driven + lags))
    return _median(found)


def obeys_zero(recording: Recording, drift: float) -> float | None:
    """Seconds until it stood after zero commands without more."""
    found = [run for run in runs_of(recording) if run.end == recording.zeroed]
    return _took(found[0], drift) if found else None


def odometry_of(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """When it was, as the navigator has it (stamps and their least latency, s), and its yaw."""
    stamps, came = np.array(recording.stamps).T
    return stamps + (came - stamps).min(), np.array(recording.poses)[:, 3]


def noise_of(recording: Recording) -> tuple[float, float] | None:
    """(m, rad): deviation of odometry from a line while the base is told to stand."""
    for (begin, *given), (end, *_) in pairwise([*recording.commands, (math.inf, 0.0, 0.0)]):
        poses = np.array([one for one in recording.poses if begin + 1.0 <= one[0] < end])
        if not any(given) and len(poses) > 20:
            at = poses[:, 0] - begin
            rests = [one - np.polyval(np.polyfit(at, one, 1), at) for one in poses.T[1:]]
            return float(np.hypot(rests[0].std(), rests[1].std())), float(rests[2].std())
    return None


def rate_of(times: Sequence[float]) -> float | None:
    """Messages a second, by their stamps."""
    steps = np.diff(np.unique(times))
    return float(1.0 / np.median(steps)) if len(steps) > 2 else None


def _took(run: Run, drift: float) -> float:
    beyond = run.covered - run.sign * drift * np.maximum(0.0, run.times - run.end)
    away = run.times[(np.abs(beyond - run.stands(drift)) > NEAR[run.axis]) & (run.times > run.end)]
    return float(away[-1] - run.end) if len(away) else 0.0


def _slope(points: Sequence[tuple[float, float, float]]) -> float | None:
    """Of a line through the origin: what is seconds or a ratio at any speed. Fast and long runs
    count most, of which noise and sway are the least part."""
    x, y, sure = np.array(points).reshape(-1, 3).T
    return float(x @ (y * sure**2) / (x @ (x * sure**2))) if len(x) else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
