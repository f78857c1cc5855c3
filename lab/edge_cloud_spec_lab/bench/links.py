"""``python -m edge_cloud_spec_lab.bench.links FOLDER``: synthesizes ten links like measured 5G
drives.

CICV5G measured round trips between a vehicle and a cloud on three urban and seven rural drives,
with stalls of 0.5 to 2.5 s. This module makes traces (``read_trace``) whose round trips have these
percentiles and change as a queue does: in seconds, and never so fast that packets overtake.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from edge_cloud_spec.errors import UserError, exit_status
from edge_cloud_spec.share import path_of

TRACE_PERIOD_S = 0.1
RTT_PERCENTILES = (0.5, 0.99, 0.999, 1.0)
SLOW = 1.5  # s for which a round trip is much the same
STALL_S = (0.5, 2.5)


@dataclass(frozen=True)
class LinkFigures:
    """A drive's percentiles 50, 99, 99.9 and 100 of round trips, ms, and its stalls in five
    minutes."""

    p50: float
    p99: float
    p999: float
    worst: float
    stalls: int


# Urban: as published. Rural: p50 and the range of p99 are; the rest, and all stalls, are assumed.
MEASURED_DRIVES = {
    "urban-1": LinkFigures(16, 27, 210, 694, 0),
    "urban-2": LinkFigures(18, 28, 207, 343, 1),
    "urban-3": LinkFigures(19, 279, 1_310, 2_480, 3),
    "rural-1": LinkFigures(24, 400, 900, 1_500, 1),
    "rural-2": LinkFigures(28, 900, 1_800, 2_500, 2),
    "rural-3": LinkFigures(32, 2_000, 3_500, 4_500, 3),
    "rural-4": LinkFigures(36, 5_000, 7_000, 8_000, 4),
    "rural-5": LinkFigures(41, 10_900, 12_000, 12_500, 5),
    "rural-6": LinkFigures(560, 2_500, 4_000, 5_000, 3),
    "rural-7": LinkFigures(700, 10_900, 12_000, 12_500, 5),
}


def round_trips(drive: LinkFigures, count: int, random: np.random.Generator) -> np.ndarray:
    """Round trips float64 [count], ms, one per ``TRACE_PERIOD_S``; nan in a stall."""
    smooth = random.standard_normal(count)
    for _ in range(2):  # an order in which neighbours are alike
        for i in range(1, count):
            smooth[i] += (smooth[i - 1] - smooth[i]) * np.exp(-TRACE_PERIOD_S / SLOW)
    ranks = (np.argsort(np.argsort(smooth)) + 0.5) / count
    worst = 1 - 0.5 / count
    normal = NormalDist().inv_cdf
    known = [normal(0.5 / count), *(normal(min(share, worst)) for share in RTT_PERCENTILES)]
    least = drive.p50 / 1.5
    logs = np.log([least, drive.p50, drive.p99, drive.p999, drive.worst])
    trips: np.ndarray = np.exp(np.interp([normal(rank) for rank in ranks], known, logs))
    for i in range(1, count):
        trips[i] = max(trips[i], trips[i - 1] - 2e3 * TRACE_PERIOD_S)
    for begin in random.uniform(0, count, drive.stalls):
        lasts = random.uniform(*STALL_S) / TRACE_PERIOD_S
        trips[int(begin) : int(begin + lasts)] = np.nan
    return trips


def write_link(path: Path, drive: LinkFigures, seconds: float, seed: Sequence[int]) -> None:
    """Write a trace of this drive; raises UserError if that is impossible."""
    trips = round_trips(drive, int(seconds / TRACE_PERIOD_S), np.random.default_rng(seed))
    figures = np.nanpercentile(trips, [100 * share for share in RTT_PERCENTILES])
    lines = [
        f"# made by python -m edge_cloud_spec_lab.bench.links, seed {seed[0]}",
        "# round trips at p50, p99, p99.9 and worst: "
        + ", ".join(f"{ms:.0f} ms" for ms in figures),
        "seconds,rtt_ms",
        *(
            f"{number * TRACE_PERIOD_S:.1f}," + ("" if np.isnan(ms) else f"{ms:.1f}")
            for number, ms in enumerate(trips)
        ),
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all traces; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write traces of ten links as 5G drives had them.")
    parser.add_argument("folder", type=path_of, help="where to")
    parser.add_argument("--seed", type=int, default=1, help="others (%(default)s)")
    parser.add_argument("--seconds", type=float, default=300.0, help="of each (%(default)g)")
    args = parser.parse_args(arguments)

    def write() -> int:
        if args.seed < 0 or not 10 <= args.seconds <= 86_400:
            raise UserError("--seed is 0 or more, --seconds are 10 to 86400")
        for number, (name, drive) in enumerate(MEASURED_DRIVES.items()):
            write_link(args.folder / f"{name}.csv", drive, args.seconds, (args.seed, number))
        return 0

    return exit_status(write)


if __name__ == "__main__":
    sys.exit(main())
