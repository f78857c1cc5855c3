"""The emulated radio link of both harnesses: delay, jitter and rate each way, and outages.

They are constant, or follow a measured trace (``read_trace``).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from edge_cloud_spec.errors import UserError

BYTES_PER_MBIT = 1e6 / 8
LEAST_MBIT = 0.001  # that a row of a trace can have
TRACE_GAP_PERIODS = 3.0  # periods without a row, of a trace: in more than these its link was out


class LinkConditions(NamedTuple):
    """The link's one-way delay and rate (0: unlimited), valid until ``until`` (s)."""

    delay_ms: float
    rate_mbit: float
    until: float


@dataclass(frozen=True)
class LinkTrace:
    """A measured link, repeated endlessly; made by ``read_trace``.

    ``begins``: the time from which each row is valid, s; the first is 0. ``rtt_ms`` is None in an
    outage, ``rate_mbit`` 0 if unlimited. After ``seconds`` the first row is valid again.
    """

    name: str
    begins: tuple[float, ...]
    rtt_ms: tuple[float | None, ...]
    rate_mbit: tuple[float, ...]
    seconds: float

    def at(self, time: float) -> LinkConditions:
        """The link's state at this time, s."""
        cycle, local = divmod(time, self.seconds)
        row = bisect_right(self.begins, local) - 1
        # a rounded sum may be no later than the time itself
        until = max(cycle * self.seconds + self._ends[row], math.nextafter(time, math.inf))
        return LinkConditions((self.rtt_ms[row] or 0.0) / 2, self.rate_mbit[row], until)

    def outages(self) -> Iterator[tuple[float, float]]:
        """The begin and end of each outage, s from the start; endless if there are any."""
        begun: float | None = None
        for cycle in itertools.count() if None in self.rtt_ms else ():
            for begin, rtt_ms in zip(self.begins, self.rtt_ms, strict=True):
                now = cycle * self.seconds + begin
                if rtt_ms is None:
                    begun = now if begun is None else begun
                elif begun is not None:
                    yield begun, now
                    begun = None

    @property
    def median_rtt_ms(self) -> float:
        """The median round trip over the time outside outages."""
        rows = zip(self.rtt_ms, self.begins, self._ends, strict=True)
        spans = sorted((rtt, end - begin) for rtt, begin, end in rows if rtt is not None)
        passed = list(itertools.accumulate(span for _, span in spans))
        return spans[bisect_right(passed[:-1], passed[-1] / 2)][0]

    @cached_property
    def _ends(self) -> Sequence[float]:
        return (*self.begins[1:], self.seconds)


def read_trace(path: Path) -> LinkTrace:
    """Read a trace from rows ``seconds, round trip ms[, Mbit/s]``; raises UserError.

    Lines that begin with # and headings without digits are skipped. An empty round trip is an
    outage. If the next row comes after more than ``TRACE_GAP_PERIODS`` periods (the median time
    between rows), the row is valid for one period, and the rest is an outage.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise UserError(f"the link {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"the link {path} is no text: give rows of seconds, ms") from None
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip()[:1] not in ("", "#")]
    if numbered and not any(map(str.isdigit, numbered[0][1])):
        numbered.pop(0)
    rows: list[tuple[float, float | None, float]] = []
    for number, line in numbered:
        try:
            rows.append(_row(line, after=rows[-1][0] if rows else -math.inf))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    if len(rows) < 2 or all(rtt_ms is None for _, rtt_ms, _ in rows):
        raise UserError(f"the link {path} has no two rows, or only outages: give seconds, ms")
    return _trace_of(path.name, rows)


def _row(line: str, after: float) -> tuple[float, float | None, float]:
    """Parse a row: seconds, round trip ms and Mbit/s; raises ValueError saying what is wrong."""
    cells = [cell.strip() for cell in line.split(",")]
    if not 2 <= len(cells) <= 3:
        raise ValueError("give seconds, round trip in ms and maybe Mbit/s, with commas")
    seconds = _number("time", cells[0])
    rtt_ms = _number("round trip", cells[1]) if cells[1] else None
    rate = _number("rate", cells[2]) if cells[2:] and cells[2] else math.inf
    if seconds <= after:
        raise ValueError(f"the time {cells[0]} is not after the row before, {after:g}")
    if rate < LEAST_MBIT:
        raise ValueError(f"below {LEAST_MBIT:g} Mbit/s it is an outage: leave the round trip empty")
    return seconds, rtt_ms, 0.0 if rate == math.inf else rate


def _number(name: str, cell: str) -> float:
    with suppress(ValueError):
        if 0 <= (value := float(cell)) < math.inf:
            return value
    raise ValueError(f"the {name} {cell!r} is no number of 0 or more")


def _trace_of(name: str, rows: Sequence[tuple[float, float | None, float]]) -> LinkTrace:
    """Make a trace from rows, starting at 0, with an outage row in each gap."""
    period = median(after[0] - row[0] for row, after in itertools.pairwise(rows))
    filled = []
    for row, after in itertools.pairwise(rows):
        filled.append(row)
        if after[0] - row[0] > TRACE_GAP_PERIODS * period:
            filled.append((row[0] + period, None, 0.0))
    begins, rtts, rates = zip(*filled, rows[-1], strict=True)
    first = begins[0]
    seconds = begins[-1] - first + period
    return LinkTrace(name, tuple(begin - first for begin in begins), rtts, rates, seconds)


@dataclass(frozen=True)
class LinkProfile:
    """Delay, jitter, rate and outages of a link.

    Each way takes ``delay_ms`` plus a uniform jitter of up to ``jitter_ms``, and carries
    ``rate_mbit`` Mbit/s (0: unlimited). An outage of ``outage_s`` seconds begins every
    ``outage_every_s`` seconds (0: never). A ``trace`` replaces all of these. Raises UserError.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    rate_mbit: float = 0.0
    outage_every_s: float = 0.0
    outage_s: float = 0.0
    trace: LinkTrace | None = None

    def __post_init__(self) -> None:
        if min(self.delay_ms, self.jitter_ms, self.rate_mbit) < 0:
            raise UserError("a link's delay, jitter and rate are 0 or more")
        if not (
            self.outage_every_s == self.outage_s == 0 or 0 < self.outage_s < self.outage_every_s
        ):
            raise UserError("an outage is EVERY,FOR in seconds, and over before the next: 60,2")

    def at(self, time: float) -> LinkConditions:
        """The link's state at this time, s from the start."""
        if self.trace is not None:
            return self.trace.at(time)
        return LinkConditions(self.delay_ms, self.rate_mbit, math.inf)

    def sent(self, begin: float, size: int) -> float:
        """When the last of ``size`` bytes is sent if the first is sent at ``begin``; s."""
        left, now = float(size), begin
        while True:
            _, rate_mbit, until = self.at(now)
            rate = rate_mbit * BYTES_PER_MBIT
            end = now + (left / rate if rate else 0.0)
            if end <= until:
                return end
            left, now = left - (until - now) * rate, until

    def outages(self) -> Iterator[tuple[float, float]]:
        """The begin and end of each outage, s from the start; endless if there are any."""
        if self.trace is not None:
            yield from self.trace.outages()
        elif self.outage_s:
            for number in itertools.count(1):
                begin = number * self.outage_every_s
                yield begin, begin + self.outage_s

    @property
    def rtt_ms(self) -> float:
        """The round trip without jitter, ms; for a trace its median."""
        return 2 * self.delay_ms if self.trace is None else self.trace.median_rtt_ms

    @property
    def longest_outage_s(self) -> float:
        """The longest outage, s; 0: there is none."""
        cycle = 1 if self.trace is None else 1 + self.trace.rtt_ms.count(None)
        first = itertools.islice(self.outages(), cycle)
        return max((end - begin for begin, end in first), default=0.0)


class Direction:
    """One direction of the link; messages arrive in the order in which they are sent."""

    def __init__(self, profile: LinkProfile, seed: int) -> None:
        self.profile = profile
        self._random = Random(seed)
        self._free = 0.0  # when the last byte so far is sent
        self._last = 0.0  # and when it arrives
        self.bytes = 0  # sent so far

    def arrival(self, now: float, size: int) -> float:
        """When ``size`` bytes sent at ``now`` arrive; seconds since the link began."""
        profile = self.profile
        self.bytes += size
        self._free = profile.sent(max(self._free, now), size)
        jitter = profile.jitter_ms * self._random.random() if profile.jitter_ms else 0.0
        delay_ms = profile.at(self._free).delay_ms
        self._last = max(self._last, self._free + (delay_ms + jitter) / 1e3)
        return self._last

    def clear(self) -> None:
        """Forget messages in flight, which an outage has lost."""
        self._free = self._last = 0.0
