"""The report of ``bench mission --out``: pictures of a mission and of all rooms, and their page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ....document import document, number, table
from ....drawing import COLOURS, plain
from ....nav.answer import DELIMITER, action_of
from ....wire.messages import ClientMessage
from ...harness.mission.embedded_pair import loaded_pair
from ...harness.mission.virtual_robot import MissionRecord, SeenRoom, Variant, VirtualRobot
from ...harness.regimes import Regime
from ...harness.trace import Trace
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
        """Of the variant, with its seconds."""
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
    _legend(figure)
    inch = 1 / figure.get_figheight()
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.32 * inch), h_pad=0.6)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


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


_STRIP = """<style>
.strip { display: flex; gap: 8px; overflow-x: auto; padding-bottom: 8px; }
.strip figure { margin: 0; flex: 0 0 168px; background: var(--paper); border: 1px solid var(--line);
  border-radius: 8px; overflow: hidden; font-size: 12px; }
.strip img { border: 0; border-radius: 0; }
.strip figcaption { padding: 6px 8px 8px; }
.strip b { display: block; font-size: 13px; }
.strip span { color: var(--dim); display: block; font-variant-numeric: tabular-nums; }
</style>
"""


def page(
    regime: str,
    instruction: str,
    shown: Sequence[ShownMission],
    rows: Sequence[Row],
    columns: Mapping[str, str],
) -> str:
    """The compared missions first, then all variants."""
    return document(
        "Missions of a simulated robot, decided in the cloud",
        f"""<p>Costs and links of the regime {escape(regime)}; what no paper prints (prefills,
passes without exits, powers) is assumed. The embedded pair says the words; one virtual clock
drives models, link and robot.</p>
<div class="cards">{_cards(rows)}</div>
<h2>{escape(instruction[:1].upper() + instruction[1:])}</h2>
<p>The frames that were decided on, what was said, and the seconds after which the robot knew what
to do.</p>
{_STRIP}<div class="strip">{_strip(shown)}</div>
<h2>The first seconds</h2>
<img src="beginning.png" alt="the first seconds of each mission, with its words">
<h2>The whole mission</h2>
<img src="mission.png" alt="words, passes, link and motion of each mission">
<h2>All rooms</h2>
<img src="times.png" alt="distributions of mission time and of the time to the first motion">
{table(list(columns.values()), [[row.get(name) for name in columns] for row in rows])}
<p><a href="rows.json">rows.json</a> has every column.</p>
""",
    )


def _cards(rows: Sequence[Row]) -> str:
    last = rows[-1]
    same = last["same_decisions_as_cloud_ar"]
    cards = [
        (f"{last['mission_s_p50']:.1f} s", f"until the robot is there, {last['preset']}"),
        (number(last.get("mission_over_cloud_ar")), "of cloud_ar's time"),
        (number(last["first_motion_s_p50"]) + " s", "until it first moves"),
        (number(last.get("passes_over_cloud_ar")), "of cloud_ar's target passes"),
        (f"{100 * last['success']:.0f} %", f"of {last['scenes']} rooms reached"),
        ("-" if same is None else f"{100 * same:.0f} %", "of rooms decided as by cloud_ar"),
    ]
    shown = [(value, text) for value, text in cards if not value.startswith("-")]
    return "".join(f'<div class="card"><b>{a}</b><span>{escape(b)}</span></div>' for a, b in shown)


def _strip(shown: Sequence[ShownMission]) -> str:
    """The frames of the last one; the others' times where they decided as it did."""
    figures = []
    for frame, decision in enumerate(shown[-1].record.decisions):
        action, _, rest = "".join(text for _, text in decision.said).partition(DELIMITER)
        times = "".join(
            f"<span>{escape(mission.variant.label)}: "
            f"{mission.record.decisions[frame].settled - mission.record.begun:.1f} s</span>"
            for mission in shown
            if frame < len(mission.record.decisions)
        )
        figures.append(
            f'<figure><img src="frame-{frame:02d}.jpg" alt="frame {frame}"><figcaption>'
            f"<b>{escape(action)}</b>{escape(rest.strip())}{times}</figcaption></figure>"
        )
    return "\n".join(figures)


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
    write(folder / "rows.json", "mission", seed, list(rows))
    index = folder / "index.html"
    index.write_text(page(regime.name, instruction, shown, rows, columns), "utf-8")
    return index


def _name(variant: Variant, variants: Sequence[Variant]) -> str:
    several = len({each.link for each in variants}) > 1
    return f"{variant.label}, {variant.rtt_ms:g} ms" if several else variant.label
