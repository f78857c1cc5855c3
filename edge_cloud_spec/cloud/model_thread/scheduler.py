"""Decides what the model's thread does next: fair between clients, then by deadline.

Deficit round robin (Shreedhar and Varghese 1995), with debts: a client is served while it has
credit, and pays one credit per token of a pass. When no waiting client has credit a new round
begins, and each gets QUANTUM more. So a client that floods, with however many sessions, delays only
itself. Among clients with credit the earliest deadline goes first (WISP, 2601.11652). No clock, no
models.

The waiting clients are scanned once per pass, not once per session in it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from ..session.events import Propose
from .limits import WorkerLimits
from .sessions import HeldSession, RobotStream

QUANTUM = 16  # credit, in tokens, that a client gets per round
MESSAGE_ROWS = 0.25  # the least cost of handling a message, in tokens
ESTIMATE_DECAY = 0.98  # weight of a pass relative to the next one; about 50 passes count
# A pass's time counts at most as this many times the expected one, and at least as 1 / this.
OUTLIER = 3.0
WARM_UP_PASSES = 8  # first passes, whose times are not limited


@dataclass(frozen=True)
class Job:
    """A session's work outside the common passes: a chunk of its prompt or, with ``proposal``, a
    draft by the cloud's own draft model, requested at ``arrived`` (s)."""

    session: HeldSession
    proposal: Propose | None = None
    arrived: float = field(default=0.0, compare=False)


@dataclass(eq=False)
class ClientShare:
    """The waiting work of one client (a credential, or a connection), and its ``credit`` in
    tokens."""

    client: Hashable
    credit: float = 0.0
    streams: dict[RobotStream, None] = field(default_factory=dict)  # streams with a waiting message
    passes: deque[HeldSession] = field(default_factory=deque)  # sessions whose pass is due
    jobs: dict[Job, None] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """The number of waiting streams, passes and jobs."""
        return len(self.streams) + len(self.passes) + len(self.jobs)


class PassEstimator:
    """Estimates the time of the target's pass: a fixed part and a part per token.

    Recursive least squares with forgetting, robust against a single outlier. Neither part is
    negative. A machine that has become slower is learned in a few passes, since estimates follow
    outliers.
    """

    def __init__(self) -> None:
        self.passes = 0
        self._fixed = self._per_row = 0.0  # seconds, and seconds per token
        self._weight = self._rows = self._seconds = 0.0  # decayed sums
        self._rows_rows = self._rows_seconds = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a pass over ``rows`` tokens that took ``seconds``."""
        expected = self.seconds(rows)
        if self.passes >= WARM_UP_PASSES:
            seconds = min(max(seconds, expected / OUTLIER), expected * OUTLIER)
        self.passes += 1
        self._weight = ESTIMATE_DECAY * self._weight + 1.0
        self._rows = ESTIMATE_DECAY * self._rows + rows
        self._seconds = ESTIMATE_DECAY * self._seconds + seconds
        self._rows_rows = ESTIMATE_DECAY * self._rows_rows + rows * rows
        self._rows_seconds = ESTIMATE_DECAY * self._rows_seconds + rows * seconds
        self._fit()

    def seconds(self, rows: int) -> float:
        """The expected time of a pass over ``rows`` tokens, s; 0 before any measurement."""
        return self._fixed + self._per_row * rows

    @property
    def row_s(self) -> float:
        """The mean time per token, including the fixed part, s; 0 before any measurement."""
        return self._seconds / self._rows if self._rows else 0.0

    def _fit(self) -> None:
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows_rows / self._weight - mean_rows**2
        slope = 0.0
        if spread > 1e-9:
            slope = (self._rows_seconds / self._weight - mean_rows * mean_seconds) / spread
        # A line through the mean, with neither part negative.
        self._per_row = min(max(slope, 0.0), mean_seconds / mean_rows)
        self._fixed = mean_seconds - self._per_row * mean_rows


class _Line:
    """Client shares waiting for the same kind of work, by ``deadline``, then by time of
    addition."""

    def __init__(
        self,
        shares: Iterable[ClientShare] = (),
        deadline: Callable[[ClientShare], float] = lambda share: math.inf,
    ) -> None:
        self._deadline = deadline
        self._heap = [(deadline(share), place, share) for place, share in enumerate(shares)]
        self._without_credit: list[tuple[float, int, ClientShare]] = []
        self._added = len(self._heap)
        heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap or self._without_credit)

    def add(self, share: ClientShare) -> None:
        """Add a client behind those with the same deadline."""
        heappush(self._heap, (self._deadline(share), self._added, share))
        self._added += 1

    def skip_indebted(self) -> bool:
        """Set aside clients without credit until the first has some; False if nobody has."""
        while self._heap and self._heap[0][2].credit <= 0:
            self._without_credit.append(heappop(self._heap))
        return bool(self._heap)

    def rounds(self) -> int:
        """How many rounds give credit to one of them at least."""
        return 1 + int(min(-share.credit for _, _, share in self._without_credit) / QUANTUM)

    def look_again(self) -> None:
        """Look through all of them again: none had credit, and rounds have begun."""
        self._heap, self._without_credit = self._without_credit, []
        heapify(self._heap)
        self.skip_indebted()

    def pop(self) -> ClientShare:
        """The first one, which has credit."""
        return heappop(self._heap)[2]


class Scheduler:
    """Decides whose turn it is. Belongs to the model's thread; ``waiting`` is for any thread."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self.estimator = PassEstimator()
        self._shares: dict[Hashable, ClientShare] = {}  # least recently served first
        self._in_pass: Counter[ClientShare] = Counter()  # sessions in the last pass, by client
        self._job_line = _Line()  # clients with waiting jobs

    @property
    def has_model_work(self) -> bool:
        """Whether a pass or a job waits."""
        return any(share.passes or share.jobs for share in self._shares.values())

    @property
    def waiting(self) -> int:
        """The number of waiting streams, passes and jobs."""
        return sum(share.waiting for share in list(self._shares.values()))

    def of(self, client: Hashable) -> ClientShare:
        """The share of this client, for adding work."""
        return self._shares.setdefault(client, ClientShare(client))

    def charge(self, client: Hashable, seconds: float) -> None:
        """Subtract time of the model's thread, spent on one client only, from its credit."""
        if row_s := self.estimator.row_s:
            self.of(client).credit -= seconds / row_s

    def take_streams(self) -> Iterator[RobotStream]:
        """The streams to handle one message of each from, before the next pass.

        At most one round begins, unless there is no other work; the rest waits.
        """
        rounds = served = 0
        line = _Line(share for share in self._shares.values() if share.streams)
        while line:
            if not line.skip_indebted():
                if rounds and served:
                    return
                rounds += 1
            share = self._serve(line)
            share.credit -= MESSAGE_ROWS
            stream = next(iter(share.streams))
            del share.streams[stream]
            served += 1
            yield stream
            if share.streams:
                line.add(share)

    def take_job(self) -> tuple[Hashable, Job] | None:
        """The next job and its client; None if there is none."""
        if not self._job_line.skip_indebted():
            self._job_line = _Line(share for share in self._shares.values() if share.jobs)
        if not self._job_line:
            return None
        share = self._serve(self._job_line)
        job = next(iter(share.jobs))
        del share.jobs[job]
        return share.client, job

    def next_batch(self, now: float) -> list[HeldSession]:
        """The sessions of the next pass: at most ``batch`` (``passes_per_robot`` of one client),
        with at most ``batch_rows`` tokens (one session alone may have more).

        The pass does not grow beyond what its earliest deadline allows. The client with that
        deadline pays for the tokens left out, so that urgent drafts do not get more than a fair
        share.
        """
        batch: list[HeldSession] = []
        rows, first, urgent, kept_out, misfits = 0, math.inf, None, 0, 0
        self._in_pass.clear()
        passes = (share for share in self._shares.values() if share.passes)
        line = _Line(passes, lambda share: share.passes[0].due.deadline)
        while line and max(len(batch), misfits) < self._limits.batch:
            share = self._serve(line)
            due = share.passes[0].due
            end = now + self.estimator.seconds(rows + due.rows)
            fits = rows + due.rows <= self._limits.batch_rows
            if batch and not (fits and end <= first):
                kept_out += due.rows * fits
                misfits += 1
                continue
            batch.append(share.passes.popleft())
            self._in_pass[share] += 1
            share.credit -= due.rows
            rows += due.rows
            if due.reply_timeout_s and end <= due.deadline < first:
                first, urgent = due.deadline, share
            if share.passes and self._in_pass[share] < self._limits.passes_per_robot:
                line.add(share)
        if urgent is not None:
            urgent.credit -= max(0, min(kept_out, self._limits.batch_rows - rows))
        return batch

    def _serve(self, line: _Line) -> ClientShare:
        """The client to serve next; starts rounds until one has credit."""
        if not line.skip_indebted():
            self._begin_rounds(line.rounds())
            line.look_again()
        share = line.pop()
        self._shares[share.client] = self._shares.pop(share.client)
        return share

    def _begin_rounds(self, count: int) -> None:
        """Start rounds: each client gets its quanta; an idle one keeps its debt, but no credit.

        A client whose pass is too large for the batch saves up for a pass of its own.
        """
        most = max(QUANTUM, self._limits.batch_rows)
        for share in list(self._shares.values()):
            waits = share.waiting or share in self._in_pass
            share.credit = min(share.credit + count * QUANTUM, most)
            if share.credit >= 0 and not waits:
                del self._shares[share.client]
