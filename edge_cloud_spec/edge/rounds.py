"""The rounds of one decode after its prompt is ready: drafts sent, verdicts handled.

This is the core state machine of the robot's decode. ``Mode`` says who leads it; ``TRANSITIONS``
lists all changes of the mode. ``on_verdict`` shows the life of a verdict from top to bottom: it is
compared with the open request, measured and applied, and the next draft is sent or made.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum

from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft
from ..decoding.mean import MIN_PASS_S
from ..decoding.preset import STOP_AND_WAIT, Preset
from ..decoding.propose import FinishedDraft
from ..decoding.random_source import RandomSource
from ..decoding.shape import chain
from ..decoding.split import SparseResidual, fallback_error
from ..decoding.token_distribution import TokenDistribution
from ..decoding.transitions import Transitions, follow_table
from ..decoding.verified_answer import VerifiedAnswer
from ..wire.messages import (
    END,
    LENGTH,
    Close,
    Code,
    DraftMessage,
    Generate,
    Generation,
    Open,
    Prediction,
    Resume,
    RowMessage,
    Verdict,
)
from .answer import (
    PendingRequest,
    Prefix,
    Rejection,
    Resampler,
    log_probs_error,
    row_request,
    settled_by,
    verdict_error,
)
from .draft_planner import DraftPlan, DraftsNothing, PlannerSettings, planner_of
from .drafts import Drafts
from .events import Drafted, Effect, Emit, Finish, PromptReady
from .measures import DecodeStats, Measures, Round
from .reply_timeout import ReplyTimeout

MAX_EARLY = 64  # stored verdicts that arrived before an earlier one
MAX_DIVERGED = 3  # verdicts on another draft than the robot's, after which the decode ends
SAMPLE_EVERY = 4  # tokens of server generation between two drafts that measure the acceptance
SAMPLE_SELDOM = 32  # the same, once MANY_SAMPLES were taken
MANY_SAMPLES = 64
UNDER_WAY = 2  # verdicts of server generation that may still arrive after a draft was sent


class Mode(Enum):
    """Who leads a decode; the server (verifier) may generate by itself."""

    READING = "the draft model has not read the prompt, and the server does not generate"
    LISTENING = "the server generates, and no draft model has read the prompt"
    FOLLOWING = "the server generates, and the robot may draft beside it"
    JOINING = "a draft was sent to the server, whose verdicts are still on what it generated"
    LEADING = "the server waits for the robot's drafts"
    RESAMPLING = "the robot waits for all of P, to draw the recovered token itself"


class Trigger(Enum):
    """What changes the mode."""

    PROMPT_READ = "the draft model has read the prompt"
    PROMPT_REPLACED = "the draft model has another prompt to read"
    SERVER_GENERATES = "the server is to generate by itself"
    DRAFT_SENT = "a draft is sent whose verdict is awaited"
    DRAFT_VERIFIED = "a verdict came on the robot's draft"
    OTHER_VERIFIED = "a verdict came on what the server generated or drafted"
    ROW_REQUESTED = "all of P is asked for"
    ROW_RECEIVED = "all of P came"


# How modes and triggers work together
#
# An answer grows by verdicts alone, and each verdict names the prefix that it extends. So at any
# time one position is open, and one of two sides says what is tested there: the robot by a draft,
# or the server by generating. The mode is what is known of that; which draft is wanted, sent or
# awaited stands in `request` and `Drafts`, and a mode has no part in it. Links break and come
# back without a trigger: what was sent is sent again, and the same side goes on.
#
# Two questions make up a mode.
#
# Has the draft model read the prompt? READING and LISTENING say no, by who generates meanwhile.
# PROMPT_READ answers it once. PROMPT_REPLACED (the cloud makes another prompt than the robot did)
# asks it again from anywhere: drafts and the open request are of the old prompt, and go.
#
# Who leads? A robot that leads asks the server to generate by one message, and it does, from the
# prefix that the message names (SERVER_GENERATES). The way back takes two steps, since a server
# that generates does not wait: its verdicts are under way while the robot's draft goes up. So
# DRAFT_SENT leads from FOLLOWING to JOINING, where verdicts on what the server generated still
# count, and only DRAFT_VERIFIED, of the robot's own draft, says that the server now waits: LEADING.
# A verdict of the other kind that comes to a robot that leads says that it does not yet: JOINING
# again.
#
# RESAMPLING is the one mode in which no verdict is taken: the robot draws the open position's
# token itself, so it does not know its own prefix before all of P has come. What arrives is kept.
#
# A row has what can happen there. A trigger that it lacks is a peer's mistake, or ours: the
# decode ends with a sentence, whatever the rest of the state.
TRANSITIONS: Transitions[Mode, Trigger] = {
    Mode.READING: {
        Trigger.PROMPT_READ: Mode.LEADING,
        Trigger.PROMPT_REPLACED: Mode.READING,
        Trigger.SERVER_GENERATES: Mode.LISTENING,
    },
    Mode.LISTENING: {
        Trigger.PROMPT_READ: Mode.FOLLOWING,
        Trigger.PROMPT_REPLACED: Mode.READING,
        Trigger.SERVER_GENERATES: Mode.LISTENING,
        Trigger.DRAFT_VERIFIED: Mode.LISTENING,  # whoever drafted: the verdict carries its tokens
        Trigger.OTHER_VERIFIED: Mode.LISTENING,
    },
    Mode.FOLLOWING: {
        Trigger.PROMPT_REPLACED: Mode.READING,
        Trigger.SERVER_GENERATES: Mode.FOLLOWING,
        Trigger.DRAFT_SENT: Mode.JOINING,
        # On an earlier pushed draft, repeated after a lost link.
        Trigger.DRAFT_VERIFIED: Mode.FOLLOWING,
        Trigger.OTHER_VERIFIED: Mode.FOLLOWING,
    },
    Mode.JOINING: {
        Trigger.PROMPT_REPLACED: Mode.READING,
        Trigger.SERVER_GENERATES: Mode.FOLLOWING,
        Trigger.DRAFT_SENT: Mode.JOINING,
        Trigger.DRAFT_VERIFIED: Mode.LEADING,
        Trigger.OTHER_VERIFIED: Mode.JOINING,
        Trigger.ROW_REQUESTED: Mode.RESAMPLING,
    },
    Mode.LEADING: {
        Trigger.PROMPT_REPLACED: Mode.READING,
        Trigger.SERVER_GENERATES: Mode.FOLLOWING,
        Trigger.DRAFT_SENT: Mode.LEADING,
        Trigger.DRAFT_VERIFIED: Mode.LEADING,
        Trigger.OTHER_VERIFIED: Mode.JOINING,
        Trigger.ROW_REQUESTED: Mode.RESAMPLING,
    },
    Mode.RESAMPLING: {
        Trigger.PROMPT_REPLACED: Mode.READING,
        Trigger.ROW_RECEIVED: Mode.LEADING,
    },
}


class Rounds:
    """Keeps a draft in flight or lets the server generate; adds the tokens of verdicts to the
    answer.

    It owns ``mode`` and ``request``, the one open request to the cloud; ``VerifiedAnswer`` owns the
    verified tokens, ``Drafts`` the drafts. While no request is open the robot drafts, and no reply
    is due. Times in seconds.
    """

    def __init__(
        self,
        opening: Open,
        preset: Preset,
        random_source: RandomSource,
        measures: Measures,
        stats: DecodeStats,
        deadline: ReplyTimeout,
        planner: PlannerSettings,
    ) -> None:
        self.mode = Mode.READING
        self.request: PendingRequest | None = None
        self.answer = VerifiedAnswer(opening.max_tokens)
        self.session = ""  # the cloud's session name; empty before it is opened
        self._opening, self._preset = opening, preset
        self._measures, self._stats = measures, stats
        self._deadline = deadline
        self._drafts = Drafts(self.answer, opening.payload, preset, measures)
        self._resampler = Resampler(opening.split, random_source)
        self._early: dict[PrefixDigest, Verdict] = {}  # verdicts before their turn, by prefix
        self._round = Round()  # the current one
        self._planner = planner_of(preset, measures, planner)
        self._plan = DraftPlan(None, preset.speculation)  # the latest
        self._under_way = 0  # verdicts of server generation that may still arrive while joining
        self._heard_at = 0.0  # when the generating server began its pass, s
        self._pass_s = 0.0  # duration of the draft model's last pass
        self._free_at = 0.0  # when the server has finished others' work, s

    def _trigger(self, trigger: Trigger) -> None:
        """Change the mode by the table; raises OutOfTurn."""
        self.mode = follow_table(TRANSITIONS, self.mode, trigger)

    @property
    def server_generates(self) -> bool:
        """Whether the server generates by itself now."""
        return self.mode in (Mode.LISTENING, Mode.FOLLOWING)

    @property
    def width(self) -> int:
        """The most nodes in the draft model's next pass; 0 pauses it."""
        return 0 if self._planner.rests else self._drafts.speculation.width

    # Open request

    def _ask(self, request: PendingRequest, trigger: Trigger, now: float) -> None:
        """Make this the open request; its reply is due from ``now`` on."""
        assert self.request is None, "one request at a time"
        self.request = request
        self._trigger(trigger)
        self._deadline.owed(now)

    def _answered(self) -> None:
        self.request = None
        self._deadline.answered()

    def pending(self) -> list[Effect]:
        """The effects that send the open request again."""
        return [] if self.request is None else [self.request.message]

    @property
    def request_follows_open(self) -> bool:
        """Whether the open request is sent directly after an Open, as by a robot that drafts."""
        return self.request is not None and self._preset.drafts_on_robot

    # Start and end

    def start(self, now: float) -> None:
        """Start timing: the decode is requested."""
        self._round = self._round.begun(now, ready=True)
        self._measures.asked(now)

    def invalidate(self) -> None:
        """Drop all drafts, because the prompt is being replaced."""
        self._drafts.invalidate()
        self.request = None
        self._trigger(Trigger.PROMPT_REPLACED)
        self.answer.forget_prompt()

    def begin(self, base: PrefixDigest, prompt: PromptReady | None = None) -> None:
        """Start the answer: the prompt is ready on the robot or, if ``prompt`` is None, in the
        cloud."""
        limits = (prompt.end_tokens, prompt.max_tokens, prompt.vocabulary) if prompt else ()
        self.answer.begin(base, *limits)

    def on_prompt_read(self, now: float) -> list[Effect]:
        """The draft model has read the prompt: begin a round, or draft hints for a generating
        server."""
        is_due = self._preset.drafts_on_robot and self.answer.begun
        if not is_due or Trigger.PROMPT_READ not in TRANSITIONS[self.mode]:
            return []  # of a replaced prompt, or the prompt was read before
        self._trigger(Trigger.PROMPT_READ)
        return self._draft_beside(now) if self.server_generates else self._draft(now)

    def on_drafter_failed(self, text: str, now: float) -> list[Effect]:
        """The draft model failed: the server generates the rest or, without a cloud, the decode
        ends."""
        if not self._preset.verified:
            return self.close("drafter_failed", text)
        self._stats.failure = text
        self._planner = DraftsNothing(self._preset, self._measures)
        if self.request is not None or not self.answer.begun:
            return []  # a reply or the prompt is due, and the decode goes on by itself
        return self._draft(now)

    def follow(self, now: float) -> list[Effect]:
        """Await the verdicts of a server that generates because ``Open`` asked for it."""
        self.request = None
        self._await_generated(now)
        return self._take_early(now)

    def forget_pushed(self) -> None:
        """After a broken link: it is unknown which pushed drafts arrived."""
        self._drafts.forget_pushed()

    def hand_over(self) -> Prefix:
        """Prepare to continue at another verifier; returns the verified tokens for it."""
        self._drafts.forget_pushed()
        self._early.clear()
        self.answer.resampled = None  # the other verifier gets all tokens anyway
        if self.request is not None:
            self.request = self.request.handed_over(self.answer.digest)
        return self.answer.verified

    def resume(self) -> list[Effect]:
        """Resume the session from the verified prefix; no effects before both sides have begun."""
        if not (self.session and self.answer.begun):
            return []
        return [Resume(self.session, self.answer.shared)]

    def resend(self, now: float) -> list[Effect]:
        """Send again what the cloud may not have received."""
        if not self._preset.drafts_on_robot:
            self._round = replace(self._round, sent=now)
            if self.request is None:
                self._await_generated(now)
        return self.pending()

    def close(self, reason: str, text: str = "") -> list[Effect]:
        """End the decode on robot and cloud."""
        close = [Close(self.answer.resampled)] if self._preset.verified else []
        return [*close, Finish(reason, text)]

    # Verdicts

    def on_verdict(self, verdict: Verdict, now: float) -> list[Effect]:
        """Handle a verdict on the robot's draft, or on what the server generated."""
        answer, request = self.answer, self.request
        if not answer.is_at(verdict.base) or self.mode is Mode.RESAMPLING:
            if not self._keep_early(verdict):
                self._stats.stale += 1
            return []
        draft = self._awaited_draft
        drafted, tokens = settled_by(verdict, draft)
        if tokens is None and draft is None:
            return self._on_divergence(now)  # on an unknown draft
        drawn = None if request is None else request.drawn
        error = verdict_error(answer, verdict, tokens)
        rejection = None if error else self._resampler.rejection(verdict, drawn)
        error = error or self._resampler.error(verdict, rejection, answer.vocabulary)
        if tokens is None or error:
            return self.close(Code.BAD_VERDICT, f"{error}; the cloud's version may differ")
        if error := log_probs_error(self._opening, verdict, tokens):
            return self.close(Code.UNSUPPORTED, f"{error}; the cloud's version may differ")
        if answer.digest.extend(tokens).short != verdict.leads_to:
            return self._on_divergence(now)
        self._trigger(Trigger.OTHER_VERIFIED if verdict.generated else Trigger.DRAFT_VERIFIED)
        before = len(answer.tokens)
        self._stats.rounds.append(self._round.ended(verdict, before, drafted, len(tokens), now))
        self._measure(verdict, tokens, now)
        answer.extend(tokens)
        self._answered()
        emitted: list[Effect] = []
        if tokens:
            emitted = [Emit(before, tokens, verified=True, log_probs=verdict.log_probs)]
        return [*emitted, *self._follow_up(verdict, request, rejection, now)]

    def _follow_up(
        self,
        verdict: Verdict,
        request: PendingRequest | None,
        rejection: Rejection | None,
        now: float,
    ) -> list[Effect]:
        """After a verdict: the end, the recovered token, or the next round."""
        if verdict.finish:
            return self.close(verdict.finish)
        if rejection is not None:
            return self._resample(rejection, now)
        if self.answer.room <= 0:
            return self.close(LENGTH)
        generates = request is not None and isinstance(request.message, Generate)
        effects = self._let_generate(now) if generates else self._draft(now)
        return [*effects, *self._take_early(now)]

    @property
    def _awaited_draft(self) -> Draft | None:
        """The robot's draft that the cloud may verify at the verified prefix; None if there is
        none."""
        awaited = None if self.request is None else self.request.draft
        return self._drafts.pushed_at(self.answer.digest) if awaited is None else awaited

    def _take_early(self, now: float) -> list[Effect]:
        """Handle the verdict on the verified prefix, if it has arrived already."""
        early = self._early.pop(self.answer.digest, None)
        if early is None or settled_by(early, self._awaited_draft)[1] is None:
            return []
        return self.on_verdict(early, now)

    def _keep_early(self, verdict: Verdict) -> bool:
        """Store a verdict that arrived before an earlier one or before ``Opened``.

        False: it is none, there is one for its prefix already, or MAX_EARLY are stored.
        """
        base, passed = verdict.base, len(self.answer.tokens)
        if self.answer.begun and base.length <= passed:
            return False
        self._early = {here: kept for here, kept in self._early.items() if here.length >= passed}
        known = settled_by(verdict, self._drafts.pushed_at(base))[1] is not None
        if not known or base in self._early or len(self._early) >= MAX_EARLY:
            return False
        self._early[base] = verdict
        return True

    def _on_divergence(self, now: float) -> list[Effect]:
        """Drop a verdict that leads to another prefix, as it is on another draft; resume."""
        self._stats.diverged += 1
        if self._stats.diverged > MAX_DIVERGED:
            text = "the cloud's verdicts are not on what the robot drafted"
            return self.close("diverged", f"{text}; the cloud's version may differ")
        self._drafts.forget_pushed()
        self._deadline.owed(now)
        return self.resume()

    def _measure(self, verdict: Verdict, tokens: Prefix, now: float) -> None:
        """Measure times and acceptance before the verdict is applied."""
        verified, measures, request = self.answer.verified, self._measures, self.request
        draft, seconds = self._drafts.after(verified), verdict.verify_s + verdict.queue_s
        crossed, self._under_way = self._under_way > 0, max(0, self._under_way - 1)
        nodes, drawn = verdict.drafted, None if request is None else request.drawn
        if drawn is not None and not verdict.generated:
            nodes = nodes or len(drawn)
        if (nodes or verified) and not crossed:
            # Outside the target; includes a drafter in the cloud.
            link = max(0.0, now - self._round.sent - seconds) if self._round.waited else None
            if verified:
                measures.verified(nodes, seconds, link, self._asked_for_exits)
            elif link is not None:  # the first verdict's time includes the prompt
                measures.one_way.observe(link / 2)
            if link is not None and nodes:
                turn_s = self._round.sent - self._round.start + link
                measures.queued(turn_s, verdict, self._pass_s)
            beside = self.mode is Mode.FOLLOWING
            if self.server_generates and verified and not (beside and self._plan.leads):
                hints = beside and self._plan.shape is not None
                measures.generated(nodes, len(tokens), seconds, hints, verdict.draft_s)
        if draft is None:
            return
        if self._asked_for_exits and verdict.token is not None:
            measures.exits.observe(float((*verified, *tokens) in self._drafts.predicted))
        measures.accepted(draft, tokens)

    @property
    def _asked_for_exits(self) -> bool:
        """Whether the cloud's early exits should predict the awaited verdict."""
        message = None if self.request is None else self.request.message
        asked = isinstance(message, DraftMessage) and not message.without_exits
        return asked and self._preset.speculation.exits

    def on_prediction(self, message: Prediction) -> list[Effect]:
        """Handle an early exit's prediction of the verdict: a prefix to draft after."""
        draft = None if self.request is None else self.request.draft
        if not self.answer.is_at(message.base) or draft is None:
            self._stats.stale += 1
            return []
        path = draft.path_tokens(message.path)
        if path is None or not self._preset.speculation.exits:
            return []
        self._stats.predictions += 1
        predicted = (*self.answer.verified, *path, message.token)
        self._drafts.predicted[predicted] = message.confidence
        return self._drafts.work()

    # Split resampling

    def _resample(
        self, rejection: Rejection, now: float, dense: TokenDistribution | None = None
    ) -> list[Effect]:
        """Draw the recovered token and continue; or request the dense P if that is needed."""
        answer, position = self.answer, len(self.answer.tokens)
        token = self._resampler.draw(rejection, position, dense)
        if token is None:
            self._stats.fallbacks += 1
            self._ask(row_request(rejection), Trigger.ROW_REQUESTED, now)
            return [*self.pending(), *self._drafts.pause()]
        answer.resample(token)
        emit = Emit(position, (token,), verified=True)
        if token in answer.end_tokens:
            return [emit, *self.close(END)]
        if answer.room <= 0:
            return [emit, *self.close(LENGTH)]
        return [emit, *self._draft(now)]

    def on_row(self, message: RowMessage, now: float) -> list[Effect]:
        """Handle the dense P that a resampling asked for."""
        rejection = None if self.request is None else self.request.rejection
        if rejection is None or message.base != rejection.base:
            self._stats.stale += 1
            return []
        assert isinstance(rejection.residual, SparseResidual)
        vocabulary = self.answer.vocabulary
        error = fallback_error(message.row, rejection.residual, rejection.row, vocabulary)
        if error:
            return self.close(Code.BAD_ROW, f"{error}; the cloud's version may differ")
        self._answered()
        self._trigger(Trigger.ROW_RECEIVED)
        return self._resample(rejection, now, message.row)

    # The robot leads

    def _next_plan(self, now: float) -> DraftPlan:
        self._drafts.drop_unverified()
        generated = self.mode is not Mode.LEADING
        self._plan = self._planner.plan(now, len(self.answer.tokens), generated)
        self._drafts.want(self._plan.shape, self._plan.speculation)
        return self._plan

    def _draft(self, now: float) -> list[Effect]:
        """Send the draft after the verified tokens, if finished; then draft by the plan."""
        plan, verified = self._next_plan(now), self.answer.verified
        self._free_at = now - self._measures.one_way.value + self._measures.busy.value
        if self._is_late(now):
            self._drafts.finish_early(verified, plan.speculation.cut)
        ready = self._drafts.after(verified)
        self._round = self._round.begun(now, ready is not None)
        if plan.leads or (ready and self._drafts.pushed_at(self.answer.digest)):
            return [*(self._send(ready, now) if ready else []), *self._drafts.work()]
        work = self._drafts.work()
        self._await_generated(now)
        return [*work, *self.pending()]

    def _send(self, draft: FinishedDraft, now: float) -> list[Effect]:
        self._round = replace(self._round, sent=now)
        reply_timeout_s, exits = self._deadline.left(now), self._plan.speculation.exits
        request, is_new = self._drafts.make_request(draft, now, reply_timeout_s, exits)
        self._ask(request, Trigger.DRAFT_SENT, now)
        return self.pending() if is_new else []

    def on_drafted(self, drafted: Drafted, now: float) -> list[Effect]:
        """Handle a pass of the draft model over a branch, which may have finished it."""
        drafts, prefix, draft = self._drafts, drafted.branch.prefix, drafted.finished
        if not drafts.wants(drafted.branch) or not self.answer.begun:
            return []
        here = prefix == self.answer.verified
        if here:
            self._round = replace(self._round, draft_s=self._round.draft_s + drafted.seconds)
        if drafted.seconds:
            self._pass_s = drafted.seconds
            self._measures.drafted(drafted.nodes, drafted.seconds)
        if not self._preset.verified:
            return self._emit_unverified(drafted.tokens, now, done=drafted.done)
        if not drafted.done and not self._sends_early(prefix, draft, now):
            drafts.keep(drafted.branch, draft)
            return []
        if not drafts.add(drafted.branch, draft):
            return drafts.work()
        if self.server_generates:
            sent = self._send_beside(prefix, draft, here, now)
        elif self.request is None and here:
            sent = self._send(draft, now)
        else:
            sent = drafts.push(prefix, draft, now, self._plan.speculation.exits)
        return [*sent, *drafts.work()]

    def _emit_unverified(self, tokens: Prefix, now: float, done: bool) -> list[Effect]:
        emit = Emit(len(self.answer.tokens), tokens, verified=False)
        self.answer.extend(tokens)
        ended = self.answer.tokens[-1] in self.answer.end_tokens
        if ended or self.answer.room <= 0:
            return [emit, Finish(END if ended else LENGTH)]
        return [emit, *(self._draft(now) if done else [])]

    def _sends_early(self, prefix: Prefix, part: FinishedDraft, now: float) -> bool:
        """Whether to send this unfinished draft, because the cloud would wait for the rest."""
        here = len(prefix) == len(self.answer.tokens)
        if self._plan.leads and self.server_generates:
            return here  # the server goes on meanwhile
        levels = self._drafts.speculation.cut
        if not levels or part.draft.depth < levels:
            return False
        awaited = self.request is not None and self.request.draft is not None
        if here and not self.server_generates:
            return not awaited and self._is_late(now)
        ready = now + self._pass_s + self._measures.one_way.value
        near = prefix in self._drafts.near
        if self.server_generates:
            return (here or near) and ready > self._next_pass(now)
        return near and ready > self._verdict_due

    @property
    def _verdict_due(self) -> float:
        """When the cloud's pass over the awaited draft should end, s; 0 if there is none."""
        request, exits = self.request, self._plan.speculation.exits
        if request is None or request.drawn is None:
            return 0.0
        return request.starts + self._measures.verify_s(len(request.drawn), exits)

    def _next_pass(self, now: float) -> float:
        """When the generating server begins the first pass that a hint sent now can reach, s."""
        pass_s = max(self._measures.server_pass.value, MIN_PASS_S)
        late = now + self._measures.one_way.value - self._heard_at
        return self._heard_at + pass_s * math.ceil(late / pass_s)

    def _is_late(self, now: float) -> bool:
        """Whether the cloud would wait for another level of the draft it needs next."""
        return now + self._pass_s + self._measures.one_way.value > self._free_at

    # The server generates

    def _await_generated(self, now: float) -> None:
        self._round = replace(self._round, sent=now)
        here, resampled = self.answer.digest, self.answer.resampled
        if resampled is None:
            request = Generate(here, server_generation(self._preset))
            self._ask(PendingRequest(request), Trigger.SERVER_GENERATES, now)
        else:  # only a draft carries the resampled token to the cloud, so send any
            message = DraftMessage(here, Draft((resampled,), looked_up=1), 0, resampled)
            self._ask(PendingRequest(message, message.draft, now), Trigger.DRAFT_SENT, now)

    def _let_generate(self, now: float) -> list[Effect]:
        """After a verdict on server generation: await the next, or draft as planned."""
        self._round = self._round.begun(now, ready=True)
        self._heard_at = now - self._measures.one_way.value
        self._await_generated(now)
        drafts = self.mode is Mode.FOLLOWING or self._planner.rests
        return self._draft_beside(now) if drafts else []

    def _draft_beside(self, now: float) -> list[Effect]:
        """While the server generates: draft hints, the draft that takes the lead, or a sample."""
        plan = self._next_plan(now)
        if plan.shape is None:
            return self._sample_acceptance() or self._drafts.work()
        ready = self._drafts.after(self.answer.verified) if plan.leads else None
        return [*(self._join(ready, now) if ready else []), *self._drafts.work()]

    def _send_beside(
        self, prefix: Prefix, draft: FinishedDraft, here: bool, now: float
    ) -> list[Effect]:
        """Take the lead with a draft finished while the server generates, send it as a hint, or
        drop it."""
        if self._plan.leads:
            return self._join(draft, now) if here else []
        if self._plan.shape is None:
            return []
        return self._drafts.hint(prefix, draft)

    def _join(self, draft: FinishedDraft, now: float) -> list[Effect]:
        """Send the draft after which the server waits for the robot's drafts."""
        self.request = None
        self._round = self._round.begun(now, ready=True)
        self._under_way = UNDER_WAY
        return self._send(draft, now)

    def _sample_acceptance(self) -> list[Effect]:
        """While the server generates, draft occasionally to measure the acceptance."""
        many = self._measures.acceptance.count >= MANY_SAMPLES
        if len(self.answer.tokens) % (SAMPLE_SELDOM if many else SAMPLE_EVERY):
            return []
        self._drafts.want(chain(1), STOP_AND_WAIT)
        return self._drafts.work()


def server_generation(preset: Preset) -> Generation:
    """How the server generates under this preset."""
    return Generation(preset.drafter == "cloud", may_speculate=preset.pacing == "auto")
