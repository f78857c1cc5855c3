"""The robot's half of a round: the draft that is made, sent, pushed, or left to the cloud alone."""

from __future__ import annotations

import math

from ..decoding.mean import MIN_PASS_S
from ..decoding.preset import STOP_AND_WAIT, Preset
from ..decoding.propose import FinishedDraft
from ..decoding.shape import chain
from ..wire.messages import Alone, Generate, Verdict
from .draft_planner import DraftPlan, planner_of
from .events import Action, Drafted, Emit, Finish, Send
from .in_flight import InFlightDrafts
from .measures import Measures
from .outstanding import AwaitedTokens, AwaitedVerdict, Outstanding, Request
from .rounds import Stopwatch
from .speculator import Prefix, Speculator
from .verified_prefix import VerifiedPrefix

SAMPLE_EVERY = 4  # tokens of the cloud alone, between two drafts that only measure acceptance,
SAMPLE_SELDOM = 32  # once MANY_SAMPLES were taken
MANY_SAMPLES = 64
UNDER_WAY = 2  # verdicts of the cloud alone that may still come after a draft was sent


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
        self._plan = DraftPlan(None, preset.speculation)  # the last one
        self._follows = False  # whether the cloud goes on alone until a draft of ours arrives
        self._was_alone = True  # whether the last verdict was the cloud's alone
        self._joining = 0  # verdicts that may still be of what the cloud did alone
        self._is_prefilled = False
        self._heard_at = 0.0  # when the cloud, going on alone, began its pass, s
        self.pass_s = 0.0  # of the draft model's last pass
        self._free_at = 0.0  # when the cloud has done what it does for others, s

    @property
    def _verified(self) -> Prefix:
        return tuple(self._prefix.tokens)

    def begin(self, now: float) -> list[Action]:
        """The draft model has read the prompt: join the cloud, or begin."""
        self._is_prefilled = True
        if isinstance(self._outstanding.request, AwaitedTokens):
            return self._follow(now)
        return self.draft(now)

    def _next_plan(self, now: float) -> DraftPlan:
        verified = self._verified
        self._speculator.settle(verified)
        plan = self._plan = self._planner.plan(
            now, len(verified), self._follows, self._follows and self._was_alone
        )
        self._speculator.plan(plan.shape, plan.speculation)
        return plan

    def draft(self, now: float) -> list[Action]:
        """Send the draft after the verified tokens, if there is one; draft what the plan wants."""
        plan, verified = self._next_plan(now), self._verified
        self._free_at = now - self._measures.one_way.value + self._measures.busy.value
        cut = plan.speculation.cut if self._is_late(now) else 0
        ready = self._speculator.draft_after(verified, cut)
        self._stopwatch.begin(now, ready is not None)
        if not plan.leads and (ready is None or not self._in_flight.draft_at(self._prefix.digest)):
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
            self.pass_s = drafted.seconds
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
                return [*self._beside(drafted, here, now), *self.work()]
            case None if here:
                return [*self._send(draft, now), *self.work()]
        pushed = self._in_flight.push(prefix, draft, now, self._plan.speculation.exits)
        return [*([] if pushed is None else [Send(pushed)]), *self.work()]

    def _cuts(self, prefix: Prefix, part: FinishedDraft, now: float) -> bool:
        """Whether to send this part of a draft, since the cloud would wait for the rest."""
        least, request = self._speculator.speculation.cut, self._outstanding.request
        if self._plan.leads and isinstance(request, AwaitedTokens):
            return len(prefix) == len(self._prefix.tokens)  # the cloud goes on meanwhile
        if not least or part.draft.depth < least:
            return False
        here = len(prefix) == len(self._prefix.tokens)
        ready = now + self.pass_s + self._measures.one_way.value
        if isinstance(request, AwaitedTokens):
            return (here or self._speculator.is_near(prefix)) and ready > self._next_pass(now)
        if here:
            return not isinstance(request, AwaitedVerdict) and self._is_late(now)
        due = request.due if isinstance(request, AwaitedVerdict) else 0.0
        return self._speculator.is_near(prefix) and ready > due

    def _next_pass(self, now: float) -> float:
        """When the cloud, alone, begins the next pass that a hint sent now is there for, s."""
        pass_s = max(self._measures.alone.value, MIN_PASS_S)
        late = now + self._measures.one_way.value - self._heard_at
        return self._heard_at + pass_s * math.ceil(late / pass_s)

    def _is_late(self, now: float) -> bool:
        """Whether the cloud would wait for another level of the draft it needs next."""
        return now + self.pass_s + self._measures.one_way.value > self._free_at

    def work(self) -> list[Action]:
        """Let the draft model work on what is wanted now."""
        return [*self._speculator.work(self._verified, self._prefix.room)]

    def _send(self, draft: FinishedDraft, now: float) -> list[Action]:
        self._stopwatch.asked(now)
        request, is_new = self._in_flight.next(
            draft, now, self._outstanding.patience_s(now), self._plan.speculation.exits
        )
        self._outstanding.ask(request, now)
        return [Send(request.message)] if is_new else []

    def _emit_unverified(self, tokens: tuple[int, ...], now: float, done: bool) -> list[Action]:
        emit = Emit(len(self._prefix.tokens), tokens, verified=False)
        self._prefix.append_unverified(tokens)
        ended = self._prefix.ends_with(self._prefix.tokens[-1])
        if ended or self._prefix.room <= 0:
            return [emit, Finish("end" if ended else "length")]
        return [emit, *(self.draft(now) if done else [])]

    def _generate_alone(self, tokens: int, now: float) -> list[Action]:
        """Let the cloud generate this many tokens without drafts, or to the end."""
        self._stopwatch.asked(now)
        request = self._alone(0 if self._follows else len(self._prefix.tokens) + tokens)
        self._outstanding.ask(request, now)
        return [Send(request.message)]

    def continue_alone(self, until: int, now: float) -> list[Action]:
        """After a verdict on no draft: await the next one, or draft again as planned."""
        self._stopwatch.begin_alone(now)
        self._heard_at = now - self._measures.one_way.value
        if until and len(self._prefix.tokens) >= until:
            return self.draft(now)
        self._outstanding.ask(self._alone(until), now)
        if self._follows:
            return self._follow(now) if self._is_prefilled or self._planner.rests else []
        return self._sample_acceptance() if until else []

    def follow(self, now: float) -> None:
        """The cloud goes on alone from its own prefill, as ``Open`` asked."""
        self._follows = self._preset.drafts_on_robot
        self._stopwatch.asked(now)
        self._outstanding.cancel()
        self._outstanding.ask(self._alone(0), now)

    def ask_alone(self, now: float) -> list[Action]:
        """A cloud that does not do what ``Open`` asked is asked again, as its protocol has it."""
        self._follows = False
        self._outstanding.cancel()
        return self.draft(now)

    @property
    def follows(self) -> bool:
        """Whether the cloud goes on alone now, until a draft of ours arrives."""
        return self._follows and isinstance(self._outstanding.request, AwaitedTokens)

    @property
    def rests(self) -> bool:
        """Whether nothing is to be drafted for now."""
        return self._follows and self._planner.rests

    def _follow(self, now: float) -> list[Action]:
        """Draft beside the cloud: hints, the draft that leads it from then on, or a sample."""
        plan = self._next_plan(now)
        if plan.shape is None:
            return self._sample_acceptance() or self.work()
        ready = self._speculator.draft_after(self._verified) if plan.leads else None
        return [*(self._lead(ready, now) if ready else []), *self.work()]

    def _beside(self, drafted: Drafted, here: bool, now: float) -> list[Action]:
        """What becomes of a draft that is finished while the cloud goes on alone."""
        if self._plan.leads:
            return self._lead(drafted.finished, now) if here else []
        if not self._follows or self._plan.shape is None:
            return []
        hint = self._in_flight.hint(drafted.branch.prefix, drafted.finished)
        return [] if hint is None else [Send(hint)]

    def _lead(self, draft: FinishedDraft, now: float) -> list[Action]:
        """From this draft on the cloud waits for the robot's."""
        self._outstanding.cancel()
        self._stopwatch.begin(now, ready=True)
        self._joining = UNDER_WAY
        return self._send(draft, now)

    def learn(self, verdict: Verdict, tokens: Prefix, now: float) -> None:
        """Measure times, and how much of the draft was right, before the verdict is settled."""
        verified, measures, request = self._verified, self._measures, self._outstanding.request
        draft = self._speculator.draft_after(verified)
        alone, seconds = isinstance(request, AwaitedTokens), verdict.verify_s + verdict.queue_s
        joining, self._joining = self._joining > 0, max(0, self._joining - 1)
        nodes, self._was_alone = verdict.drafted, verdict.alone
        if isinstance(request, AwaitedVerdict) and not verdict.alone:
            nodes = nodes or len(request.drawn)
        if (nodes or verified) and not joining:
            link = self._stopwatch.link_s(verdict, now) if self._stopwatch.waited else None
            if verified:
                measures.verified(nodes, seconds, link, not alone and self._asks_for_exits(request))
            elif link is not None:  # the prompt was read in the time of the first verdict
                measures.one_way.observe(link / 2)
            if link is not None and nodes:
                turn_s = self._stopwatch.sent - self._stopwatch.start + link
                measures.queued(turn_s, verdict, self.pass_s)
            if alone and verified and not (self._plan.leads and self._is_prefilled):
                hints = self._is_prefilled and self._follows and self._plan.shape is not None
                measures.went_alone(nodes, len(tokens), seconds, hints, verdict.draft_s)
        if draft is None:
            return
        predicted = self._speculator.was_predicted((*verified, *tokens))
        if predicted is not None and verdict.token is not None:
            measures.exits.observe(float(predicted))
        measures.judged(draft, tokens)

    def _asks_for_exits(self, request: Request | None) -> bool:
        asked = isinstance(request, AwaitedVerdict) and not request.message.without_exits
        return asked and self._preset.speculation.exits

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
        return AwaitedTokens(Generate(self._prefix.digest, alone_of(self._preset, until)))

    def _sample_acceptance(self) -> list[Action]:
        """Draft now and then while the cloud generates alone, to measure the acceptance."""
        verified = self._verified
        self._speculator.settle(verified)
        many = self._measures.acceptance.count >= MANY_SAMPLES
        if len(verified) % (SAMPLE_SELDOM if many else SAMPLE_EVERY):
            return []
        self._speculator.plan(chain(1), STOP_AND_WAIT)
        return self.work()


def alone_of(preset: Preset, until: int = 0) -> Alone:
    """How the cloud goes on alone under this preset, up to so many tokens of the answer."""
    return Alone(preset.drafter == "cloud", until, preset.pacing == "auto")
