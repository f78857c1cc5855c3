"""The report's page: plain HTML; its pictures are files in the same folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from .....document import document, number, table
from .....nav.answer import DELIMITER
from ...command import Row
from .shown_mission import ShownMission

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
