"""Computes the figures of a fleet's row from its robots' activities."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from ...harness.fleet.load import RobotActivity
from ..command import Row


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index (1984): 1 if all get the same, 1/n if one of n gets all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def figures(activities: Sequence[RobotActivity], begin: float, end: float) -> Row:
    """Figures of the robots' rounds that ended between ``begin`` and ``end`` (s).

    A round is the time from one verdict to the next, including drafting and waiting; an answer's
    first one, with the prompt, is not counted. Time between tokens is over whole answers.
    """
    rounds = [[r for r in robot.rounds if begin <= r.settled < end] for robot in activities]
    tokens = [sum(r.tokens for r in own) for own in rounds]
    rest = [r for own in rounds for r in own if not r.first]
    later = [1e3 * r.seconds for r in rest]
    between = [1e3 * seconds / n for robot in activities for seconds, n in robot.spans if n]
    passes = sum(len(own) for own in rounds)
    return {
        "tokens_per_s": sum(tokens) / (end - begin),
        "round_ms_p50": _percentile(later, 50),
        "round_ms_p99": _percentile(later, 99),
        "draft_ms_p50": _percentile([1e3 * r.draft_s for r in rest], 50),
        "verify_ms_p50": _percentile([1e3 * r.verify_s for r in rest], 50),
        "token_ms_p50": _percentile(between, 50),
        "token_ms_mean": fmean(between) if between else None,
        "tokens_per_verify": sum(tokens) / passes if passes else None,
        "fairness": jain(tokens),
        "answers": sum(robot.answers for robot in activities),
        "wrong": sum(robot.wrong for robot in activities),
        "lost": sum(robot.lost for robot in activities),
        "equal": all(robot.answers and not robot.wrong + robot.lost for robot in activities),
    }


def mean_of(rows: Sequence[Row]) -> Row:
    """Merge the rows of several seeds: means, with ``NAME_spread`` (largest minus smallest) of
    times."""
    merged: Row = {}
    for name, value in rows[0].items():
        values = [row[name] for row in rows if row[name] is not None]
        if isinstance(value, bool):
            merged[name] = all(values)
        elif isinstance(value, float) and values:
            merged[name] = fmean(values)
            if name in ("tokens_per_s", "round_ms_p99", "token_ms_mean"):
                merged[f"{name}_spread"] = max(values) - min(values)
        elif isinstance(value, int):
            merged[name] = sum(values)
        else:
            merged[name] = value
    return merged


def row_of(harness: str, server: str, robots: int, preset: str, rows: Sequence[Row]) -> Row:
    """The row of a server and a fleet size, from a row of each seed."""
    row = {
        "harness": harness,
        "server": server,
        "robots": robots,
        "preset": preset,
        **mean_of(rows),
        "seeds": len(rows),
    }
    return row | {"passed": row["equal"]}


def _percentile(values: Sequence[float], share: float) -> float | None:
    return float(np.percentile(values, share)) if values else None
