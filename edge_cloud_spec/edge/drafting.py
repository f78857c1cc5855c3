"""The robot's half of a round: the draft that is made, sent, pushed, or left to the cloud alone."""

from __future__ import annotations

from ..decoding.growth import FinishedDraft
from ..decoding.preset import Preset
from ..decoding.shape import chain
from ..decoding.speculation import STOP_AND_WAIT
from ..wire.messages import Generate
from .draft_planner import planner_of
from .events import Action, Drafted, Emit, Finish, Send
from .in_flight import InFlightDrafts
from .measures import Measures
from .outstanding import AwaitedTokens, AwaitedVerdict, Outstanding
from .rounds import Stopwatch
from .speculator import Prefix, Speculator
from .verified_prefix import VerifiedPrefix

SAMPLE_EVERY = 4  # tokens of the cloud alone, between two drafts that only measure acceptance


class Drafting:
    """Keeps a draft in flight or lets the cloud generate alone, as the preset's planner decides."""

    def __init__(
        self,
        preset: Preset,
        prefix: VerifiedPrefix,
        outstanding: Outstanding,
        speculator: Speculator,
        in_flight: InFlightDrafts,
        stopwatch: Stopwatch,
        measures: Measures,
    ) -> None:
        self._speculator = speculator
        self._in_flight = in_flight
        self._preset = preset
        self._prefix = prefix
        self._outstanding = outstanding
        self._stopwatch = stopwatch
        self._measures = measures
        self._planner = planner_of(preset, measures)
        self._pass_s = 0.0  # of the draft model's last pass

    @property
    def _verified(self) -> Prefix:
        return tuple(self._prefix.tokens)

    def draft(self, now: float) -> list[Action]:
        """Send the draft after the verified tokens, if there is one; draft what the plan wants."""
        verified = self._verified
        self._speculator.settle(verified)
        plan = self._planner.plan(now, len(verified))
        self._speculator.plan(plan.shape, plan.speculation)
        ready = self._speculator.draft_after(verified, plan.speculation.cut)
        self._stopwatch.begin(now, ready is not None)
        if plan.shape is None and ready is None:
            return [*self.work(), *self._generate_alone(plan.alone, now)]
        return [*(self._send(ready, now) if ready else []), *self.work()]

    def on_drafted(self, drafted: Drafted, now: float) -> list[Action]:
        """The draft model made a pass over a branch, or has finished it."""
        if not self._speculator.wants(drafted.branch) or self._prefix.digest is None:
            return []
        prefix, draft = drafted.branch.prefix, drafted.finished
        here = prefix == self._verified
        if here:
            self._stopwatch.drafted(drafted.seconds)
        if drafted.seconds:
            self._pass_s = drafted.seconds
            self._measures.drafted(drafted.nodes, drafted.seconds)
        if not self._preset.verified:
            return self._emit_unverified(drafted.tokens, now, done=drafted.done)
        if not drafted.done and not self._cuts(prefix, draft, now):
            self._speculator.keep(drafted.branch, draft)
            return []
        if not self._speculator.drafted(drafted.branch, draft):
            return self.work()
        match self._outstanding.request:
            case AwaitedTokens():
                return self.work()
            case None if here:
                return [*self._send(draft, now), *self.work()]
        pushed = self._in_flight.push(prefix, draft, now)
        return [*([] if pushed is None else [Send(pushed)]), *self.work()]

    def _cuts(self, prefix: Prefix, part: FinishedDraft, now: float) -> bool:
        """Whether to send this part of a draft, since the cloud would wait for the rest."""
        least, request = self._speculator.speculation.cut, self._outstanding.request
        if not least or part.draft.depth < least:
            return False
        if len(prefix) == len(self._prefix.tokens):
            return not isinstance(request, AwaitedVerdict)
        ready = now + self._pass_s + self._measures.one_way.value
        due = request.due if isinstance(request, AwaitedVerdict) else 0.0
        return self._speculator.is_near(prefix) and ready > due

    def work(self) -> list[Action]:
        """Let the draft model work on what is wanted now."""
        return [*self._speculator.work(self._verified, self._prefix.room)]

    def _send(self, draft: FinishedDraft, now: float) -> list[Action]:
        self._stopwatch.asked(now)
        request, is_new = self._in_flight.next(draft, now)
        self._outstanding.ask(request, now)
        return [Send(request.message)] if is_new else []

    def _emit_unverified(self, tokens: tuple[int, ...], now: float, done: bool) -> list[Action]:
        emit = Emit(len(self._prefix.tokens), tokens, verified=False)
        self._prefix.append_unverified(tokens)
        ended = self._prefix.ends_with(self._prefix.tokens[-1])
        if ended or self._prefix.room <= 0:
            return [emit, Finish("end" if ended else "length")]
        return [emit, *(self.draft(now) if done else [])]

    def _generate_alone(self, passes: int, now: float) -> list[Action]:
        """Let the cloud generate without drafts for this many passes."""
        self._stopwatch.asked(now)
        request = self._alone(len(self._prefix.tokens) + passes)
        self._outstanding.ask(request, now)
        return [Send(request.message)]

    def continue_alone(self, until: int, now: float) -> list[Action]:
        """After a verdict on no draft: await the next one, or draft again as planned."""
        self._stopwatch.begin_alone(now)
        if until and len(self._prefix.tokens) >= until:
            return self.draft(now)
        self._outstanding.ask(self._alone(until), now)
        return self._sample_acceptance() if until else []

    def generate(self, now: float) -> list[Action]:
        """Where the robot does not draft: let the cloud generate to the end of the answer."""
        self._stopwatch.asked(now)
        if self._outstanding.request is None:
            self._outstanding.ask(self._alone(0), now)
        else:
            self._outstanding.ask_again(now)
        return self._outstanding.pending()

    def _alone(self, until: int) -> AwaitedTokens:
        assert self._prefix.digest is not None
        speculative = self._preset.drafter == "cloud"
        return AwaitedTokens(Generate(self._prefix.digest, speculative, until))

    def _sample_acceptance(self) -> list[Action]:
        """Draft now and then while the cloud generates alone, to measure the acceptance."""
        verified = self._verified
        self._speculator.settle(verified)
        if len(verified) % SAMPLE_EVERY:
            return []
        self._speculator.plan(chain(1), STOP_AND_WAIT)
        return self.work()
