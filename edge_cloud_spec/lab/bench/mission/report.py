"""The report of ``bench mission --out``: pictures of a mission and of all rooms, and their page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ....nav.answer import DELIMITER, action_of
from ....nav.settings import Settings
from ....wire.messages import ClientMessage
from ...harness.mission.embedded_pair import loaded_pair
from ...harness.mission.virtual_robot import MissionRecord, SeenRoom, Variant, VirtualRobot
from ...harness.regimes import Regime
from ...harness.trace import Trace
from ...reports import COLOURS, legend, plain, save, write_page
from ..command import Row, write
from .rows import Results, RoomResult

BEFORE = 2  # missions of the robot before the one that is shown


@dataclass(frozen=True, eq=False)
class ShownMission:
    """One variant's mission with all that happened in it; times are the robot's, s."""

    variant: Variant
    record: MissionRecord
    trace: Trace

    @property
    def name(self) -> str:
        """The variant's name, with its seconds."""
        return f"{self.variant.label}, {self.record.seconds:.1f} s"


def shown_missions(
    variants: Sequence[Variant], regime: Regime, rooms: Sequence[int], renderer: str
) -> tuple[str, list[ShownMission]]:
    """The instruction, and the last of these rooms under each variant."""
    pair = loaded_pair()
    traces = [Trace() for _ in variants]
    robots = [
        VirtualRobot(pair, variant, regime, trace)
        for variant, trace in zip(variants, traces, strict=True)
    ]
    for room in rooms[: BEFORE + 1]:
        with closing(SeenRoom(room, renderer)) as seen:
            records = [robot.carry_out(seen) for robot in robots]
            instruction = seen.room.instruction
        pair.forget()
    shown = zip(variants, records, traces, strict=True)
    return instruction, [ShownMission(*each) for each in shown]


# Vertical positions of the lanes, from above.
WORDS, ROBOT, CLOUD, MOTION, TALL = 3.9, 2.75, 1.15, 0.0, 0.55
ACTION, REST = "#1d2330", "#9aa3b2"
UP, DOWN = "#1d5fa8", "#b86a00"
PREFILL = "#b7a6e0"
COLOUR_OF = {"prefill": PREFILL, "draft": COLOURS["drafting"], "verify": COLOURS["verifying"]}
HANDLES: dict[str, Artist] = {
    "reads the picture": Patch(color=PREFILL),
    "drafts": Patch(color=COLOURS["drafting"]),
    "verifies, or goes on alone": Patch(color=COLOURS["verifying"]),
    "moves": Patch(color=COLOURS["moving"]),
    "waits, stands": Patch(color=COLOURS["waiting"]),
    "word of the action": Line2D([], [], color=ACTION, lw=1.4),
    "of the explanation": Line2D([], [], color=REST, lw=1.4),
    "to the cloud": Line2D([], [], color=UP, lw=1.4),
    "from it": Line2D([], [], color=DOWN, lw=1.4),
}
LETTER = 0.0057  # of a panel's width


def draw_missions(path: Path, missions: Sequence[ShownMission], length: float = 0.0) -> None:
    """All of each mission, or its first ``length`` seconds with the words written out."""
    whole = length or max(each.record.seconds for each in missions)
    figure, panels = pyplot.subplots(
        len(missions), 1, figsize=(13, 0.9 + 2.1 * len(missions)), sharex=True, squeeze=False
    )
    for axes, mission in zip(panels[:, 0], missions, strict=True):
        _draw_mission(axes, mission, whole, written=bool(length))
    panels[-1, 0].set_xlabel("seconds since the instruction", fontsize=9)
    panels[-1, 0].set_xlim(0, whole)
    legend(figure, HANDLES, loc="upper right", ncols=9, fontsize=8)
    inch = 1 / figure.get_figheight()
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.32 * inch), h_pad=0.6)
    save(figure, path)


def _draw_mission(axes: Axes, mission: ShownMission, length: float, written: bool) -> None:
    record, trace = mission.record, mission.trace
    begun, ended = record.begun, min(record.seconds, length)
    for lane in (ROBOT, CLOUD, MOTION):
        axes.broken_barh([(0, ended)], (lane, TALL), facecolors=COLOURS["waiting"], alpha=0.5)
    for lane, spans in ((ROBOT, trace.drafter), (CLOUD, trace.cloud)):
        for kind, colour in COLOUR_OF.items():
            bars = [
                (max(0.0, span.start - begun), span.end - max(span.start, begun))
                for span in spans
                if span.kind == kind and span.end > begun and span.start - begun < length
            ]
            axes.broken_barh(bars, (lane, TALL), facecolors=colour, edgecolors="white", lw=0.3)
    for hop in trace.hops:
        if begun <= hop.left < begun + length:
            up = isinstance(hop.message, ClientMessage)
            ends = (ROBOT, CLOUD + TALL) if up else (CLOUD + TALL, ROBOT)
            axes.plot(
                [hop.left - begun, hop.arrived - begun], ends, color=UP if up else DOWN, lw=0.7
            )
    moves = [(begin - begun, end - begin) for begin, end in record.moves]
    axes.broken_barh(moves, (MOTION, TALL), facecolors=COLOURS["moving"], alpha=0.5)
    axes.plot(*_speed_line(mission, length), color=ACTION, lw=0.9)
    _words(axes, mission, length, written)
    axes.set_title(mission.name, loc="left", fontsize=10)
    axes.set_yticks(
        [lane + TALL / 2 for lane in (WORDS, ROBOT, CLOUD, MOTION)],
        ["words", "robot", "cloud", "motion"],
    )
    axes.set_ylim(-0.15, WORDS + 1.75)
    plain(axes)


def _speed_line(mission: ShownMission, length: float) -> tuple[list[float], list[float]]:
    """Speed over time as a line in its lane, as high as the lane where the base may not be faster.

    It drives or turns: what is drawn is the larger share of either limit.
    """
    limits, begun = Settings().limits, mission.record.begun
    shares = [
        (at - begun, max(speed / limits.speed, abs(turn) / limits.turn_speed))
        for at, speed, turn in mission.record.speeds
        if at - begun <= length
    ]
    return [at for at, _ in shares], [MOTION + TALL * min(share, 1.2) for _, share in shares]


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


def draw_times(path: Path, results: Mapping[str, Sequence[RoomResult]]) -> None:
    """Left until the robot is there, right until it first moves; a line for each variant."""
    figure, (there, moves) = pyplot.subplots(1, 2, figsize=(13, 3.6), width_ratios=(2, 1))
    for place, (name, rooms) in enumerate(results.items()):
        colour = f"C{place % 10}"
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
    save(figure, path)


def _draw(axes: Axes, seconds: Sequence[float], name: str, colour: str) -> None:
    if not seconds:
        return
    ordered = np.sort(seconds)
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    axes.step(np.append(ordered[0], ordered), np.append(0.0, share), where="post", color=colour)
    middle = float(np.median(ordered))
    axes.plot([], [], color=colour, label=f"{name}: {middle:.1f} s")
    axes.plot([middle], [0.5], "o", color=colour, ms=5)


BEGINNING_S = 9.0


def write_report(
    folder: Path,
    seed: int,
    regime: Regime,
    results: Results,
    rows: Sequence[Row],
    columns: Mapping[str, str],
    renderer: str,
) -> Path:
    """Draw everything; returns the page's path. The first and the last variant are compared."""
    variants = list(results)
    compared = list(dict.fromkeys([variants[0], variants[-1]]))
    rooms = [room.room for room in results[variants[0]]]
    instruction, shown = shown_missions(compared, regime, rooms, renderer)
    draw_missions(folder / "mission.png", shown)
    draw_missions(folder / "beginning.png", shown, BEGINNING_S)
    draw_times(folder / "times.png", {_name(v, variants): each for v, each in results.items()})
    for frame, decision in enumerate(shown[-1].record.decisions):
        (folder / f"frame-{frame:02d}.jpg").write_bytes(decision.jpeg)
    speeds = {each.variant.label: _speeds(each) for each in shown}
    (folder / "speeds.json").write_text(json.dumps(speeds) + "\n", "utf-8")
    write(folder / "rows.json", "mission", seed, list(rows))
    return write_page(
        folder,
        "mission",
        title="Missions of a simulated robot, decided in the cloud",
        instruction=instruction,
        shown=shown,
        rows=rows,
        columns=columns,
        delimiter=DELIMITER,
    )


def _speeds(mission: ShownMission) -> dict[str, list[float]]:
    """Speed (m/s) and turning speed (rad/s) of the base over seconds since the instruction."""
    begun, ended = mission.record.begun, mission.record.ended
    rows = [(at - begun, *speeds) for at, *speeds in mission.record.speeds if at <= ended]
    columns = ([round(value, 4) for value in column] for column in zip(*rows, strict=True))
    return dict(zip(("s", "m_s", "rad_s"), columns, strict=True))


def _name(variant: Variant, variants: Sequence[Variant]) -> str:
    several, link = len({each.link for each in variants}) > 1, variant.link
    over = f"{link.rtt_ms:g} ms" if link.trace is None else link.trace.name
    return f"{variant.label}, {over}" if several else variant.label
