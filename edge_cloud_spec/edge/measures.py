"""What a robot measures of its decodes: the cost of each round, and running means for planners."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.cost_model import Costs
from ..decoding.digest import common_prefix
from ..decoding.mean import MIN_PASS_S, Mean, PassYield
from ..decoding.propose import FinishedDraft
from ..wire.messages import Verdict

TIME_DECAY = 0.97  # weight of a time relative to the next observation
QUEUE_DECAY = 0.9  # the same for waiting because of other robots
# Relative increase of the target's time per node beyond the measured ones; assumed.
VERIFY_SLOPE = 0.015
DRAFT_SLOPE = 0.03  # the same for the draft model
FLAT_NODES = 16  # nodes beyond the largest measured pass for which the time is assumed constant
MAX_PASS_NODES = 256  # nodes of a pass; larger passes are assumed to cost the same
FEW_PASSES = 32  # passes before lookup is measured
LOOKUP_AGAIN = 16  # decodes until lookup is tried again after it did not pay


class PassTimes:
    """The mean duration of a model's pass as a function of its nodes."""

    def __init__(self, prior: float, slope: float) -> None:
        """prior: seconds, before any measurement. slope: see VERIFY_SLOPE."""
        self._prior, self._slope = prior, slope
        self._seen: dict[int, Mean] = {}
        self._table: list[float] | None = None  # of passes over 0 to MAX_PASS_NODES nodes

    def observe(self, nodes: int, seconds: float) -> None:
        """Record the duration of a pass over ``nodes`` nodes."""
        self._table = None
        self._seen.setdefault(nodes, Mean(seconds, decay=TIME_DECAY)).observe(seconds)

    def forget_drafts(self) -> None:
        """Forget passes over drafts, as their measurements are outdated."""
        self._table = None
        self._seen = {nodes: mean for nodes, mean in self._seen.items() if not nodes}

    @property
    def known(self) -> bool:
        """Whether any pass was measured."""
        return bool(self._seen)

    @property
    def largest(self) -> int:
        """The most nodes of any measured pass; 0 if there is none."""
        return max(self._seen, default=0)

    def seconds(self, nodes: int) -> float:
        """The expected seconds of a pass over ``nodes`` nodes."""
        if self._table is None:
            self._table = self.at(np.arange(MAX_PASS_NODES + 1)).tolist()
        return self._table[min(nodes, MAX_PASS_NODES)]

    def at(self, sizes: NDArray[np.int_]) -> NDArray[np.float64]:
        """Expected seconds [n] of passes over ``sizes`` [n] nodes; never decreasing in the number
        of nodes."""
        known = sorted(self._seen)
        if not known:
            return np.full(len(sizes), self._prior)
        rising = np.maximum.accumulate([self._seen[nodes].value for nodes in known])
        beyond = np.maximum(0, sizes - max(known[-1], FLAT_NODES))
        times: NDArray[np.float64] = np.interp(sizes, known, rising) * (1 + self._slope * beyond)
        return times


class Measures:
    """Measurements of one draft model, one cloud and the link between; kept across decodes."""

    def __init__(self) -> None:
        self.acceptance = Mean(0.7, 6.0)  # how often the draft's first choice is right
        self.runner_up = Mean(0.4, 6.0)  # how often its second choice is, if the first is wrong
        self.exits = Mean(0.5, 2.0)  # share of rounds predicted by an early exit
        self.server_pass = Mean(0.1, decay=TIME_DECAY)  # s; a pass of server generation
        self.one_way = Mean(0.02, decay=TIME_DECAY)  # s; the link
        self._asked_at = 0.0  # s; when the current decode was requested
        self._opened_s = inf  # s; the shortest time from the request to ``Opened``
        # Seconds after a verdict in which the cloud serves others.
        self.busy = Mean(0.0, decay=QUEUE_DECAY)
        self.yields: dict[Any, Mean] = {}  # by plan: measured over promised tokens per second
        self.promises: dict[object, dict[Any, float]] = {}  # promised rates of plans, by costs
        self.planners: dict[object, Any] = {}  # by preset; planners keep what they learned
        # Server generation, with and without hints.
        self.server_yields = {hints: PassYield() for hints in (False, True)}
        # Passes with and without lookup nodes, without hints.
        self.lookup_yields = {nodes: PassYield() for nodes in (False, True)}
        self._without_lookup = 0  # decodes since lookup was last found to pay
        # by whether exits are used
        self._verify = {exits: PassTimes(0.1, VERIFY_SLOPE) for exits in (False, True)}
        self._draft = PassTimes(0.02, DRAFT_SLOPE)

    @property
    def verify_known(self) -> bool:
        """Whether any pass over a draft was measured."""
        return any(times.largest for times in self._verify.values())

    def forget_verified(self) -> None:
        """Forget the durations of passes over drafts."""
        for times in self._verify.values():
            times.forget_drafts()

    def drafted(self, nodes: int, seconds: float) -> None:
        """Record a pass of the draft model over ``nodes`` nodes."""
        self._draft.observe(nodes, seconds)

    def asked(self, now: float) -> None:
        """Record that a decode was requested at ``now`` (s)."""
        self._asked_at = now

    def opened(self, now: float) -> None:
        """Record the cloud's reply to Open: a first estimate of the round trip, until there is a
        verdict."""
        self._opened_s = min(self._opened_s, now - self._asked_at)
        if not self.one_way.count:
            self.one_way = Mean(self._opened_s / 2, decay=TIME_DECAY)

    def verified(self, nodes: int, seconds: float, link: float | None, exits: bool = False) -> None:
        """Record a pass of the target over ``nodes`` drafted tokens; ``exits``: with early exits.

        ``seconds``: of the pass. ``link``: the round trip, s, if it is known.
        """
        if link is not None:
            self.one_way.observe(link / 2)
        if not nodes:
            self.server_pass.observe(seconds)
        self._verify[exits and nodes > 0].observe(nodes, seconds)

    def generated(
        self, nodes: int, tokens: int, seconds: float, hints: bool, draft_s: float = 0.0
    ) -> None:
        """Record a pass of a generating server over ``nodes`` draft nodes; it added ``tokens``
        tokens.

        hints: the robot's drafts may have been among the nodes. draft_s: the time of the cloud's
        draft model before it; 0: that did not draft.
        """
        seconds += draft_s
        self.server_yields[hints].observe(tokens, seconds)
        if not (hints or draft_s):
            self.lookup_yields[nodes > 0].observe(tokens, seconds)
        if nodes:
            self.server_pass.observe(seconds)

    def queued(self, turn_s: float, verdict: Verdict, pass_s: float) -> None:
        """Estimate how long the cloud is busy with others when a draft arrives ``turn_s`` after a
        verdict.

        It counts as 0 if the draft waited less than ``pass_s``, a pass of the draft model, in which
        it could not have grown; and as our own pass at most, so that a robot that missed one does
        not draft on until the next.
        """
        waited = verdict.queue_s > pass_s
        self.busy.observe(min(turn_s + verdict.queue_s, verdict.verify_s) if waited else 0.0)

    def accepted(self, draft: FinishedDraft, tokens: tuple[int, ...]) -> None:
        """Record which of the draft's choices a verdict with these tokens confirmed."""
        along = common_prefix(tokens, draft.best)
        for _ in range(along):
            self.acceptance.observe(1.0)
        if along < min(len(tokens), len(draft.best)):
            self.acceptance.observe(0.0)
            if along < len(draft.second_choices):
                self.runner_up.observe(float(tokens[along] == draft.second_choices[along]))

    def decide_lookup(self) -> bool:
        """Whether the cloud should draft from earlier answers in the next decode.

        False if that was measured to make the server slower, except for occasional trials.
        """
        without, looked_up = self.lookup_yields[False], self.lookup_yields[True]
        known = without.count >= FEW_PASSES <= looked_up.count
        pays = not known or looked_up.rate >= without.rate
        self._without_lookup = 0 if pays else self._without_lookup + 1
        return pays or self._without_lookup % LOOKUP_AGAIN == 0

    def verify_s(self, nodes: int, exits: bool = False) -> float:
        """The expected seconds of a target's pass over ``nodes`` drafted tokens; ``exits``: with
        exits."""
        return self._times(exits).seconds(nodes)

    def draft_s(self, rows: int) -> float:
        """The expected seconds of a draft model's pass over ``rows`` tokens."""
        return self._draft.seconds(rows)

    def _times(self, exits: bool) -> PassTimes:
        """Times of passes with or without exits; the other kind's if this has no measurement."""
        return self._verify[exits if self._verify[exits].known else not exits]

    def costs(self) -> Costs:
        """The measurements as input of the cost model."""
        return Costs(
            self._draft.seconds,
            self._times(exits=True).seconds,
            max(self.server_pass.value, MIN_PASS_S) if self.server_pass.known else float("inf"),
            self.one_way.value,
            min(0.99, self.acceptance.value),
            self.runner_up.value,
            self.exits.value,
            self._times(exits=False).seconds,
        )


@dataclass(frozen=True)
class Round:
    """One draft and its verdict, or what is known before that; times in seconds."""

    base: int = 0  # verified tokens before the round
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    start: float = 0.0  # when drafting began, on the decode's clock
    sent: float = 0.0
    settled: float = 0.0
    verify_s: float = 0.0
    queue_s: float = 0.0
    draft_s: float = 0.0  # of the robot's draft model
    waited: bool = True  # whether its draft was not ready at the last verdict

    @property
    def link_s(self) -> float:
        """Waiting time outside the models, s: codec, hops and the round trip."""
        return max(0.0, self.settled - self.sent - self.verify_s - self.queue_s)

    @property
    def overhead_s(self) -> float:
        """Everything but model time, s: also queues, and emitting the last tokens."""
        return max(0.0, self.settled - self.start - self.draft_s - self.verify_s)

    def begun(self, now: float, ready: bool) -> Round:
        """The next round, from ``now``; ``ready``: its draft is finished already."""
        return Round(start=now, sent=self.sent, waited=not ready)

    def ended(
        self, verdict: Verdict, base: int, drafted: int, emitted: int, settled: float
    ) -> Round:
        """The round with its verdict."""
        return replace(
            self,
            base=base,
            drafted=drafted,
            accepted=len(verdict.path),
            emitted=emitted,
            settled=settled,
            verify_s=verdict.verify_s + verdict.draft_s,
            queue_s=verdict.queue_s,
        )


@dataclass
class DecodeStats:
    """The rounds of one decode, and what was dropped; bytes are counted at the codec."""

    rounds: list[Round] = field(default_factory=list)
    stale: int = 0
    diverged: int = 0  # verdicts that led to another prefix than the robot's
    resumed: int = 0
    predictions: int = 0  # of early exits
    fallbacks: int = 0  # dense P requested because a sparse residual did not suffice
    up_bytes: int = 0
    down_bytes: int = 0
    prompt_tokens: int = 0  # as the robot counts them; 0: it made no prompt
    failure: str = ""  # of the draft model, after which the cloud continued alone

    @property
    def drafted(self) -> int:
        """The number of drafted tokens in all rounds."""
        return sum(r.drafted for r in self.rounds)

    @property
    def accepted(self) -> int:
        """The number of accepted tokens in all rounds."""
        return sum(r.accepted for r in self.rounds)

    @property
    def tested(self) -> int:
        """The number of drafted tokens verified: the accepted ones and the first rejected one per
        round."""
        return sum(r.accepted + (r.accepted < r.drafted) for r in self.rounds)
