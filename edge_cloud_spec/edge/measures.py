"""What a robot measures of its decodes: the cost of each round, and means for its planners."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.cost_model import Costs
from ..decoding.digest import common_prefix
from ..decoding.mean import MIN_PASS_S, Mean, PassYield
from ..decoding.propose import FinishedDraft
from ..wire.messages import Verdict

TIME_DECAY = 0.97  # weight of a time, one observation later
QUEUE_DECAY = 0.9  # the same, of what others make the cloud do
VERIFY_SLOPE = 0.015  # of the target's time, for each node beyond the measured ones; assumed
DRAFT_SLOPE = 0.03  # the same, of the draft model's
FLAT_NODES = 16  # nodes up to which a pass is assumed to take as long as the largest measured one
MAX_PASS_NODES = 256  # of a pass; more are taken to cost the same
FEW_PASSES = 32  # after which what the cloud looks up is judged
LOOKUP_AGAIN = 16  # decodes after which lookup is tried again where it did not pay


class PassTimes:
    """How long a model's pass takes, by the nodes in it."""

    def __init__(self, prior: float, slope: float) -> None:
        """prior: seconds, before any observation. slope: see VERIFY_SLOPE."""
        self._prior, self._slope = prior, slope
        self._seen: dict[int, Mean] = {}
        self._table: list[float] | None = None

    def observe(self, nodes: int, seconds: float) -> None:
        """Add the time of a pass over this many nodes."""
        self._table = None
        self._seen.setdefault(nodes, Mean(seconds, decay=TIME_DECAY)).observe(seconds)

    def forget_drafts(self) -> None:
        """Forget the passes over nodes: they were measured when the machine was another."""
        self._table = None
        self._seen = {nodes: mean for nodes, mean in self._seen.items() if not nodes}

    @property
    def known(self) -> bool:
        """Whether any pass was measured."""
        return bool(self._seen)

    @property
    def largest(self) -> int:
        """The most nodes of any measured pass; 0 where there is none."""
        return max(self._seen, default=0)

    @property
    def table(self) -> list[float]:
        """Seconds of passes over 0 to ``MAX_PASS_NODES`` nodes."""
        if self._table is None:
            self._table = self.at(np.arange(MAX_PASS_NODES + 1)).tolist()
        return self._table

    def seconds(self, nodes: int) -> float:
        """Seconds of a pass over this many nodes."""
        return self.table[min(nodes, MAX_PASS_NODES)]

    def at(self, sizes: NDArray[np.int_]) -> NDArray[np.float64]:
        """Seconds [n] of passes over these numbers of nodes [n]; more nodes take no less."""
        known = sorted(self._seen)
        if not known:
            return np.full(len(sizes), self._prior)
        rising = np.maximum.accumulate([self._seen[nodes].value for nodes in known])
        beyond = np.maximum(0, sizes - max(known[-1], FLAT_NODES))
        times: NDArray[np.float64] = np.interp(sizes, known, rising) * (1 + self._slope * beyond)
        return times


class Measures:
    """Measures of one draft model, one cloud and the link between; kept from decode to decode."""

    def __init__(self) -> None:
        self.acceptance = Mean(0.7, 6.0)  # of the draft's first choice
        self.runner_up = Mean(0.4, 6.0)  # of its second, where the first was wrong
        self.exits = Mean(0.0, 2.0)  # share of rounds that an exit predicted
        self.server_pass = Mean(0.1, decay=TIME_DECAY)  # s of a pass, generating
        self.one_way = Mean(0.02, decay=TIME_DECAY)  # s, of the link
        self._asked_at = 0.0  # s, when the decode under way was asked for
        self._opened_s = inf  # from there to ``Opened``, the shortest
        self.busy = Mean(0.0, decay=QUEUE_DECAY)  # s from a verdict on, of the cloud with others
        self.yields: dict[Any, Mean] = {}  # by plan: measured over promised tokens per second
        self.promises: dict[object, dict[Any, float]] = {}  # of plans, by the costs they are for
        self.planners: dict[object, Any] = {}  # by preset; what they decided lasts, too
        self.server_yields = {hints: PassYield() for hints in (False, True)}  # generating
        self.lookup_yields = {nodes: PassYield() for nodes in (False, True)}  # without hints
        self._without_lookup = 0  # decodes since it was last found to pay
        # by whether the exits are asked for
        self._verify = {exits: PassTimes(0.1, VERIFY_SLOPE) for exits in (False, True)}
        self._draft = PassTimes(0.02, DRAFT_SLOPE)

    @property
    def verify_known(self) -> bool:
        """Whether any pass over a draft was measured."""
        return any(times.largest for times in self._verify.values())

    def forget_verified(self) -> None:
        """Forget what passes over drafts took, which is to be measured again."""
        for times in self._verify.values():
            times.forget_drafts()

    def drafted(self, nodes: int, seconds: float) -> None:
        """Add a pass of the draft model over this many nodes."""
        self._draft.observe(nodes, seconds)

    def asked(self, now: float) -> None:
        """A decode is asked for, at ``now`` (s)."""
        self._asked_at = now

    def opened(self, now: float) -> None:
        """The cloud opened it: a round trip or more, which is all that is known of one as long as
        no verdict was waited for."""
        self._opened_s = min(self._opened_s, now - self._asked_at)
        if not self.one_way.count:
            self.one_way = Mean(self._opened_s / 2, decay=TIME_DECAY)

    def verified(self, nodes: int, seconds: float, link: float | None, exits: bool = False) -> None:
        """Add a pass of the target over this many drafted tokens; ``exits``: it was asked for them.

        ``link``: the round trip, if it is known; in seconds, as the pass.
        """
        if link is not None:
            self.one_way.observe(link / 2)
        if not nodes:
            self.server_pass.observe(seconds)
        self._verify[exits and nodes > 0].observe(nodes, seconds)

    def generated(
        self, nodes: int, tokens: int, seconds: float, hints: bool, draft_s: float = 0.0
    ) -> None:
        """The server, generating, made a pass over this many nodes that it had from elsewhere.

        It settled ``tokens``. hints: the robot's drafts may have been among the nodes. draft_s:
        that the cloud's own draft model had needed before; 0: the nodes are none of that.
        """
        seconds += draft_s
        self.server_yields[hints].observe(tokens, seconds)
        if not (hints or draft_s):
            self.lookup_yields[nodes > 0].observe(tokens, seconds)
        if nodes:
            self.server_pass.observe(seconds)

    def queued(self, turn_s: float, verdict: Verdict, pass_s: float) -> None:
        """A draft begun after a verdict reached the cloud ``turn_s`` after that was sent.

        For how long the cloud was busy with others from then on: not at all where the draft waited
        for less than the draft model's pass ``pass_s``, in which it could not have grown; and for
        no longer than our own pass, so that who missed one does not draft on until the next.
        """
        waited = verdict.queue_s > pass_s
        self.busy.observe(min(turn_s + verdict.queue_s, verdict.verify_s) if waited else 0.0)

    def judged(self, draft: FinishedDraft, tokens: tuple[int, ...]) -> None:
        """A verdict settled these tokens: which of the draft's choices were right."""
        along = common_prefix(tokens, draft.best)
        for _ in range(along):
            self.acceptance.observe(1.0)
        if along < min(len(tokens), len(draft.best)):
            self.acceptance.observe(0.0)
            if along < len(draft.second_choices):
                self.runner_up.observe(float(tokens[along] == draft.second_choices[along]))

    def decide_lookup(self) -> bool:
        """Whether the cloud shall draft from earlier answers in the decode that begins.

        False where that was measured to make the server slower; now and then it is tried again.
        """
        without, looked_up = self.lookup_yields[False], self.lookup_yields[True]
        known = without.count >= FEW_PASSES <= looked_up.count
        pays = not known or looked_up.rate >= without.rate
        self._without_lookup = 0 if pays else self._without_lookup + 1
        return pays or self._without_lookup % LOOKUP_AGAIN == 0

    def verify_s(self, nodes: int, exits: bool = False) -> float:
        """Seconds of a pass of the target over this many drafted tokens."""
        return self._times(exits).seconds(nodes)

    def draft_s(self, rows: int) -> float:
        """Seconds of a pass of the draft model over this many rows."""
        return self._draft.seconds(rows)

    def _times(self, exits: bool) -> PassTimes:
        """Times of passes with or without exits; of the others where none was measured."""
        return self._verify[exits if self._verify[exits].known else not exits]

    def costs(self) -> Costs:
        """The measures as the cost model takes them."""
        draft = self._draft.table
        verify, without = (self._times(exits).table for exits in (True, False))
        return Costs(
            lambda nodes: draft[min(nodes, MAX_PASS_NODES)],
            lambda nodes: verify[min(nodes, MAX_PASS_NODES)],
            max(self.server_pass.value, MIN_PASS_S) if self.server_pass.known else float("inf"),
            self.one_way.value,
            min(0.99, self.acceptance.value),
            self.runner_up.value,
            self.exits.value,
            lambda nodes: without[min(nodes, MAX_PASS_NODES)],
        )


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

    def begin_generated(self, now: float) -> None:
        """A round in which the server generates: it follows the last one without a request."""
        self.start = self.sent = now
        self.waited = False

    def drafted(self, seconds: float) -> None:
        """Add the time (s) of a pass of the draft model in this round."""
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
    failure: str = ""  # of the draft model, where the cloud went on alone

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
