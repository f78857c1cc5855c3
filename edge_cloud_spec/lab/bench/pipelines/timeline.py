"""Timelines as in FSD's figure 1: robot, link and cloud over time, a panel for each preset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ....decoding.digest import PrefixDigest
from ....edge.runner import Outcome
from ....models.draft_model import Drafted
from ....wire.messages import DraftMessage, Generate, Prediction, Verdict
from ...harness.regimes import Regime
from ...harness.trace import DraftPass, Hop, Trace
from ...reports import COLOURS, legend, plain, save

INSTANT = 1e-6  # s; sums of times are rounded
STEADY = 0.4  # share of a decode after which the draft planner's measurements are stable


@dataclass(frozen=True)
class Span:
    """A pass of a model. kind: ``draft``, ``pre-draft``, ``wasted`` or ``verify``.

    A pre-draft began before its verdict was known; a draft of the cloud's own is ``draft``.
    ``label``: the drafted tokens that a verify pass scores.
    """

    start: float
    end: float
    kind: str
    label: str = ""


@dataclass(frozen=True)
class Arrow:
    """A message. kind: ``draft``, ``repeated`` (a draft for a prefix that had one already),
    ``pushed``, ``wasted push`` or ``request`` upwards; ``verdict``, ``prediction`` or ``wrong
    prediction`` downwards."""

    left: float
    arrived: float
    up: bool
    kind: str


@dataclass(frozen=True)
class DecodeTimeline:
    """All of a decode, or a part of it; ``settled`` are times and tokens of verdicts."""

    robot: tuple[Span, ...]
    cloud: tuple[Span, ...]
    link: tuple[Arrow, ...]
    settled: tuple[tuple[float, int], ...]

    @property
    def tokens_per_ms(self) -> float:
        """Tokens per ms, from the beginning to the last verdict."""
        return sum(tokens for _, tokens in self.settled) / self.settled[-1][0]

    def between(self, begin: float, end: float) -> DecodeTimeline:
        """The part between two times, with times from its beginning."""

        def spans(lane: Sequence[Span]) -> tuple[Span, ...]:
            return tuple(
                Span(max(0.0, s.start - begin), min(s.end, end) - begin, s.kind, s.label)
                for s in lane
                if s.end > begin and s.start < end
            )

        return DecodeTimeline(
            spans(self.robot),
            spans(self.cloud),
            tuple(
                Arrow(a.left - begin, a.arrived - begin, a.up, a.kind)
                for a in self.link
                if a.arrived > begin and a.left < end
            ),
            tuple((at - begin, tokens) for at, tokens in self.settled if begin < at <= end),
        )


def representative_start(timeline: DecodeTimeline, length: float) -> float:
    """Where the part of this length begins that is most like the whole, in speed and idle time.

    It begins at a verdict, once the draft planner's measurements are stable.
    """
    last = timeline.settled[-1][0]
    begins = [at for at, _ in timeline.settled if STEADY * last <= at <= last - length]
    expected = timeline.tokens_per_ms * length

    def difference(begin: float) -> float:
        part = timeline.between(begin, begin + length)
        speed = sum(tokens for _, tokens in part.settled) / expected - 1
        return abs(speed) + abs(idle(part.cloud, length) - idle(timeline.cloud, last))

    return min(begins, key=difference, default=max(0.0, last - length))


def timeline_of(outcome: Outcome, trace: Trace) -> DecodeTimeline:
    """The timeline of a finished decode."""
    settled = tuple((r.settled, r.emitted) for r in outcome.stats.rounds)
    messages = (hop.message for hop in trace.hops)
    verdicts = {m.base: (m.path, m.token) for m in messages if isinstance(m, Verdict)}
    arrows: list[Arrow | None] = []
    drafted: set[PrefixDigest] = set()
    for hop in trace.hops:
        arrows.append(_arrow_of(hop, settled, verdicts, drafted))
        if isinstance(hop.message, DraftMessage):
            drafted.add(hop.message.base)
    return DecodeTimeline(
        _robot(outcome, trace.robot),
        tuple(
            Span(p.start * 1e3, p.end * 1e3, p.kind, f"{p.drafted}" if p.kind == "verify" else "")
            for p in trace.cloud
        ),
        tuple(arrow for arrow in arrows if arrow is not None),
        tuple((at * 1e3, tokens) for at, tokens in settled),
    )


def _robot(outcome: Outcome, passes: Sequence[DraftPass]) -> tuple[Span, ...]:
    """A pass is used if the answer reached a prefix whose draft it added to."""
    judged = {r.base for r in outcome.stats.rounds if r.drafted}
    ahead = {
        one.branch.prefix
        for each in passes
        for one in each.grown
        if len(one.branch.prefix) > each.verified
    }

    def reached(prefix: tuple[int, ...]) -> bool:
        return len(prefix) in judged and outcome.tokens[: len(prefix)] == prefix

    def used(one: Drafted) -> bool:
        prefix, finished = one.branch.prefix, one.finished
        if reached(prefix):
            return True
        if len(finished.draft) > 1:
            return False
        # it may have computed the token that a verdict adds there, to draft after it
        bonuses = (finished.best, *(tokens for tokens, _ in finished.recoveries))
        return any(prefix + bonus in ahead and reached(prefix + bonus) for bonus in bonuses)

    def kind(each: DraftPass) -> str:
        prefixes = [len(one.branch.prefix) for one in each.grown if used(one)]
        if not prefixes:
            return "wasted"
        return "draft" if min(prefixes) <= each.verified else "pre-draft"

    # a pass whose tokens were all computed before takes no time
    return tuple(
        Span(each.start * 1e3, each.end * 1e3, kind(each))
        for each in passes
        if each.end > each.start + INSTANT
    )


def _arrow_of(
    hop: Hop,
    settled: Sequence[tuple[float, int]],
    verdicts: Mapping[PrefixDigest, tuple[tuple[int, ...], int | None]],
    drafted: Set[PrefixDigest],
) -> Arrow | None:
    """drafted: the prefixes that drafts were sent for before."""

    def arrow(up: bool, kind: str) -> Arrow:
        return Arrow(hop.left * 1e3, hop.arrived * 1e3, up, kind)

    match hop.message:
        case DraftMessage(base) if base not in verdicts:
            return arrow(True, "wasted push")
        case DraftMessage(base) if base in drafted:
            return arrow(True, "repeated")
        case DraftMessage(base):
            known = sum(tokens for at, tokens in settled if at <= hop.left + INSTANT)
            return arrow(True, "pushed" if base.length > known else "draft")
        case Generate():
            return arrow(True, "request")
        case Verdict():
            return arrow(False, "verdict")
        case Prediction(base, path, token):
            right = verdicts.get(base) == (path, token)
            return arrow(False, "prediction" if right else "wrong prediction")
        case _:
            return None


def idle(lane: Sequence[Span], length: float) -> float:
    """The share of the length in which no pass runs."""
    return max(0.0, 1 - sum(span.end - span.start for span in lane) / length)


ROUNDS = 6  # of stop and wait; the length of a panel
ROBOT, CLOUD, TALL = 2.3, 0.0, 0.62  # vertical positions of the lanes
LEGIBLE = 0.012  # minimum share of a panel for a block with a number in it

# Every kind differs in more than its colour.
BLOCKS = {
    "draft": ("drafting after the verdict", COLOURS["drafting"], ""),
    "pre-draft": ("drafting ahead, used", COLOURS["moving"], "..."),
    "wasted": ("drafting ahead, discarded", "#ffffff", "/////"),
    "verify": ("verifying (drafted tokens)", COLOURS["verifying"], ""),
}
EDGES = {"wasted": "#9aa2b1"}
ARROWS = {
    "draft": ("draft", "#1d5fa8", "-", 1.3),
    "repeated": ("draft repeated", "#1d5fa8", (0, (1, 3)), 1.1),
    "pushed": ("draft pushed ahead, used", "#1e7a44", "-", 2.4),
    "wasted push": ("pushed ahead, discarded", "#8a93a3", (0, (4, 3)), 0.8),
    "request": ("target alone", "#1d2330", "-.", 1.0),
    "verdict": ("verdict (+ its tokens)", "#b86a00", "-", 1.6),
    "prediction": ("an exit predicts it", "#7a3fb8", ":", 1.3),
    "wrong prediction": ("an exit is wrong", "#7a3fb8", ":", 1.0),
}
TAILS = {"prediction": "o", "wrong prediction": "x"}


def draw_timeline(path: Path, regime: Regime, decodes: Mapping[str, DecodeTimeline]) -> None:
    """A plot of an equally long part of the decode under each preset."""
    length = ROUNDS * (regime.gamma * regime.draft_ms + regime.rtt_ms + regime.verify_ms)
    figure, panels = pyplot.subplots(
        len(decodes), 1, figsize=(13, 1.1 + 1.62 * len(decodes)), sharex=True, squeeze=False
    )
    for axes, (preset, whole) in zip(panels[:, 0], decodes.items(), strict=True):
        begin = representative_start(whole, length)
        title = f"{preset}, {whole.tokens_per_ms * regime.ar_ms:.2f} times the target alone"
        _draw(axes, title, whole.between(begin, begin + length), length)
    panels[-1, 0].set_xlabel("milliseconds since a verdict reached the robot", fontsize=9)
    inch = 1 / figure.get_figheight()
    figure.suptitle(
        f"{regime.name}, round trip {regime.rtt_ms:g} ms", x=0.01, y=1 - 0.08 * inch, ha="left"
    )
    handles: dict[str, Artist] = {
        name: Patch(facecolor=colour, edgecolor=EDGES.get(kind, "#ffffff"), hatch=hatch)
        for kind, (name, colour, hatch) in BLOCKS.items()
    }
    handles["waiting"] = Patch(facecolor=COLOURS["waiting"], alpha=0.55)
    for kind, (name, colour, style, wide) in ARROWS.items():
        marker = TAILS.get(kind, "")
        handles[name] = Line2D([], [], color=colour, ls=style, lw=wide, marker=marker, markersize=5)
    place = (0.005, 1 - 0.3 * inch)
    legend(
        figure,
        handles,
        loc="upper left",
        bbox_to_anchor=place,
        ncols=7,
        fontsize=8,
        handlelength=2.6,
    )
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.55 * inch), h_pad=0.4)
    save(figure, path)


def _draw(axes: Axes, title: str, part: DecodeTimeline, length: float) -> None:
    for lane, at in ((part.robot, ROBOT), (part.cloud, CLOUD)):
        axes.broken_barh([(0, length)], (at, TALL), facecolors=COLOURS["waiting"], alpha=0.55)
        for span in lane:
            _block(axes, span, at, length)
    for arrow in part.link:
        _arrow(axes, arrow, length)
    for at, tokens in part.settled:
        place = (at, ROBOT + TALL + 0.05)
        axes.annotate(f"+{tokens}", place, ha="center", fontsize=7, color=ARROWS["verdict"][1])
    tokens = sum(gained for _, gained in part.settled)
    robot, cloud = (f"{100 * idle(lane, length):.0f} %" for lane in (part.robot, part.cloud))
    here = f"here {tokens} tokens, the robot waits {robot} of the time, the cloud {cloud}"
    axes.set_title(f"{title}; {here}", loc="left", fontsize=9.5, pad=9)
    axes.set_yticks([ROBOT + TALL / 2, CLOUD + TALL / 2], ["robot", "cloud"])
    axes.set_xlim(0, length)
    axes.set_ylim(-0.1, ROBOT + TALL + 0.1)
    plain(axes)


def _block(axes: Axes, span: Span, at: float, length: float) -> None:
    _, colour, hatch = BLOCKS[span.kind]
    wide = span.end - span.start
    style: dict[str, Any] = {
        "facecolors": colour,
        "edgecolor": EDGES.get(span.kind, "#ffffff"),
        "hatch": hatch,
    }
    axes.broken_barh([(span.start, wide)], (at, TALL), lw=0.6, **style)
    if span.label not in ("", "0") and wide > LEGIBLE * length:
        middle = (span.start + wide / 2, at + TALL / 2)
        axes.annotate(span.label, middle, ha="center", va="center", fontsize=8)


def _arrow(axes: Axes, arrow: Arrow, length: float) -> None:
    _, colour, style, wide = ARROWS[arrow.kind]
    top, ground = ROBOT, CLOUD + TALL
    begin, end = (top, ground) if arrow.up else (ground, top)
    head = {"arrowstyle": "-|>", "color": colour, "linestyle": style, "linewidth": wide}
    annotation = axes.annotate(
        "",
        (arrow.arrived, end),
        (arrow.left, begin),
        arrowprops={**head, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8},
        annotation_clip=False,
    )
    assert annotation.arrow_patch is not None
    annotation.arrow_patch.set_clip_path(axes.patch)  # messages are cut at the panel's edges
    annotation.set_zorder(
        2.5 if arrow.kind == "wasted push" else 3
    )  # under messages sent at the same time
    if arrow.kind in TAILS and 0 <= arrow.left <= length:
        axes.plot(arrow.left, begin, TAILS[arrow.kind], color=colour, markersize=5, clip_on=False)
