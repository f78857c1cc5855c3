"""A mission's time line: words, passes, link and motion on one axis, a panel for each variant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .....drawing import COLOURS, plain
from .....nav.answer import action_of
from .....wire.messages import ClientMessage
from .shown_mission import ShownMission

# Vertical positions of the lanes, from above.
WORDS, ROBOT, CLOUD, MOTION, TALL = 3.9, 2.75, 1.15, 0.0, 0.55
ACTION, REST = "#1d2330", "#9aa3b2"
UP, DOWN = "#1d5fa8", "#b86a00"
PREFILL = "#b7a6e0"
COLOUR_OF = {"prefill": PREFILL, "draft": COLOURS["drafting"], "verify": COLOURS["verifying"]}
LETTER = 0.0057  # of a panel's width


def draw_missions(path: Path, missions: Sequence[ShownMission], length: float = 0.0) -> None:
    """All of each mission, or its first ``length`` seconds with the words written out."""
    whole = length or max(each.record.seconds for each in missions)
    figure, panels = pyplot.subplots(
        len(missions), 1, figsize=(13, 0.9 + 2.1 * len(missions)), sharex=True, squeeze=False
    )
    for axes, mission in zip(panels[:, 0], missions, strict=True):
        _draw(axes, mission, whole, written=bool(length))
    panels[-1, 0].set_xlabel("seconds since the instruction", fontsize=9)
    panels[-1, 0].set_xlim(0, whole)
    _legend(figure)
    inch = 1 / figure.get_figheight()
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.32 * inch), h_pad=0.6)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(axes: Axes, mission: ShownMission, length: float, written: bool) -> None:
    record, trace = mission.record, mission.trace
    begun, ended = record.begun, min(record.seconds, length)
    for lane in (ROBOT, CLOUD, MOTION):
        axes.broken_barh([(0, ended)], (lane, TALL), facecolors=COLOURS["waiting"], alpha=0.5)
    for lane, spans in ((ROBOT, trace.robot), (CLOUD, trace.cloud)):
        for kind, colour in COLOUR_OF.items():
            bars = [
                (max(0.0, span.start - begun), span.end - max(span.start, begun))
                for span in spans
                if span.kind == kind and span.end > begun and span.start - begun < length
            ]
            axes.broken_barh(bars, (lane, TALL), facecolors=colour, edgecolors="white", lw=0.3)
    for hop in trace.link.hops:
        if begun <= hop.left < begun + length:
            up = isinstance(hop.message, ClientMessage)
            ends = (ROBOT, CLOUD + TALL) if up else (CLOUD + TALL, ROBOT)
            axes.plot(
                [hop.left - begun, hop.arrived - begun], ends, color=UP if up else DOWN, lw=0.7
            )
    moves = [(begin - begun, end - begin) for begin, end in record.moves]
    axes.broken_barh(moves, (MOTION, TALL), facecolors=COLOURS["moving"])
    _words(axes, mission, length, written)
    axes.set_title(mission.name, loc="left", fontsize=10)
    axes.set_yticks(
        [lane + TALL / 2 for lane in (WORDS, ROBOT, CLOUD, MOTION)],
        ["words", "robot", "cloud", "motion"],
    )
    axes.set_ylim(-0.15, WORDS + 1.75)
    plain(axes)


def _words(axes: Axes, mission: ShownMission, length: float, written: bool) -> None:
    """A mark where words are said, dark for those of the action; the action, or all words."""
    begun = mission.record.begun
    free = [0.0, 0.0, 0.0]  # where each line of words has room again
    for decision in mission.record.decisions:
        answer = ""
        for at, text in decision.said:
            time, acts = at - begun, action_of(answer) is None
            answer += text
            if time > length:
                return
            colour = ACTION if acts else REST
            axes.plot([time, time], [WORDS, WORDS + TALL], color=colour, lw=1.1)
            known = decision.action if acts and action_of(answer) else ""
            wanted = text.strip() if written else known
            if wanted:
                line = min(range(3), key=lambda number: (free[number] > time, free[number]))
                place = (max(time, free[line]), WORDS + TALL + 0.08 + 0.34 * line)
                axes.annotate(wanted, place, fontsize=7, color=colour, clip_on=True)
                free[line] = place[0] + (len(wanted) + 1.5) * length * LETTER


def _legend(figure: Figure) -> None:
    blocks = {
        "reads the picture": PREFILL,
        "drafts": COLOURS["drafting"],
        "verifies, or goes on alone": COLOURS["verifying"],
        "moves": COLOURS["moving"],
        "waits, stands": COLOURS["waiting"],
    }
    handles: list[Patch | Line2D] = [Patch(color=c, label=name) for name, c in blocks.items()]
    for name, colour in (
        ("word of the action", ACTION),
        ("of the explanation", REST),
        ("to the cloud", UP),
        ("from it", DOWN),
    ):
        handles.append(Line2D([], [], color=colour, lw=1.4, label=name))
    figure.legend(handles=handles, loc="upper right", ncols=9, frameon=False, fontsize=8)
