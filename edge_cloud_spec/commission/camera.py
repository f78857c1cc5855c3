"""Measures the camera while the base turns: its lag behind odometry, and its blur.

Pictures shift sideways as the base turns; the lag is the delay at which the shift fits odometry
best.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import UserError, refuse
from ..models.image import MAX_SIDE, decode_image

COLUMNS_WIDE = 192  # columns of a picture
LARGEST_SHIFT = COLUMNS_WIDE // 4  # that one picture is moved against the one before
LAGS = np.arange(-0.2, 6.0, 0.01)  # s
FITS = 0.8  # correlation from which on a lag is believed
LEAST_TURN_RAD = np.radians(120)  # in all, without which there is nothing to fit
FEWEST = 20  # pictures, and messages of odometry
RESTING_RATE, TURNING_RATE = 0.05, 0.3  # rad/s at most, and at least


@dataclass(frozen=True)
class PictureFeatures:
    """Features of a picture; ``taken``: its stamp, ``came``: its arrival, ROS time in s.

    ``columns``: the mean brightness of each of ``COLUMNS_WIDE`` columns. ``sharpness``: horizontal
    over vertical edges; a turn of the camera blurs the former first, whatever the scene.
    """

    taken: float
    came: float
    columns: np.ndarray
    sharpness: float


def frame_of(jpeg: bytes, taken: float, came: float) -> PictureFeatures:
    """The features of a JPEG or PNG; raises UserError."""
    try:
        grey = decode_image(jpeg, MAX_SIDE**2).convert("L")
    except UserError as error:
        raise UserError(f"a picture cannot be read: {error}") from None
    columns = np.asarray(grey.resize((COLUMNS_WIDE, COLUMNS_WIDE)), np.float64).mean(axis=0)
    pixels = np.asarray(grey, np.float64)
    across, along = (np.square(np.diff(pixels, axis=axis)).mean() for axis in (1, 0))
    return PictureFeatures(
        taken, came, columns - columns.mean(), float(np.sqrt(across / (along + 1e-9)))
    )


class Lags(NamedTuple):
    """The lag of pictures, s: the best one and its correlation, and the least and most over the
    whole time and its thirds, if these allow a measurement."""

    lag: float
    fit: float
    least: float
    most: float


def lags_of(frames: Sequence[PictureFeatures], at: np.ndarray, yaw: np.ndarray) -> Lags:
    """The lag between frames and odometry; ``at``: times, s, ``yaw``: rad, unwrapped.

    Raises UserError if it cannot be determined.
    """
    fits = _fits(frames, at, yaw)
    lags = [float(LAGS[np.argmax(fits)])]
    for third in np.array_split(np.arange(len(at)), 3):
        begin, end = at[third[0]], at[third[-1]]
        seen = [frame for frame in frames if begin <= frame.taken <= end]
        with suppress(UserError):
            lags.append(float(LAGS[np.argmax(_fits(seen, at[third], yaw[third]))]))
    return Lags(lags[0], float(fits.max()), min(lags), max(lags))


def _fits(frames: Sequence[PictureFeatures], at: np.ndarray, yaw: np.ndarray) -> np.ndarray:
    """The correlation of pictures with odometry at each of LAGS; raises UserError if all are too
    low."""
    refuse(
        (
            len(frames) < FEWEST or len(at) < FEWEST,
            "there are too few pictures or too little odometry: record 20 seconds",
        ),
        (
            np.abs(np.diff(yaw)).sum() < LEAST_TURN_RAD,
            "the robot hardly turns: turn left and right on its spot",
        ),
    )
    taken = np.array([frame.taken for frame in frames])
    moved = _moved(np.array([frame.columns for frame in frames]))
    inside = taken[1:] - LAGS[-1] > at[0]  # of the same pictures for every lag, where there are any
    inside = inside if inside.sum() > FEWEST else np.ones(len(moved), bool)
    seen = moved[inside] - moved[inside].mean()
    found = []
    for lags in np.array_split(LAGS, 20):  # of a bag of hours all at once would fill the memory
        turned = np.diff(np.interp(taken - lags[:, None], at, yaw))[:, inside]
        turned -= turned.mean(1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append(turned @ seen / np.sqrt(np.square(turned).sum(1) * (seen @ seen)))
    fits = np.nan_to_num(np.concatenate(found))
    if fits.max() < FITS:
        raise UserError(
            f"the pictures fit odometry to {fits.max():.2f} only: turn left and right, slower, "
            "and where there is more to see"
        )
    return np.asarray(fits)


def blur_of(
    frames: Sequence[PictureFeatures], lag: float, at: np.ndarray, yaw: np.ndarray
) -> tuple[float, float] | None:
    """Sharpness when turning over that when standing, and the turning speed, rad/s; None without
    both."""
    taken = np.array([frame.taken for frame in frames]) - lag
    sharp = np.array([frame.sharpness for frame in frames])
    rate = np.abs(np.interp(taken + 0.05, at, yaw) - np.interp(taken - 0.05, at, yaw)) / 0.1
    inside = (taken > at[0] + 0.1) & (taken < at[-1] - 0.1)
    stands, turns = (
        inside & (rate < RESTING_RATE),
        inside & (rate > max(TURNING_RATE, 0.7 * rate.max())),
    )
    if min(stands.sum(), turns.sum()) < 5:
        return None
    return float(np.median(sharp[turns]) / np.median(sharp[stands])), float(np.median(rate[turns]))


def _moved(columns: np.ndarray) -> np.ndarray:
    """By how many columns each picture after the first [n, COLUMNS_WIDE] has shifted to the right,
    as when the robot turns to the left."""
    before, after, shifts = columns[:-1], columns[1:], range(-LARGEST_SHIFT, LARGEST_SHIFT + 1)
    errors = [
        np.square(
            after[:, max(0, s) : COLUMNS_WIDE + min(0, s)]
            - before[:, max(0, -s) : COLUMNS_WIDE - max(0, s)]
        )
        for s in shifts
    ]
    best = np.argmin([error.mean(axis=1) for error in errors], axis=0)
    return np.asarray(best - LARGEST_SHIFT)
