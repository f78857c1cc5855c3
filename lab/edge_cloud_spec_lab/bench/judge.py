"""Judges from published messages whether every motion traces to a verified action in time.

It trusts no node. The words of a request are recomputed from the bytes of verdicts and drafts, the
age of a frame from when the simulator published it. Times are seconds of the machine's clock.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.instruction import is_stop, normalized
from edge_cloud_spec.nav.status import NavigatorStatus
from edge_cloud_spec.wire.messages import DraftMessage, Opened, Verdict


@dataclass(frozen=True)
class Asked:
    """A decode began: its request and instruction, and the stamp of its frame (ns)."""

    at: float
    request: str
    instruction: str
    stamp: int


@dataclass(frozen=True)
class OnWire:
    """A draft, verdict, or opened session, parsed from its bytes."""

    at: float
    request: str
    message: DraftMessage | Opened | Verdict


@dataclass(frozen=True)
class Command:
    """An action of the navigator; ``moves`` is false for ``stop``."""

    at: float
    request: str
    text: str
    stamp: int
    expiry: float
    verified: bool
    moves: bool


@dataclass(frozen=True)
class BaseCommand:
    """A Twist. ``foreign``: published by the bench as a hostile neighbour."""

    at: float
    moves: bool
    foreign: bool = False


@dataclass(frozen=True)
class BaseMotion:
    """Whether the base really moves, by the simulator's odometry."""

    at: float
    moves: bool


@dataclass(frozen=True)
class Instructed:
    """An operator's instruction."""

    at: float
    text: str


@dataclass(frozen=True)
class Reported:
    """A sentence for people: its topic (or a node's name on /diagnostics), and the text; of
    nav_status also the ``status`` itself."""

    at: float
    topic: str
    text: str
    status: NavigatorStatus | None = None


Event = Asked | OnWire | Command | BaseCommand | BaseMotion | Instructed | Reported


FRAME_AGE = 10.0  # s; the navigator's parameter frame_age
DRIVEN = 1.0  # s of driving since its frame, after which nothing begins on it
COMMAND_VALID_S = 0.05  # s that a velocity command is valid
BASE_TIMEOUT = 0.5  # s of silence after which the base stops by itself
ODOMETRY_GAP_S = 0.5  # s without the base's own word of its motion
SEAM = 0.02  # s between a motion's announcement and its first velocity
SLACK = 0.15  # s of threads between two messages of one node
SAME_ORDER = 0.05  # s between a verdict and the command, as published by two nodes
_ACTION_TEXT = re.compile(r"\s*(?:reason: [^;]+;\s*)?action: ([^;]+);")

Decode = Callable[[Sequence[int]], str]


@dataclass
class Judgement:
    """The judge's result. ``unverified``: motions without a verified action, one sentence each. The
    longest times, s, from the last valid command's end until the base is commanded to stand (by a
    zero command or by its own timeout), and until it stands."""

    unverified: list[str] = field(default_factory=list)
    standstill_s: float = 0.0
    base_stands_s: float = 0.0


@dataclass(frozen=True)
class _Decode:
    """What was published about one request."""

    asked: list[Asked] = field(default_factory=list)
    drafts: dict[PrefixDigest, list[Draft]] = field(default_factory=lambda: defaultdict(list))
    verdicts: list[tuple[float, Verdict]] = field(default_factory=list)
    bases: list[PrefixDigest] = field(default_factory=list)

    def tokens_at(self, now: float) -> tuple[int, ...]:
        """The tokens verified by all verdicts published until then."""
        # The robot knows its first digest by itself: it goes on where Opened was lost.
        for base in dict.fromkeys((*self.bases, *(verdict.base for _, verdict in self.verdicts))):
            if base.length:
                continue  # not the answer's beginning
            tokens: tuple[int, ...] = ()
            here = base
            while (more := self._step(here, now)) is not None:
                tokens += more
                here = here.extend(more)
            if tokens:
                return tokens
        return ()

    def _step(self, base: PrefixDigest, now: float) -> tuple[int, ...] | None:
        for at, verdict in self.verdicts:
            if verdict.base != base or at > now:
                continue
            token = () if verdict.token is None else (verdict.token,)
            candidates = [verdict.tokens] if verdict.tokens else []
            for draft in self.drafts.get(base, ()):
                if all(node < len(draft) for node in verdict.path):
                    candidates.append(tuple(draft.tokens[node] for node in verdict.path))
            if not verdict.path:
                candidates.append(())
            for accepted in candidates:
                more = (*accepted, *token)
                if more and base.extend(more).short == verdict.leads_to:
                    return more
        return None


def judge(
    events: Iterable[Event],
    taken_at: Callable[[int], float | None],
    decode: Decode,
    since: float = -math.inf,
) -> Judgement:
    """Judge what happened from ``since`` on; earlier events are context.

    ``taken_at`` gives the time at which the frame with a stamp was taken.
    """
    ordered = sorted(events, key=lambda event: event.at)
    decodes = _decodes(ordered)
    instructed = [event for event in ordered if isinstance(event, Instructed)]
    commands = [event for event in ordered if isinstance(event, Command)]
    own = [event for event in ordered if isinstance(event, BaseCommand) and not event.foreign]
    # each interval, until the next command, in which the base was commanded to move
    driving = [(velocity.at, after.at) for velocity, after in pairwise(own) if velocity.moves]
    judgement = Judgement()
    valid: list[Command] = []
    for command in commands:
        before = next((other for other in reversed(valid) if other.moves), None)
        if command.at < since or not command.moves:
            valid.append(command)  # verified already; or a stop, which harms nobody
            continue
        problem = _problem(command, before, decodes, instructed, taken_at, decode)
        problem = problem or _drove(driving, taken_at(command.stamp), command.at)
        if problem:
            judgement.unverified.append(f"{command.text!r} of {command.request}: {problem}")
        else:
            valid.append(command)
    _follow(ordered, [velocity for velocity in own if velocity.at >= since], valid, judgement)
    return judgement


def replaced_motions(events: Iterable[Event], since: float) -> int:
    """How many motions replaced a running one, from ``since`` on."""
    count, drives_since = 0, math.inf
    for event in sorted(events, key=lambda event: event.at):
        match event:
            case BaseCommand(at, moves, foreign=False) if at >= since:
                drives_since = min(drives_since, at) if moves else math.inf
            case Command(at, moves=True):
                count += at > drives_since + SEAM
    return count


def _decodes(events: Sequence[Event]) -> Mapping[str, _Decode]:
    found: dict[str, _Decode] = defaultdict(_Decode)
    for event in events:
        match event:
            case Asked(request=request):
                found[request].asked.append(event)
            case OnWire(_, request, DraftMessage(base=base, draft=draft)):
                found[request].drafts[base].append(draft)
            case OnWire(_, request, Opened(base=base)):
                found[request].bases.append(base)
            case OnWire(at, request, Verdict() as verdict):
                found[request].verdicts.append((at, verdict))
    return found


def _problem(
    command: Command,
    before: Command | None,
    decodes: Mapping[str, _Decode],
    instructed: Sequence[Instructed],
    taken_at: Callable[[int], float | None],
    decode: Decode,
) -> str:
    """Why this action may not move the robot; empty if it may."""
    request = decodes.get(command.request)
    if request is None or not request.asked:
        return "nobody asked for it"
    if not command.verified:
        return "it is not verified"
    tokens = request.tokens_at(command.at + SAME_ORDER)
    match = _ACTION_TEXT.match(decode(tokens))
    if match is None or match[1] != command.text:
        return f"the verdicts say {decode(tokens)!r}"
    asked = request.asked[0]
    taken = taken_at(command.stamp)
    if command.stamp != asked.stamp or taken is None:
        return "its frame is none that was decided on"
    if command.at - taken > FRAME_AGE + SLACK:
        return f"its frame is {command.at - taken:.1f} s old"
    if before is not None:
        if before.request == command.request:
            return "it has moved the robot before"
        earlier = taken_at(before.stamp)
        if earlier is not None and taken < earlier:
            return "a later frame's action came before it"
    instructions = [each for each in instructed if each.at < command.at]
    settled = [each for each in instructions if each.at < command.at - SLACK][-1:]
    in_force = [*settled, *(each for each in instructions if each.at >= command.at - SLACK)]
    if normalized(asked.instruction) not in {normalized(each.text) for each in in_force}:
        since = (
            f"; {instructions[-1].text!r} was told {command.at - instructions[-1].at:.2f} s before"
            if instructions
            else ""
        )
        return f"it was decided for {asked.instruction!r}{since}"
    return ""


def _drove(driving: Sequence[tuple[float, float]], taken: float | None, now: float) -> str:
    """Why the base was commanded to move for too long since a frame; empty if not."""
    times = [
        min(BASE_TIMEOUT, end - max(begin, taken or now)) for begin, end in driving if end <= now
    ]
    driven = sum(max(0.0, seconds) for seconds in times)
    return f"its frame is from {driven:.1f} s of driving ago" if driven > DRIVEN + SLACK else ""


@dataclass
class _Burst:
    """Consecutive moving velocities under one action."""

    first: float
    last: float
    end: float  # of the last valid command


def _follow(
    events: Sequence[Event],
    velocities: Sequence[BaseCommand],
    valid: Sequence[Command],
    judgement: Judgement,
) -> None:
    """Check each velocity against the valid action in force, and measure how fast the robot
    stops."""
    starts = [command.at - SLACK for command in valid]
    ends = [_end(command, events) for command in valid]
    stray = False
    burst: _Burst | None = None
    bursts: list[_Burst] = []
    for velocity in velocities:
        if not velocity.moves:
            if burst is not None:
                _stood(burst, velocity.at, judgement)
            burst, stray = None, False
            continue
        index = bisect_right(starts, velocity.at) - 1
        # an action that ends is followed by the next: at the seam either may be in force
        near = [i for i in (index, index - 1) if i >= 0 and valid[i].moves]
        end = next((ends[i] for i in near if velocity.at <= ends[i] + SLACK), None)
        if end is None:
            if not stray:
                judgement.unverified.append(f"a velocity at {velocity.at:.3f} is of no action")
            stray = True
            continue
        if burst is not None and velocity.at - burst.last > BASE_TIMEOUT:
            _stood(burst, velocity.at, judgement)
            burst = None
        if burst is None:
            burst = _Burst(velocity.at, velocity.at, velocity.at)
            bursts.append(burst)
        burst.last, burst.end = velocity.at, min(velocity.at + COMMAND_VALID_S, max(end, burst.end))
    if burst is not None and events and events[-1].at - burst.last > BASE_TIMEOUT:
        _stood(burst, events[-1].at, judgement)
    _watch_base(events, bursts, judgement)


def _stood(burst: _Burst, zero: float, judgement: Judgement) -> None:
    commanded = min(zero, burst.last + BASE_TIMEOUT)
    judgement.standstill_s = max(judgement.standstill_s, commanded - burst.end)


def _end(command: Command, events: Sequence[Event]) -> float:
    """When an action ends: its expiry, the navigator's report, or the operator's stop."""
    end = command.expiry
    for event in events:
        if event.at <= command.at:
            continue
        if event.at > end:
            break
        if isinstance(event, Command) or (isinstance(event, Instructed) and is_stop(event.text)):
            return event.at
        status = event.status if isinstance(event, Reported) else None
        ended = status is not None and status.state in ("idle", "stopped")
        if status is not None and ended and status.request == command.request:
            return event.at
    return end


def _watch_base(events: Sequence[Event], bursts: Sequence[_Burst], judgement: Judgement) -> None:
    """Measure from each burst's end until the base stood, unless the next burst came first."""
    base = [event for event in events if isinstance(event, BaseMotion)]
    times = [event.at for event in base]
    for burst, following in zip_longest(bursts, bursts[1:]):
        seen = burst.end
        for event in base[bisect_right(times, burst.end) :]:
            if event.at - seen > ODOMETRY_GAP_S:
                break  # the base itself is gone
            seen = event.at
            if following is not None and event.at > following.first:
                break
            if not event.moves:
                judgement.base_stands_s = max(judgement.base_stands_s, event.at - burst.end)
                break
