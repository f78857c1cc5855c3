"""The rounds of one decode, once its prompt stands: drafts go, verdicts come, the answer grows."""

from __future__ import annotations

from collections.abc import Callable

from ..decoding.digest import PrefixDigest
from ..decoding.growth import FinishedDraft
from ..decoding.preset import Preset
from ..decoding.random_source import RandomSource
from ..decoding.shape import chain
from ..decoding.speculation import STOP_AND_WAIT
from ..decoding.token_distribution import TokenDistribution
from ..wire.messages import Close, Open, Prediction, RowMessage, RowRequest, Verdict
from .draft_planner import DraftPlanner, planner_of
from .events import Action, Drafted, Emit, Finish, PromptReady, Send
from .in_flight import InFlightDrafts
from .measures import Measures
from .reorder_buffer import ReorderBuffer
from .reply_deadline import ReplyDeadline
from .resampling import Rejection, Resampling, dense_row_error
from .rounds import DecodeStats, Stopwatch
from .speculator import Prefix, Speculator
from .verified_prefix import VerifiedPrefix

LOOK_EVERY = 4  # tokens
MAX_DIVERGED = 3  # verdicts of a decode on something else than what the robot sent


class Exchange:
    """Keeps a draft on its way or lets the cloud go on alone; settles what verdicts say."""

    def __init__(
        self,
        opening: Open,
        preset: Preset,
        random_source: RandomSource,
        measures: Measures,
        ledger: DecodeStats,
        patience: ReplyDeadline,
        resume: Callable[[], list[Action]],
    ) -> None:
        """resume: tells the cloud where the robot stands, and asks for what follows."""
        self.answer = VerifiedPrefix(opening.max_tokens)
        self._preset = preset
        self._measures = measures
        self._ledger = ledger
        self._patience = patience
        self._resume = resume
        self._speculator = Speculator(preset.speculation)
        self._pacing: DraftPlanner = planner_of(preset, measures)
        self._outbox = InFlightDrafts(self.answer, opening.payload, preset, measures)
        self._resampling = Resampling(opening.split, random_source)
        self._early = ReorderBuffer()
        self._watch = Stopwatch()
        self._pass_s = 0.0  # of the draft model, last

    @property
    def width(self) -> int:
        """How many nodes a pass of the draft model is to work on."""
        return self._speculator.speculation.width

    @property
    def asked(self) -> bool:
        """Whether the cloud was asked for something that it has not said yet."""
        return self._outbox.asked or self._resampling.unresolved is not None

    @property
    def _verified(self) -> Prefix:
        return tuple(self.answer.tokens)

    def start(self, now: float) -> None:
        """The decode is asked for."""
        self._watch.start = now

    def void(self) -> None:
        """The prompt is made anew; what was drafted under another is void."""
        self._speculator.void()
        self._outbox.void()
        self.answer.void()

    def begin(self, base: PrefixDigest, prompt: PromptReady | None = None) -> None:
        """The prompt stands: on the robot, or where only the cloud drafts, there."""
        self.answer.begin(base, prompt)
        if prompt is not None:
            self._speculator.begin(prompt.end_tokens)

    def forget_pushed(self) -> None:
        """The link broke, or is a new one; who knows which pushed drafts arrived."""
        self._outbox.forget_pushed()

    def again(self, now: float) -> list[Action]:
        """Say again what the cloud may not have heard."""
        if not self._preset.drafts_on_robot:
            self._patience.owed(now)
            self._watch.sent = now
        return self.pending()

    def pending(self) -> list[Action]:
        """What the cloud is asked for now."""
        if self._resampling.unresolved is not None:
            return [Send(RowRequest(self._resampling.unresolved.base))]
        return self._outbox.pending()

    def close(self, reason: str, text: str = "") -> list[Action]:
        """End the decode, here and in the cloud."""
        goodbye = [Send(Close(self.answer.resampled))] if self._preset.uses_cloud else []
        return [*goodbye, Finish(reason, text)]

    def draft(self, now: float) -> list[Action]:
        """Send the draft after the verified tokens, if it is made already; draft what is wanted."""
        self._watch.draft_s = 0.0
        self._watch.start = now
        verified = self._verified
        self._speculator.settle(verified)
        plan = self._pacing.plan(now, len(verified))
        self._speculator.shape, self._speculator.speculation = plan.shape, plan.speculation
        whole = self._speculator.draft_after(verified, plan.speculation.cut)
        if plan.shape is None and whole is None:
            return [*self._work(), *self._leave_alone(plan.alone, now)]
        self._watch.waited = whole is None
        return [*(self._send(whole, now) if whole else []), *self._work()]

    def _work(self) -> list[Action]:
        return [*self._speculator.work(self._verified, self.answer.room)]

    def _send(self, whole: FinishedDraft, now: float) -> list[Action]:
        self._watch.sent = now
        self._patience.owed(now)
        return self._outbox.send(whole, now)

    def on_drafted(self, drafted: Drafted, now: float) -> list[Action]:
        """The draft model made a step, or a whole branch."""
        if not self._speculator.wants(drafted.branch) or self.answer.digest is None:
            return []
        prefix, whole = drafted.branch.prefix, drafted.whole
        here = prefix == self._verified
        if here:
            self._watch.draft_s += drafted.seconds
        if drafted.seconds:
            self._pass_s = drafted.seconds
            self._measures.drafted(drafted.nodes, drafted.seconds)
        if not self._preset.verified:
            return self._emit_unverified(drafted.tokens, now, whole=drafted.done)
        if not drafted.done and not self._cuts(prefix, whole, now):
            self._speculator.keep(drafted.branch, whole)
            return []
        sent: list[Action] = []
        if self._speculator.drafted(drafted.branch, whole):
            if self._outbox.alone_until:
                return self._work()
            if here and self._outbox.sent is None:
                sent = self._send(whole, now)
            else:
                sent = self._outbox.push(prefix, whole, now)
        return [*sent, *self._work()]

    def _cuts(self, prefix: Prefix, part: FinishedDraft, now: float) -> bool:
        """Whether to send this part of a draft, since the cloud would wait for more of it."""
        least = self._speculator.speculation.cut
        if not least or part.draft.depth < least:
            return False
        if len(prefix) == len(self.answer.tokens):
            return self._outbox.sent is None
        ready = now + self._pass_s + self._measures.one_way.value
        return self._speculator.is_near(prefix) and ready > self._outbox.due

    def _emit_unverified(self, tokens: tuple[int, ...], now: float, whole: bool) -> list[Action]:
        emit = Emit(len(self.answer.tokens), tokens, verified=False)
        self.answer.tokens += tokens
        ended = self.answer.ends_with(self.answer.tokens[-1])
        if ended or self.answer.room <= 0:
            return [emit, Finish("end" if ended else "length")]
        return [emit, *(self.draft(now) if whole else [])]

    def _leave_alone(self, passes: int, now: float) -> list[Action]:
        """Let the cloud go on without drafts for so many passes."""
        self._outbox.alone_until = len(self.answer.tokens) + passes
        self._watch.sent = now
        self._watch.waited = True
        self._patience.owed(now)
        return self.pending()

    def _go_on_alone(self, now: float) -> list[Action]:
        """After a verdict on no draft: wait for the next, or go on as the pacing says."""
        self._watch.start = self._watch.sent = now
        self._watch.waited = False
        if self._outbox.alone_until and len(self.answer.tokens) >= self._outbox.alone_until:
            self._outbox.alone_until = 0
            return self.draft(now)
        self._patience.owed(now)
        return self._look_on() if self._outbox.alone_until else []

    def _look_on(self) -> list[Action]:
        """Draft now and then while the cloud goes on alone, to learn whether it should."""
        verified = self._verified
        self._speculator.settle(verified)
        if len(verified) % LOOK_EVERY:
            return []
        self._speculator.shape, self._speculator.speculation = chain(1), STOP_AND_WAIT
        return self._work()

    def on_verdict(self, verdict: Verdict, now: float) -> list[Action]:
        """The cloud decided on the draft, or on what it did alone."""
        answer = self.answer
        if verdict.base != answer.digest or self._resampling.unresolved is not None:
            if not self._is_early(verdict):
                self._ledger.stale += 1
            return []
        drafted, tokens = self._outbox.settled(verdict)
        error = self._error(verdict, tokens)
        if tokens is None or error:
            return self.close("bad_verdict", f"{error}; the cloud's version may differ")
        if answer.after(tokens).short != verdict.leads_to:
            return self._go_back(now)
        before = len(answer.tokens)
        self._ledger.rounds.append(self._watch.round(verdict, before, drafted, len(tokens), now))
        self._learn(verdict, tokens, now)
        rejection = self._resampling.rejection(verdict, self._outbox.drawn)
        answer.settle(tokens)
        self._outbox.answered()
        self._patience.answered()
        actions: list[Action] = [Emit(before, tokens, verified=True)] if tokens else []
        if verdict.finish:
            return [*actions, *self.close(verdict.finish)]
        if rejection is not None:
            return [*actions, *self._resample(rejection, now)]
        if self._preset.drafts_on_robot and answer.room <= 0:
            return [*actions, *self.close("length")]
        actions += self._go_on_alone(now) if self._outbox.alone else self.draft(now)
        early = self._early.take(answer.digest)
        if early is None or not (self._outbox.alone or self._outbox.sent):
            return actions
        return [*actions, *self.on_verdict(early, now)]

    def _is_early(self, verdict: Verdict) -> bool:
        """Keep a verdict that overtook the one before it: the cloud went straight on."""
        base, here = verdict.base, self.answer.digest
        if here is None or base.length <= here.length:
            return False
        return self._outbox.expects(base) and self._early.keep(verdict, here)

    def _error(self, verdict: Verdict, tokens: tuple[int, ...] | None) -> str:
        """Why this verdict, which settles these tokens, cannot be one on our draft; else empty."""
        if tokens is None:
            return "the cloud accepted tokens that were not drafted"
        if not (tokens or verdict.finish or verdict.residual):
            return "the cloud's verdict settles nothing"
        return self.answer.error(tokens) or self._resampling.error(
            verdict, self._outbox.drawn, self.answer.vocabulary
        )

    def _go_back(self, now: float) -> list[Action]:
        """Take nothing from a verdict that leads elsewhere: it is on another draft than ours."""
        self._ledger.diverged += 1
        if self._ledger.diverged > MAX_DIVERGED:
            text = "the cloud's verdicts are not on what the robot drafted"
            return self.close("diverged", f"{text}; the cloud's version may differ")
        self._outbox.forget_pushed()
        self._patience.owed(now)
        return self._resume()

    def _learn(self, verdict: Verdict, came: Prefix, now: float) -> None:
        """Measure times, and how the draft did, before the verdict is settled."""
        verified, measures = self._verified, self._measures
        whole = self._speculator.draft_after(verified)
        nodes = 0 if self._outbox.alone or whole is None else len(whole.draft)
        if nodes or verified:  # the first token alone costs no pass: the prefill gave its row
            link = self._watch.link_s(verdict, now) if self._watch.waited else None
            measures.verified(nodes, verdict.verify_s, link)
        if whole is None:
            return
        predicted = self._speculator.was_predicted((*verified, *came))
        if predicted is not None and verdict.token is not None:
            measures.exits.observe(float(predicted))
        measures.judged(whole, came)

    def _resample(
        self, rejection: Rejection, now: float, dense: TokenDistribution | None = None
    ) -> list[Action]:
        """Draw the recovered token, and go on; or ask for all of P where the short form ends."""
        answer, position = self.answer, len(self.answer.tokens)
        token = self._resampling.draw(rejection, position, dense)
        if token is None:
            self._ledger.fallbacks += 1
            self._patience.owed(now)
            return [Send(RowRequest(rejection.base)), *self._speculator.rest(self._verified)]
        self._patience.answered()
        answer.resample(token)
        emit = Emit(position, (token,), verified=True)
        if answer.ends_with(token):
            return [emit, *self.close("end")]
        if answer.room <= 0:
            return [emit, *self.close("length")]
        return [emit, *self.draft(now)]

    def on_row(self, message: RowMessage, now: float) -> list[Action]:
        """All of P came, where the short form ended."""
        waiting = self._resampling.unresolved
        if waiting is None or message.base != waiting.base:
            self._ledger.stale += 1
            return []
        error = dense_row_error(waiting, message.row, self.answer.vocabulary)
        if error:
            return self.close("bad_row", f"{error}; the cloud's version may differ")
        return self._resample(waiting, now, message.row)

    def on_prediction(self, message: Prediction) -> list[Action]:
        """An exit's guess at the verdict: something to draft after, and nothing else."""
        sent = self._outbox.sent
        if message.base != self.answer.digest or sent is None:
            self._ledger.stale += 1
            return []
        path = sent.draft.path_tokens(message.path)
        if path is None or not self._preset.speculation.exits:
            return []
        self._ledger.predictions += 1
        guess = (*self.answer.tokens, *path, message.token)
        self._speculator.predict(guess, message.confidence)
        return self._work()
