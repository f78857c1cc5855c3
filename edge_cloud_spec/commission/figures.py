"""Computes figures of a base from commands and odometry: pure functions.

A *run* is a command from standing to standing along one axis. All figures are based on areas, which
noise and a gait's sway hardly change: a base with a lag covers what was commanded later, so the
seconds that it is behind are its response time; what it covers after the command's end, divided by
its speed, is its braking time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..nav.footprint import ObstacleSettings, Points
from .camera import PictureFeatures

MOVE, TURN, STRAFE = 0, 1, 2  # axes of a base
GROUND = 3  # of a drift: its speed over ground
NO_MESSAGE = math.nan  # as a command: nothing was sent
Drift = tuple[float, float, float, float]
NO_DRIFT: Drift = (0.0, 0.0, 0.0, 0.0)

# Of each axis: m/s ahead, rad/s, m/s to the left; or m, rad, m.
NO_COMMAND = (0.005, 0.005, 0.005)  # what a stop is nudged by is no command
OTHER_AXIS = (0.06, 0.12, 0.06)  # that another axis may be commanded meanwhile
STOOD_AFTER_S = 0.9  # s of standing, after which a run has ended
STOOD_BEFORE_S = 0.25  # s of standing, after which one may begin
STEADY_AFTER_S = 0.7  # s after which a speed is steady
STEADY_HELD_S = 1.2  # s of one command, from which a steady speed is measured
PACE_SPAN_S = 0.2  # s over which a speed is measured; a gait sways in less
ODOMETRY_PAUSE_S = 0.5  # s without odometry, over which nothing is measured
REST_MEAN_S = 0.4  # s at the end of a stand, of which the mean is where it stands
DRIFT_SPAN_S = 3.0  # s of standing, from which a drift is measured
MOVED_SHARE = 0.5  # of what was commanded, with which a base has moved
AT_REST_WITHIN = (0.02, math.radians(2), 0.02)  # about where it stands in the end
LOWEST_SPEEDS = (0.03, 0.06, 0.03)  # that count as no dead band
FASTEST_RATIOS = (1.2, 1.3)  # of its commands that a base may go: mean of both directions, and one
HURRIES = (0.24, 0.5, 0.24)  # from which a base that goes does not lose its speed by itself
WENT, LOSES = 0.75, 0.3  # of its command that it went; s at its end, and share that is left of that


@dataclass
class TrialMeasurements:
    """The commands, poses and pictures of a drive; only ever appended to.

    ``commands``: since when (monotonic s), then of each axis; NO_MESSAGE while nothing was sent.
    ``poses``: time of arrival, m, m, rad unwrapped. ``stamps`` of these: stamp and arrival by ROS
    time, s. ``metre``: a distance by tape and by odometry, m. ``zeroed``: when a run was ended by
    zero commands only. ``strafes``: whether it moves sideways; None: not tried. ``looks``: the
    first frame and pose of the turns for the camera. ``scans`` of each lidar: time of arrival, and
    points [n, 2]; ``blind``: what is wrong with its newest; ``obstacles``: the navigator's.
    """

    commands: list[tuple[float, float, float, float]] = field(default_factory=list)
    poses: list[tuple[float, float, float, float]] = field(default_factory=list)
    stamps: list[tuple[float, float]] = field(default_factory=list)
    frames: list[PictureFeatures] = field(default_factory=list)
    metre: tuple[float, float] | None = None
    zeroed: float = math.nan
    strafes: bool | None = None
    looks: tuple[int, int] = (0, 0)
    scans: dict[str, list[tuple[float, Points]]] = field(default_factory=dict)
    blind: dict[str, str] = field(default_factory=dict)
    obstacles: ObstacleSettings = field(default_factory=ObstacleSettings)
    _path: np.ndarray = field(
        default_factory=lambda: np.empty((0, 4)), init=False, repr=False, compare=False
    )

    @property
    def path(self) -> np.ndarray:
        """``poses`` [n, 4]. Each trial looks at all of them several times: only new ones are
        converted."""
        if len(self._path) < len(self.poses):
            new = np.reshape(self.poses[len(self._path) :], (-1, 4))
            self._path = np.concatenate([self._path, new])
        return self._path

    def command(self, now: float, speed: float, turn: float, aside: float = 0.0) -> None:
        """Record a command, in force from now on."""
        last = self.commands[-1][1:] if self.commands else ()
        silent = math.isnan(speed) and last and math.isnan(last[0])
        if last != (speed, turn, aside) and not silent:
            self.commands.append((now, speed, turn, aside))

    def since(self, at: float) -> TrialMeasurements:
        """The commands from then on, and the poses from a second before."""
        first, seen = (
            bisect_left(rows, when, key=itemgetter(0))
            for rows, when in ((self.commands, at), (self.poses, at - 1.0))
        )
        path = self.path  # first: what comes meanwhile is in neither, or in the poses alone
        later = replace(self, commands=self.commands[first:], poses=self.poses[seen:])
        later._path = path[seen:]
        return later


class Steady(NamedTuple):
    """The steady part of a held command: actual speed, m/s or rad/s; its ratio to the commanded
    speed; how far it was behind, and how far it rolled on afterwards, m or rad; ``sure``: its
    duration, s."""

    speed: float
    ratio: float
    behind: float
    rolls: float
    sure: float


@dataclass(frozen=True)
class Run:
    """A command along one axis and the motion that followed, positive in its direction: m or rad,
    s.

    ``times``, ``covered``: odometry's, from ``begin`` to ``rest``, when the next run began.
    ``speed``: the last commanded, for ``held`` s; ``silent``: since when nothing was sent.
    ``drift``: the base's speed when commanded to stand.
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
    drift: float
    times: np.ndarray
    covered: np.ndarray

    def at(self, time: float | np.ndarray) -> Any:
        """The distance covered at this time, m or rad."""
        return np.interp(time, self.times, self.covered)

    @property
    def executed(self) -> np.ndarray:
        """The distance covered over time, without drift since the command's end, m or rad."""
        return self.covered - self.drift * np.maximum(0.0, self.times - self.end)

    @property
    def ended(self) -> float:
        """The distance covered when the base stood again, m or rad."""
        # The last known, where odometry paused.
        since = min(self.rest - REST_MEAN_S, self.times[-1])
        return float(np.mean(self.executed[self.times >= since]))

    @property
    def farthest(self) -> float:
        """The largest distance reached after the command's end, even briefly; m or rad."""
        return float(np.max(self.executed[self.times >= self.end]))

    @property
    def took(self) -> float:
        """Seconds from the command's end until the base stood."""
        away = np.abs(self.executed - self.ended) > AT_REST_WITHIN[self.axis]
        return float(max([0.0, *(self.times[away] - self.end)]))

    @property
    def moves(self) -> bool:
        """Whether the base covered about as much as commanded."""
        return self.ended >= MOVED_SHARE * self.commanded

    @property
    def blocked(self) -> bool:
        """Whether it lost its speed before the end of a command that was held."""
        if (
            self.speed < HURRIES[self.axis]
            or self.held < STEADY_HELD_S
            or math.isfinite(self.silent)
        ):
            return False
        *paces, last = np.diff(self.at(np.arange(self.end, self.begin, -LOSES)[::-1])) / LOSES
        went = float(np.quantile(paces, 0.75))
        return went > WENT * self.speed and bool(last < LOSES * went)

    @property
    def steady(self) -> Steady | None:
        """The steady part of a held command; None if there is none."""
        since = self.end - self.held + STEADY_AFTER_S
        window = (self.times >= since) & (self.times <= self.end)
        if self.held < STEADY_HELD_S or window.sum() < 5 or math.isfinite(self.silent):
            return None
        speed, at_end = np.polyfit(self.times[window] - self.end, self.covered[window], 1)
        behind = self.commanded * speed / self.speed - at_end
        rolls, moving = self.farthest - at_end, speed - self.drift
        return Steady(moving, speed / self.speed, behind, rolls, self.held - STEADY_AFTER_S)


@dataclass(frozen=True)
class AxisFigures:
    """How a base follows commands along one axis; m or rad, s; None: unknown.

    ``slowest`` as in ``nav.motion.Axis``; ``ratio``: steady speed over commanded; ``ratios``: of
    each direction; ``executed``: the share of the commanded distance, once it stands: median,
    least, most; ``stopping``: for each commanded speed the farthest distance and the longest time
    after a command's end.
    """

    runs: tuple[Run, ...] = ()
    slowest: float | None = None
    response: float | None = None
    braking: float | None = None
    overshoot: float | None = None
    drift: float | None = None
    ratio: float | None = None
    ratios: tuple[float, ...] = ()
    executed: tuple[float, float, float] | None = None
    stopping: tuple[tuple[float, float, float], ...] = ()

    @property
    def fastest(self) -> float:
        """The ratio of the faster direction; 1 at least."""
        return max((1.0, *self.ratios))


def runs_of(recording: TrialMeasurements) -> list[Run]:
    """All runs of a recording, in order."""
    groups, poses = _groups(recording), recording.path
    drift = _drift(groups, poses) or NO_DRIFT
    found: list[Run] = []
    stood = math.inf
    for (stands, group), (_, then) in pairwise(groups):
        if stands:
            stood = group[-1, 1] - group[0, 0]
        elif stood >= STOOD_BEFORE_S and then[-1, 1] - then[0, 0] >= STOOD_AFTER_S:
            found += _run(group, then[-1, 1], poses, drift)
    return found


def is_still(commands: ArrayLike) -> np.ndarray:
    """Whether these commands [..., 3] (of each axis) mean standing."""
    return np.asarray((np.abs(commands) < NO_COMMAND).all(axis=-1))


def _groups(recording: TrialMeasurements) -> list[tuple[bool, np.ndarray]]:
    """Groups of consecutive commands, each with whether it commands standing.

    [n, 5]: since and until when, then of each axis.
    """
    if len(recording.poses) < 2 or not recording.commands:
        return []
    commands = np.array(recording.commands)
    ends = np.append(commands[1:, 0], recording.poses[-1][0])
    spans = np.column_stack([commands[:, 0], ends, commands[:, 1:]])
    stands = is_still(commands[:, 1:])
    begins = np.flatnonzero(np.diff(stands)) + 1
    return list(zip(stands[[0, *begins]].tolist(), np.split(spans, begins), strict=True))


def _run(group: np.ndarray, rest: float, poses: np.ndarray, drift: Drift) -> list[Run]:
    """The run of a group of commands; none if it has two axes, both directions or no odometry."""
    sent = group[~np.isnan(group[:, 2])]
    most = np.abs(sent[:, 2:]).max(axis=0)
    moves = most[TURN] <= OTHER_AXIS[TURN] and max(most[MOVE], most[STRAFE]) >= NO_COMMAND[MOVE]
    axis = (MOVE if most[MOVE] >= most[STRAFE] else STRAFE) if moves else TURN
    along, lasted = sent[:, 2 + axis], sent[:, 1] - sent[:, 0]
    total = float(along @ lasted)
    begin, end, rest = sent[0, 0], group[-1, 1], min(rest, group[-1, 1] + 2.0)
    since, until = (poses[:, 0].searchsorted(*at) for at in ((begin - 0.3,), (rest, "right")))
    times, x, y, yaw = poses[since:until].T
    to_and_fro = abs(total) < 0.99 * np.abs(along) @ lasted
    others = {TURN: (MOVE, STRAFE), STRAFE: (MOVE,)}.get(axis, ())  # a move may correct its course
    both = any(most[other] > OTHER_AXIS[other] for other in others)
    if (
        to_and_fro
        or both
        or len(times) < 5
        or times[-1] < end
        or np.diff(times).max() > ODOMETRY_PAUSE_S
    ):
        return []
    way = yaw if axis == TURN else _ahead(x, y, yaw if axis == MOVE else yaw + math.pi / 2)
    sign = math.copysign(1.0, total)
    covered = sign * (way - np.interp(begin, times, way))
    changes = np.flatnonzero(np.diff(along))
    held = float(sent[-1, 1] - sent[changes[-1] + 1 if len(changes) else 0, 0])
    silent = float(sent[-1, 1]) if len(sent) < len(group) else math.inf
    values = abs(float(along[-1])), held, abs(total), silent, sign * drift[axis]
    return [Run(axis, sign, begin, end, rest, *values, times, covered)]


def _ahead(x: np.ndarray, y: np.ndarray, yaw: np.ndarray) -> np.ndarray:
    """Metres covered along a heading, which changes as the base's."""
    heading = (yaw[1:] + yaw[:-1]) / 2
    return np.concatenate(
        [[0.0], np.cumsum(np.cos(heading) * np.diff(x) + np.sin(heading) * np.diff(y))]
    )


def drift_of(recording: TrialMeasurements) -> Drift | None:
    """The drift of a base that is commanded to stand: of each axis, and over ground, m/s."""
    return _drift(_groups(recording), recording.path)


def _drift(groups: list[tuple[bool, np.ndarray]], poses: np.ndarray) -> Drift | None:
    sums, (times, x, y, yaw) = np.zeros(5), poses.T
    for stands, group in groups:
        begin, end = max(group[0, 0] + 1.0, times[0]), group[-1, 1]
        if stands and end - begin >= DRIFT_SPAN_S:
            (dx, dy, turned) = (np.diff(np.interp([begin, end], times, o))[0] for o in (x, y, yaw))
            heading = np.interp((begin + end) / 2, times, yaw)
            ahead = math.cos(heading) * dx + math.sin(heading) * dy
            aside = math.cos(heading) * dy - math.sin(heading) * dx
            sums += ahead, turned, aside, math.hypot(dx, dy), end - begin
    ahead, turned, aside, ground = (sums[:4] / (sums[4] or 1.0)).tolist()
    return (ahead, turned, aside, ground) if sums[4] else None


def axis_figures(recording: TrialMeasurements, axis: int) -> AxisFigures:
    """The figures of one axis, as far as the recording has them."""
    runs = tuple(run for run in runs_of(recording) if run.axis == axis)
    drifts = drift_of(recording)
    sent = [run for run in runs if math.isinf(run.silent)]
    follows = [run for run in sent if run.moves and run.speed > LOWEST_SPEEDS[axis]]
    stops = [run for run in follows if run.end != recording.zeroed]
    steady = [(run, found) for run in follows if (found := run.steady)]
    ratios = [(run.speed, found.ratio) for run, found in steady]
    shares = [run.ended / run.commanded for run in follows]
    # What it goes beyond that is overshoot.
    beyond = [
        run.farthest - run.commanded * min(FASTEST_RATIOS[1], max(1.0, near(ratios, run.speed)))
        for run in follows
    ]
    slowest = slowest_of(sent, axis)
    moves = [run for run in sent if run.speed > max(LOWEST_SPEEDS[axis], slowest or 0.0)]
    goes = [(run, found) for run in moves if (found := run.steady)]
    both = [_ratio([one for one in goes if one[0].sign == sign]) for sign in (-1.0, 1.0)]
    stopping: dict[float, list[Run]] = {}
    for run in sorted(stops, key=lambda one: one.speed):
        stopping.setdefault(round(run.speed, 2), []).append(run)
    return AxisFigures(
        runs=runs,
        slowest=slowest,
        response=_slope([(found.speed, found.behind, found.sure) for _, found in steady]),
        braking=_slope(
            [(found.speed, found.rolls, found.sure) for run, found in steady if run in stops]
        ),
        overshoot=max([0.0, *beyond]) if beyond else None,
        drift=drifts and abs(drifts[TURN if axis == TURN else GROUND]),
        ratio=_ratio(steady),
        ratios=tuple(ratio for ratio in both if ratio is not None),
        executed=(float(np.median(shares)), min(shares), max(shares)) if shares else None,
        stopping=tuple(
            (speed, max(run.farthest - run.at(run.end) for run in at), max(run.took for run in at))
            for speed, at in stopping.items()
        ),
    )


def near(ratios: Sequence[tuple[float, float]], speed: float) -> float:
    """The mean ratio at the known speeds nearest to this one; 1 if none is known."""
    least = min((abs(at - speed) for at, _ in ratios), default=0.0)
    return float(np.mean([r for at, r in ratios if abs(at - speed) <= least + 0.01] or [1.0]))


def slowest_of(runs: Sequence[Run], axis: int) -> float | None:
    """The slowest speed that moves the base; 0 if even LOWEST_SPEEDS does; None: not tried."""
    shares: dict[tuple[float, float], list[float]] = {}
    for run in runs:
        if run.held > max(1.0, 0.9 * (run.end - run.begin)):
            of = shares.setdefault((round(run.speed, 3), run.sign), [])
            of.append(run.ended / run.commanded)
    still = [speed for (speed, _), made in shares.items() if np.mean(made) < MOVED_SHARE]
    moves = [speed for speed, _ in shares if speed > max(still, default=0.0)]
    if not moves or (not still and min(moves) > LOWEST_SPEEDS[axis]):
        return None
    return min(moves) if still else 0.0


def timeout_of(recording: TrialMeasurements, axes: Sequence[AxisFigures]) -> float | None:
    """After how many seconds without commands the base stops by itself; infinite: never."""
    found = []
    for run in runs_of(recording):
        before = (run.times >= run.begin + STEADY_AFTER_S) & (run.times <= run.silent)
        if math.isinf(run.silent) or run.silent - run.begin < STEADY_HELD_S or before.sum() < 5:
            continue
        own = np.polyfit(run.times[before], run.covered[before], 1)[0] - run.drift
        centres = run.silent + np.arange(0.0, run.end - run.silent - PACE_SPAN_S / 2, 0.01)
        pace = (
            run.at(centres + PACE_SPAN_S / 2) - run.at(centres - PACE_SPAN_S / 2)
        ) / PACE_SPAN_S - run.drift
        slow = centres[pace < own / math.e]  # as of a lag that long
        if not len(slow):
            return math.inf
        # Not by how far it got: a base on legs turns back when it stops.
        found.append(max(0.0, slow[0] - run.silent - (axes[run.axis].braking or 0.0)))
    return median(found)


def obeys_zero(recording: TrialMeasurements) -> float | None:
    """Seconds until the base stood after nothing but zero commands; None: not tried."""
    return next((run.took for run in runs_of(recording) if run.end == recording.zeroed), None)


def odometry_of(recording: TrialMeasurements) -> tuple[np.ndarray, np.ndarray]:
    """Odometry's times, as the navigator dates them (stamp plus least latency, s), and its yaw,
    rad."""
    stamps, came = np.array(recording.stamps).T
    return stamps + (came - stamps).min(), recording.path[:, 3]


def rate_of(times: Sequence[float] | np.ndarray) -> float | None:
    """Messages per second, by their stamps."""
    known = np.unique(times)
    return float((len(known) - 1) / np.ptp(known)) if len(known) > 3 else None


def median(values: Sequence[float] | np.ndarray) -> float | None:
    """The median; None of an empty list."""
    return float(np.median(values)) if len(values) else None


def _ratio(runs: Sequence[tuple[Run, Steady]]) -> float | None:
    """The steady speed of these runs over the commanded."""
    return _slope([(run.speed, found.ratio * run.speed, found.sure) for run, found in runs])


def _slope(points: Sequence[tuple[float, float, float]]) -> float | None:
    """The slope of a line through the origin, for figures in seconds or ratios. Fast and long runs
    have the most weight, as noise and sway affect them least."""
    x, y, sure = np.array(points).reshape(-1, 3).T
    return float(x @ (y * sure**2) / (x @ (x * sure**2))) if len(x) else None
