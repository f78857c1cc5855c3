"""How long the missions took: the share of rooms in which it was over by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

from .....drawing import plain
from ..room_result import RoomResult


def draw_times(path: Path, results: Mapping[str, Sequence[RoomResult]]) -> None:
    """Left until the robot is there, right until it first moves; a line for each variant."""
    figure, (there, moves) = pyplot.subplots(1, 2, figsize=(13, 3.6), width_ratios=(2, 1))
    for number, (name, rooms) in enumerate(results.items()):
        colour = f"C{number % 10}"
        _draw(there, [room.mission_s for room in rooms], name, colour)
        first = [room.first_motion_s for room in rooms if room.first_motion_s is not None]
        _draw(moves, first, name, colour)
    for axes, title in ((there, "until the robot is there"), (moves, "until it first moves")):
        axes.set_title(f"seconds {title}: share of rooms", loc="left", fontsize=10)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.03)
        plain(axes)
    there.legend(frameon=False, fontsize=9, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(axes: Axes, seconds: Sequence[float], name: str, colour: str) -> None:
    if not seconds:
        return
    ordered = np.sort(seconds)
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    axes.step(np.append(ordered[0], ordered), np.append(0.0, share), where="post", color=colour)
    middle = float(np.median(ordered))
    axes.plot([], [], color=colour, label=f"{name}: {middle:.1f} s")
    axes.plot([middle], [0.5], "o", color=colour, ms=5)
