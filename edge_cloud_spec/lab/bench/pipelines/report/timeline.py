"""The timeline of a decode: passes of robot and cloud, messages, and which were used; in ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from .....decoding.digest import PrefixDigest
from .....edge.runner import Outcome
from .....models.draft_model import Drafted
from .....wire.messages import DraftMessage, Generate, Prediction, Verdict
from ....harness.trace import DraftPass, Hop, ModelPass, Trace

INSTANT = 1e-6  # s; sums of times are rounded
STEADY = 0.4  # share of a decode after which the draft planner's measurements are stable


@dataclass(frozen=True)
class Span:
    """A pass of a model. kind: ``draft``, ``pre-draft``, ``wasted`` or ``verify``.

    A pre-draft was begun before the verdict that it follows was known; what the cloud drafts
    itself is ``draft``. ``label``: the drafted tokens that a verify pass is over.
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
        """From the beginning to the last verdict."""
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
        arrows.append(_arrow(hop, settled, verdicts, drafted))
        if isinstance(hop.message, DraftMessage):
            drafted.add(hop.message.base)
    return DecodeTimeline(
        _robot(outcome, trace.robot),
        tuple(_cloud(each) for each in trace.cloud),
        tuple(arrow for arrow in arrows if arrow is not None),
        tuple((at * 1e3, tokens) for at, tokens in settled),
    )


def _cloud(each: ModelPass) -> Span:
    label = f"{each.drafted}" if each.kind == "verify" else ""
    return Span(each.start * 1e3, each.end * 1e3, each.kind, label)


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


def _arrow(
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
