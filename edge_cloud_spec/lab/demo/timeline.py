"""Where the time of a run went, round by round, as a plot."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ...observe.decision import Decision, ShownRound
from ...observe.run_log import RunLog

COLOURS = {
    "drafting": "#4c9be8",
    "waiting": "#d5d9e0",
    "verifying": "#f0a53a",
    "moving": "#59b87b",
}


def draw_timeline(path: Path, run_log: RunLog) -> None:
    """Above, the run in seconds; below, each decision in milliseconds since its first message."""
    decisions = [d for d in run_log.decisions.values() if d.rounds]
    height = 2.6 + 0.26 * max(4, len(decisions))
    figure, (run, rounds) = pyplot.subplots(
        2, 1, figsize=(10, height), height_ratios=(1.3, max(2.0, 0.22 * len(decisions)))
    )
    _draw_run(run, run_log, decisions)
    _draw_rounds(rounds, decisions)
    handles = {name: Patch(color=colour) for name, colour in COLOURS.items()}
    figure.legend(
        list(handles.values()), list(handles), frameon=False, loc="upper right", ncols=4, fontsize=9
    )
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)  # it is not drawn in any more


def spans(round_: ShownRound) -> dict[str, list[tuple[float, float]]]:
    """(begin, seconds) of a round's parts; the verify pass is put in the middle of the wait.

    Without a draft of the robot, the pass ends at its verdict.
    """
    parts: dict[str, list[tuple[float, float]]] = {"drafting": [], "waiting": [], "verifying": []}
    if round_.sent > round_.drafting:
        parts["drafting"].append((round_.drafting, round_.sent - round_.drafting))
    if round_.answered > round_.sent:
        wait = round_.answered - round_.sent
        verify = min(round_.verify, wait)
        parts["waiting"].append((round_.sent, wait))
        parts["verifying"].append((round_.sent + (wait - verify) / 2, verify))
    elif math.isnan(round_.sent) and math.isfinite(round_.answered):
        parts["verifying"].append((round_.answered - round_.verify, round_.verify))
    return parts


def motions(run_log: RunLog) -> list[tuple[float, float]]:
    """(begin, seconds) of the times in which the navigator reported motion."""
    bars: list[tuple[float, float]] = []
    begun = None
    for at, status in run_log.statuses:
        moving = status.state in ("moving", "ready")
        if moving and begun is None:
            begun = at
        elif not moving and begun is not None:
            bars.append((begun, at - begun))
            begun = None
    return bars


def _draw_run(axes: Axes, run_log: RunLog, decisions: list[Decision]) -> None:
    lanes = {"moving": 0, "verifying": 1, "waiting": 2, "drafting": 3}
    bars: dict[str, list[tuple[float, float]]] = {name: [] for name in lanes}
    bars["moving"] = motions(run_log)
    for decision in decisions:
        for round_ in decision.rounds.values():
            for name, parts in spans(round_).items():
                bars[name] += parts
    for name, lane in lanes.items():
        axes.broken_barh(bars[name], (lane - 0.38, 0.76), facecolors=COLOURS[name])
    axes.set_yticks(list(lanes.values()), list(lanes), fontsize=8)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds since the instruction", fontsize=8)
    axes.set_title("the run", loc="left", fontsize=9)
    _plain(axes)


def _draw_rounds(axes: Axes, decisions: list[Decision]) -> None:
    for row, decision in enumerate(decisions):
        first = min((r.drafting for r in decision.rounds.values() if r.drafted), default=None)
        begun = decision.begun if first is None else min(first, decision.begun)
        for round_ in decision.rounds.values():
            for name, parts in spans(round_).items():
                shifted = [((at - begun) * 1e3, wide * 1e3) for at, wide in parts]
                axes.broken_barh(shifted, (row - 0.36, 0.72), facecolors=COLOURS[name])
            if math.isfinite(round_.answered):
                axes.vlines((round_.answered - begun) * 1e3, row - 0.4, row + 0.4, "k", lw=0.5)
    names = [f"{d.number}  {d.action or d.finish}" for d in decisions]
    axes.set_yticks(range(len(decisions)), names, fontsize=8)
    axes.set_ylim(len(decisions) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds since the decision began; a line ends each round", fontsize=8)
    axes.set_title("its decisions", loc="left", fontsize=9)
    _plain(axes)


def _plain(axes: Axes) -> None:
    """Small digits, a faint vertical grid, and no frame but the lower line."""
    axes.tick_params(labelsize=8)
    axes.grid(axis="x", color="#eceef2", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
