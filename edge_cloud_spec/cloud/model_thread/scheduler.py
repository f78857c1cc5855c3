"""What the model's thread does next, of all that waits: fair to clients, then by deadline.

Deficit round robin (Shreedhar and Varghese 1995), with debts: a client is served while it has
credit, and pays in rows of a pass. When nobody who waits has credit a round begins, and each gets
QUANTUM rows more. So a client that floods, however many sessions it has, delays only itself. Among
those with credit the first deadline is the first served (WISP, 2601.11652). No clock, no models.

Who waits is looked through once for a pass, not once for each session in it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ...decoding.draft import Draft
from .pass_estimator import PassEstimator

if TYPE_CHECKING:
    from .sessions import CloudSession, RobotStream, WorkerLimits

QUANTUM = 16  # rows of credit that a round gives to each client
MESSAGE_ROWS = 0.25  # what handling a message costs at least
UNSAID_S = 1.0  # who does not say how long it can wait is served as if it had said this

Job = Callable[[], None]


@dataclass(frozen=True, eq=False)
class DuePass:
    """A session's part of a pass over ``rows``: this draft, due since ``arrived`` (s). Of a draft
    that was scored with its prompt no rows are left.

    ``patience_s``: how long its robot can wait for the verdict; 0: it did not say.
    """

    session: CloudSession
    draft: Draft
    rows: int
    arrived: float
    patience_s: float = 0.0

    @property
    def deadline(self) -> float:
        """When its verdict is wanted, s."""
        return self.arrived + (self.patience_s or UNSAID_S)


@dataclass(eq=False)
class ClientShare:
    """What waits of one client (a credential, or a connection), and its ``credit`` in rows."""

    client: Hashable
    credit: float = 0.0
    talking: dict[RobotStream, None] = field(default_factory=dict)  # its streams with a message
    passes: deque[DuePass] = field(default_factory=deque)
    jobs: deque[Job] = field(default_factory=deque)  # prefills and proposals

    @property
    def waiting(self) -> int:
        """How much waits."""
        return len(self.talking) + len(self.passes) + len(self.jobs)


class _Line:
    """Shares that wait for the same: by ``deadline``, and of equal ones as they were added."""

    def __init__(
        self,
        shares: Iterable[ClientShare] = (),
        deadline: Callable[[ClientShare], float] = lambda share: math.inf,
    ) -> None:
        self._deadline = deadline
        self._able = [(deadline(share), place, share) for place, share in enumerate(shares)]
        self._indebted: list[tuple[float, int, ClientShare]] = []  # found to have no credit
        self._added = len(self._able)
        heapify(self._able)

    def __bool__(self) -> bool:
        return bool(self._able or self._indebted)

    def add(self, share: ClientShare) -> None:
        """It waits behind those with the same deadline."""
        heappush(self._able, (self._deadline(share), self._added, share))
        self._added += 1

    @property
    def able(self) -> bool:
        """Whether somebody has credit."""
        while self._able and self._able[0][2].credit <= 0:
            self._indebted.append(heappop(self._able))
        return bool(self._able)

    def rounds(self) -> int:
        """How many rounds give credit to one of them at least; after these they are looked at."""
        self._able, self._indebted = self._indebted, []
        heapify(self._able)
        return 1 + int(min(-share.credit for _, _, share in self._able) / QUANTUM)

    def pop(self) -> ClientShare:
        """The first one, if somebody is ``able``."""
        return heappop(self._able)[2]


class Scheduler:
    """Whose turn it is. Belongs to the model's thread; only ``waiting`` is for others, too."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self.estimator = PassEstimator()
        self._shares: dict[Hashable, ClientShare] = {}  # who was served last stands last
        self._in_pass: Counter[ClientShare] = Counter()  # the last one; they wait for nothing else
        self._working = _Line()  # whose jobs are next

    @property
    def busy(self) -> bool:
        """Whether anything waits."""
        return any(share.waiting for share in self._shares.values())

    @property
    def computes(self) -> bool:
        """Whether a pass or a job waits."""
        return any(share.passes or share.jobs for share in self._shares.values())

    @property
    def waiting(self) -> int:
        """How many streams, passes and jobs wait."""
        return sum(share.waiting for share in list(self._shares.values()))

    def of(self, client: Hashable) -> ClientShare:
        """The share of this client, to add to what waits."""
        return self._shares.setdefault(client, ClientShare(client))

    def charge(self, client: Hashable, seconds: float) -> None:
        """The model's thread has worked so long for this client alone."""
        if row_s := self.estimator.row_s:
            self.of(client).credit -= seconds / row_s

    def take_streams(self) -> Iterator[RobotStream]:
        """The streams of which one message is to be handled, before the next pass.

        One round begins at most, unless there is nothing else: the rest waits for the next time.
        """
        rounds = served = 0
        line = _Line(share for share in self._shares.values() if share.talking)
        while line:
            if not line.able:
                if rounds and served:
                    return
                rounds += 1
            share = self._serve(line)
            share.credit -= MESSAGE_ROWS
            stream = next(iter(share.talking))
            del share.talking[stream]
            served += 1
            yield stream
            if share.talking:
                line.add(share)

    def take_job(self) -> tuple[Hashable, Job] | None:
        """The next job, and for whom."""
        if not self._working.able:
            self._working = _Line(share for share in self._shares.values() if share.jobs)
        if not self._working:
            return None
        share = self._serve(self._working)
        return share.client, share.jobs.popleft()

    def next_batch(self, now: float) -> list[DuePass]:
        """The next pass: ``batch`` sessions at most (``passes_per_robot`` of a client), and
        ``batch_rows`` rows (a session alone may have more).

        It does not grow beyond the first deadline in it that can be met. The client whose deadline
        that is pays for the rows that it keeps out: a claim never gets more than its share.
        """
        batch: list[DuePass] = []
        rows, first, urgent, kept_out, misfits = 0, math.inf, None, 0, 0
        self._in_pass.clear()
        passes = (share for share in self._shares.values() if share.passes)
        line = _Line(passes, lambda share: share.passes[0].deadline)
        while line and max(len(batch), misfits) < self._limits.batch:
            share = self._serve(line)
            due = share.passes[0]
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
            if due.patience_s and end <= due.deadline < first:
                first, urgent = due.deadline, share
            if share.passes and self._in_pass[share] < self._limits.passes_per_robot:
                line.add(share)
        if urgent is not None:
            urgent.credit -= max(0, min(kept_out, self._limits.batch_rows - rows))
        return batch

    def _serve(self, line: _Line) -> ClientShare:
        """Of these the one to serve now; rounds begin until one has credit."""
        if not line.able:
            self._begin_rounds(line.rounds())
        assert line.able
        share = line.pop()
        self._shares[share.client] = self._shares.pop(share.client)
        return share

    def _begin_rounds(self, count: int) -> None:
        """Each gets its quanta; who waits for nothing keeps what it owes, and no credit.

        Who waits in vain, since a pass has no room for its rows, saves up for a pass of its own.
        """
        most = max(QUANTUM, self._limits.batch_rows)
        for share in list(self._shares.values()):
            waits = share.waiting or share in self._in_pass
            share.credit = min(share.credit + count * QUANTUM, most if waits else 0.0)
            if share.credit >= 0 and not waits:
                del self._shares[share.client]
