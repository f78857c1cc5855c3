"""The rounds of one decode once its prompt is ready: drafts are sent, verdicts settle tokens."""

from __future__ import annotations

from collections.abc import Callable

from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft
from ..decoding.preset import Preset
from ..decoding.random_source import RandomSource
from ..decoding.token_distribution import TokenDistribution
from ..wire.messages import Close, Open, Prediction, RowMessage, Verdict
from .drafting import Drafting
from .events import Action, Drafted, Emit, Finish, PromptReady, Send
from .in_flight import InFlightDrafts
from .measures import Measures
from .outstanding import AwaitedRow, AwaitedTokens, AwaitedVerdict, Outstanding, settled_by
from .reorder_buffer import ReorderBuffer
from .reply_deadline import ReplyDeadline
from .resampling import Rejection, Resampling, dense_row_error
from .rounds import DecodeStats, Stopwatch
from .speculator import Prefix, Speculator
from .verified_prefix import VerifiedPrefix

MAX_DIVERGED = 3  # verdicts of a decode that are on another draft than the robot's


class Exchange:
    """Keeps a draft in flight or lets the cloud generate alone; settles the tokens of verdicts.

    ``on_verdict`` is a verdict's way through the robot: it is compared with the open request,
    measured, settled, and followed by the next draft. State is owned by ``VerifiedPrefix`` (the
    answer), ``Outstanding`` (the request to the cloud), ``Speculator`` (drafts and predictions) and
    ``InFlightDrafts`` (pushed drafts); ``Drafting`` works on the last two. Times in seconds.
    """

    def __init__(
        self,
        opening: Open,
        preset: Preset,
        random_source: RandomSource,
        measures: Measures,
        stats: DecodeStats,
        deadline: ReplyDeadline,
        resume: Callable[[], list[Action]],
    ) -> None:
        """resume: makes the message that carries the robot's verified prefix to the cloud."""
        self.prefix = VerifiedPrefix(opening.max_tokens)
        self._preset = preset
        self._measures = measures
        self._stats = stats
        self._resume = resume
        self._outstanding = Outstanding(deadline)
        self._speculator = Speculator(preset.speculation)
        self._in_flight = InFlightDrafts(self.prefix, opening.payload, preset, measures)
        self._stopwatch = Stopwatch()
        self._drafting = Drafting(
            preset,
            self.prefix,
            self._outstanding,
            self._speculator,
            self._in_flight,
            self._stopwatch,
            measures,
        )
        self._resampling = Resampling(opening.split, random_source)
        self._early_verdicts = ReorderBuffer()

    @property
    def width(self) -> int:
        """How many nodes a pass of the draft model is to work on; 0: it may as well rest."""
        return 0 if self._drafting.rests else self._speculator.speculation.width

    @property
    def awaits_reply(self) -> bool:
        """Whether the robot has sent a request, and has no reply yet."""
        return self._outstanding.request is not None

    @property
    def asked(self) -> bool:
        """The same of a robot that drafts."""
        return self.awaits_reply and self._preset.drafts_on_robot

    @property
    def _verified(self) -> Prefix:
        return tuple(self.prefix.tokens)

    # Beginning and end

    def start(self, now: float) -> None:
        """The decode is requested."""
        self._stopwatch.begin(now, ready=True)
        self._measures.asked(now)

    def invalidate(self) -> None:
        """The prompt is made anew: what was drafted under another is dropped."""
        self._speculator.forget_work()
        self._in_flight.forget_pushed()
        self._outstanding.cancel()
        self.prefix.invalidate()

    def begin(self, base: PrefixDigest, prompt: PromptReady | None = None) -> None:
        """The prompt is ready: on the robot, or in the cloud where the robot does not draft."""
        self.prefix.begin(base, prompt)
        if prompt is not None:
            self._speculator.begin(prompt.end_tokens)

    def forget_pushed(self) -> None:
        """The link broke or is a new one: which pushed drafts arrived is unknown."""
        self._in_flight.forget_pushed()

    def hand_over(self) -> tuple[int, ...]:
        """The verified tokens, for another verifier to go on after; it knows of no draft."""
        self._in_flight.forget_pushed()
        self._early_verdicts = ReorderBuffer()
        self.prefix.hand_over()
        self._outstanding.hand_over(self.prefix.digest)
        return self._verified

    def resend(self, now: float) -> list[Action]:
        """Send again what the cloud may not have received."""
        if not self._preset.drafts_on_robot:
            return self._drafting.generate(now)
        return self.pending()

    def follow_alone(self, now: float) -> list[Action]:
        """The cloud goes on alone, as ``Open`` asked: its verdicts are awaited."""
        self._drafting.follow(now)
        return self._take_early(now)

    def ask_alone(self, now: float) -> list[Action]:
        """The cloud does not go on alone unless it is asked to."""
        return self._drafting.ask_alone(now)

    @property
    def follows(self) -> bool:
        """Whether a cloud that goes on alone is followed by a robot that may draft."""
        return self._drafting.follows

    def pending(self) -> list[Action]:
        """The open request, to be sent again."""
        return self._outstanding.pending()

    def draft(self, now: float) -> list[Action]:
        """The draft model has read the prompt: begin the first round, or join the cloud."""
        return self._drafting.begin(now)

    def on_drafted(self, drafted: Drafted, now: float) -> list[Action]:
        """The draft model made a step, or a whole branch."""
        return self._drafting.on_drafted(drafted, now)

    def close(self, reason: str, text: str = "") -> list[Action]:
        """End the decode, here and in the cloud."""
        close = [Send(Close(self.prefix.resampled))] if self._preset.uses_cloud else []
        return [*close, Finish(reason, text)]

    # Verdicts

    @property
    def _judged(self) -> Draft | None:
        """The draft of ours that the cloud may judge at the verified prefix; None: it has none."""
        request = self._outstanding.request
        if isinstance(request, AwaitedVerdict):
            return request.message.draft
        return self._in_flight.draft_at(self.prefix.digest)

    def on_verdict(self, verdict: Verdict, now: float) -> list[Action]:
        """The cloud decided on the draft, or on what it did alone."""
        prefix, request = self.prefix, self._outstanding.request
        if verdict.base != prefix.digest or isinstance(request, AwaitedRow):
            if not self._keep_early(verdict):
                self._stats.stale += 1
            return []
        judged = self._judged
        drafted, tokens = settled_by(verdict, judged)
        if tokens is None and judged is None:
            return self._on_divergence(now)  # on a draft that we do not remember
        drawn = request.drawn if isinstance(request, AwaitedVerdict) else None
        error = verdict_error(verdict, tokens, prefix)
        error = error or self._resampling.error(verdict, drawn, prefix.vocabulary)
        if tokens is None or error:
            return self.close("bad_verdict", f"{error}; the cloud's version may differ")
        if prefix.after(tokens).short != verdict.leads_to:
            return self._on_divergence(now)
        before = len(prefix.tokens)
        self._stats.rounds.append(self._stopwatch.round(verdict, before, drafted, len(tokens), now))
        self._drafting.learn(verdict, tokens, now)
        rejection = self._resampling.rejection(verdict, drawn)
        prefix.settle(tokens)
        self._outstanding.answered()
        emitted: list[Action] = [Emit(before, tokens, verified=True)] if tokens else []
        return [*emitted, *self._follow_up(verdict, request, rejection, now)]

    def _follow_up(
        self,
        verdict: Verdict,
        request: AwaitedVerdict | AwaitedTokens | None,
        rejection: Rejection | None,
        now: float,
    ) -> list[Action]:
        """What follows a settled verdict: the end, the recovered token, or the next round."""
        if verdict.finish:
            return self.close(verdict.finish)
        if rejection is not None:
            return self._resample(rejection, now)
        if self._preset.drafts_on_robot and self.prefix.room <= 0:
            return self.close("length")
        if isinstance(request, AwaitedTokens):
            actions = self._drafting.continue_alone(request.message.alone.until, now)
        else:
            actions = self._drafting.draft(now)
        return [*actions, *self._take_early(now)]

    def _take_early(self, now: float) -> list[Action]:
        """Go on with the verdict on the verified prefix, if it is here already."""
        assert self.prefix.digest is not None
        early = self._early_verdicts.take(self.prefix.digest)
        if early is None or settled_by(early, self._judged)[1] is None:
            return []
        return self.on_verdict(early, now)

    def _keep_early(self, verdict: Verdict) -> bool:
        """Keep a verdict that overtook the one before it, or ``Opened``; False: it is none."""
        base, here = verdict.base, self.prefix.digest
        if here is not None and base.length <= here.length:
            return False
        known = settled_by(verdict, self._in_flight.draft_at(base))[1] is not None
        return known and self._early_verdicts.keep(verdict, here)

    def _on_divergence(self, now: float) -> list[Action]:
        """Drop a verdict that leads to another prefix, since it is on another draft; resume."""
        self._stats.diverged += 1
        if self._stats.diverged > MAX_DIVERGED:
            text = "the cloud's verdicts are not on what the robot drafted"
            return self.close("diverged", f"{text}; the cloud's version may differ")
        self._in_flight.forget_pushed()
        self._outstanding.ask_again(now)
        return self._resume()

    # Split resampling

    def _resample(
        self, rejection: Rejection, now: float, dense: TokenDistribution | None = None
    ) -> list[Action]:
        """Draw the recovered token and continue; or request the dense row P if that is needed."""
        prefix, position = self.prefix, len(self.prefix.tokens)
        token = self._resampling.draw(rejection, position, dense)
        if token is None:
            self._stats.fallbacks += 1
            self._outstanding.ask(AwaitedRow(rejection), now)
            return [*self.pending(), *self._speculator.pause(self._verified)]
        prefix.resample(token)
        emit = Emit(position, (token,), verified=True)
        if prefix.ends_with(token):
            return [emit, *self.close("end")]
        if prefix.room <= 0:
            return [emit, *self.close("length")]
        return [emit, *self._drafting.draft(now)]

    def on_row(self, message: RowMessage, now: float) -> list[Action]:
        """The dense row P arrived that a resampling needs."""
        request = self._outstanding.request
        if not isinstance(request, AwaitedRow) or message.base != request.rejection.base:
            self._stats.stale += 1
            return []
        error = dense_row_error(request.rejection, message.row, self.prefix.vocabulary)
        if error:
            return self.close("bad_row", f"{error}; the cloud's version may differ")
        self._outstanding.answered()
        return self._resample(request.rejection, now, message.row)

    # Predictions

    def on_prediction(self, message: Prediction) -> list[Action]:
        """An exit's prediction of the verdict: a prefix to draft after, and nothing else."""
        request = self._outstanding.request
        if message.base != self.prefix.digest or not isinstance(request, AwaitedVerdict):
            self._stats.stale += 1
            return []
        path = request.message.draft.path_tokens(message.path)
        if path is None or not self._preset.speculation.exits:
            return []
        self._stats.predictions += 1
        predicted = (*self._verified, *path, message.token)
        self._speculator.predict(predicted, message.confidence)
        return self._drafting.work()


def verdict_error(verdict: Verdict, tokens: tuple[int, ...] | None, prefix: VerifiedPrefix) -> str:
    """Why this verdict, which settles these tokens, cannot be one on the draft; else empty."""
    if tokens is None:
        return "the cloud accepted tokens that were not drafted"
    if not (tokens or verdict.finish or verdict.residual):
        return "the cloud's verdict settles nothing"
    return prefix.error(tokens)
