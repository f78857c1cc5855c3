"""What each round of a decode cost, measured where it happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..wire.messages import Verdict


@dataclass(frozen=True)
class Round:
    """One draft and its verdict; times in seconds."""

    base: int  # verified tokens before it
    drafted: int
    accepted: int
    emitted: int
    start: float  # when the drafting began, on the decode's clock
    sent: float
    settled: float
    verify_s: float = 0.0
    queue_s: float = 0.0
    draft_s: float = 0.0  # of the robot's draft model
    waited: bool = True  # whether its draft was made only after the last verdict

    @property
    def link_s(self) -> float:
        """Waiting that is no model's: codec, hops and the round trip."""
        return max(0.0, self.settled - self.sent - self.verify_s - self.queue_s)

    @property
    def overhead_s(self) -> float:
        """All of the round that is no model's: also queues, and emitting what was settled last."""
        return max(0.0, self.settled - self.start - self.draft_s - self.verify_s)


@dataclass
class Stopwatch:
    """The times of the round under way, in seconds; its verdict makes a ``Round`` of them."""

    start: float = 0.0
    sent: float = 0.0
    draft_s: float = 0.0
    waited: bool = False

    def begin(self, now: float, ready: bool) -> None:
        """A round begins; ``ready``: its draft is made already."""
        self.start, self.draft_s, self.waited = now, 0.0, not ready

    def begin_alone(self, now: float) -> None:
        """A round of the cloud alone begins: it follows the last one without a request."""
        self.start = self.sent = now
        self.waited = False

    def drafted(self, seconds: float) -> None:
        """A pass of the draft model over this round's draft."""
        self.draft_s += seconds

    def asked(self, now: float) -> None:
        """The request for the verdict is sent."""
        self.sent = now

    def round(
        self, verdict: Verdict, base: int, drafted: int, emitted: int, settled: float
    ) -> Round:
        """The round that this verdict ends."""
        return Round(
            base=base,
            drafted=drafted,
            accepted=len(verdict.path),
            emitted=emitted,
            start=self.start,
            sent=self.sent,
            settled=settled,
            verify_s=verdict.verify_s + verdict.draft_s,
            queue_s=verdict.queue_s,
            draft_s=self.draft_s,
            waited=self.waited,
        )

    def link_s(self, verdict: Verdict, settled: float) -> float:
        """Waiting that is not the target's; a drafter in the cloud is not subtracted."""
        return max(0.0, settled - self.sent - verdict.verify_s - verdict.queue_s)


@dataclass
class DecodeStats:
    """The rounds of one decode and what was dropped; bytes are counted at the codec."""

    rounds: list[Round] = field(default_factory=list)
    stale: int = 0
    diverged: int = 0  # verdicts that lead to a prefix where the robot did not arrive
    resumed: int = 0
    predictions: int = 0  # of early exits
    fallbacks: int = 0  # dense rows asked for after a sparse residual ran out
    up_bytes: int = 0
    down_bytes: int = 0

    @property
    def drafted(self) -> int:
        """Drafted tokens of all rounds."""
        return sum(r.drafted for r in self.rounds)

    @property
    def accepted(self) -> int:
        """Accepted tokens of all rounds."""
        return sum(r.accepted for r in self.rounds)

    @property
    def tested(self) -> int:
        """Drafted tokens that the target judged: the accepted ones and the first rejected one."""
        return sum(r.accepted + (r.accepted < r.drafted) for r in self.rounds)
