"""The robot's decoder: a state machine without I/O, ``(event, now) -> effects``.

It owns one decode; threads, models, links and clocks are outside it. This module opens a decode,
resumes it, moves it to another verifier and ends it; ``rounds`` handles drafts and verdicts.
"""

from __future__ import annotations

from dataclasses import replace

from ..decoding.digest import PrefixDigest
from ..decoding.preset import Preset
from ..decoding.random_source import RandomSource, SeededRandomSource
from ..decoding.transitions import OutOfTurn
from ..request import Request
from ..wire.messages import (
    ABORTED,
    CUT,
    PROTOCOL,
    TIMEOUT,
    Code,
    Fault,
    Open,
    Opened,
    Prediction,
    RowMessage,
    ServerMessage,
    Verdict,
    base_digest,
    spec_digest,
    versions_differ,
)
from .decode_options import DecodeOptions
from .draft_planner import DEFAULTS, PlannerSettings
from .events import (
    ANSWERED,
    Abort,
    Cut,
    Drafted,
    DrafterFailed,
    Effect,
    Event,
    Finish,
    LinkLost,
    LinkUp,
    Prefilled,
    Prepare,
    PromptReady,
    TimePassed,
    Unusable,
)
from .measures import DecodeStats, Measures
from .reply_timeout import ReplyTimeout
from .rounds import Mode, Rounds

MAX_LOST = 16  # lost sessions without a new token between, after which the decode ends


class EdgeDecoder:
    """One decode: opens it, keeps a draft in flight, and emits the tokens of verdicts.

    ``reply_timeout`` is how long, in seconds, the cloud may take to reply before the decode ends
    with a timeout; the time of a lost link counts. ``deadline`` is when that happens; None while no
    reply is due. Only a reply moves it; a restored link or a refusal does not. After a refusal
    ``deadline`` is the time of the next attempt, if that is earlier.
    """

    def __init__(
        self,
        opening: Open,
        preset: Preset,
        reply_timeout: float = DecodeOptions.reply_timeout,
        random_source: RandomSource | None = None,
        measures: Measures | None = None,
        planner: PlannerSettings = DEFAULTS,
        whole: Request | None = None,
    ) -> None:
        """whole: the opening's request with all messages and pictures, for a cloud that lacks what
        the opening names."""
        self.stats = DecodeStats()
        self.measures = measures or Measures()
        self.finished = False
        self._opening = opening
        self._whole = whole
        self._preset = preset
        self._deadline = ReplyTimeout(reply_timeout, opening.nonce)
        # Tokens verified when the decode was last opened again, None: never.
        self._handed_over: int | None = None
        self._lost = 0  # sessions lost since the last token
        self._spec: bytes | None = None  # digest of the specification requested last
        self._base: PrefixDigest | None = None  # digest of the empty answer, by the robot
        self._cloud_base: PrefixDigest | None = None  # the same, by the cloud
        self._is_anew = False  # whether an earlier prompt had another specification
        self._rounds = Rounds(
            opening,
            preset,
            random_source or SeededRandomSource(opening.policy.seed),
            self.measures,
            self.stats,
            self._deadline,
            planner,
        )

    @property
    def tokens(self) -> list[int]:
        """The answer's verified tokens."""
        return self._rounds.answer.tokens

    @property
    def mode(self) -> Mode:
        """Who leads the decode now: robot or server."""
        return self._rounds.mode

    @property
    def deadline(self) -> float | None:
        """When ``TimePassed`` is due, s: for the timeout or another attempt. None: never."""
        return self._deadline.next

    @property
    def width(self) -> int:
        """The most nodes in the draft model's next pass; 0 pauses it."""
        return self._rounds.width

    def start(self, now: float, known_spec: bytes = b"") -> list[Effect]:
        """Begin the decode at ``now`` (s, as below).

        ``known_spec``: the cloud's prompt specification from an earlier decode, if any; with it the
        robot need not wait for the cloud before it drafts.
        """
        if not self._preset.verified:
            return self._prepare(b"")
        self._deadline.owed(now)
        self._rounds.start(now)
        known = self._prepare(known_spec) if known_spec and self._preset.drafts_on_robot else []
        return [self._opening, *known]

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle an event; returns its effects, none once the decode is finished."""
        if self.finished:
            return []
        try:
            effects = self._on(event, now)
        except OutOfTurn as error:
            effects = self._rounds.close(
                Code.OUT_OF_TURN, f"{error}; the cloud's version may differ"
            )
        if any(isinstance(effect, Finish) for effect in effects):
            self.finished = True
            self._deadline.answered()
        return effects

    def _on(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Drafted():
                return self._rounds.on_drafted(event, now)
            case PromptReady():
                return self._on_prompt(event, now)
            case Prefilled():
                return self._rounds.on_prompt_read(now)
            case LinkLost(reason):
                self._rounds.forget_pushed()
                self._deadline.lost(reason, now)
                return []
            case LinkUp(moved):
                return self._on_link_up(moved, now)
            case Abort(reason):
                return self._rounds.close(ABORTED, reason)
            case Cut():
                return self._rounds.close(CUT)
            case Unusable(text):
                return self._rounds.close(Code.BAD_REQUEST, text)
            case DrafterFailed(text):
                return self._rounds.on_drafter_failed(text, now)
            case TimePassed() if self._deadline.is_over(now):
                return self._rounds.close(TIMEOUT, self._deadline.why)
            case TimePassed():
                return self._reopen(now) if self._deadline.retries(now) else []
            case _:
                return self._on_message(event, now)

    def _on_link_up(self, moved: bool, now: float) -> list[Effect]:
        """Resume the session, or open it again if there is none or at another verifier."""
        self._rounds.forget_pushed()
        if moved:
            return self._reopen_whole(now)
        if self._deadline.retry_at is not None:
            return []  # the verifier has no room before ``retry_at``
        return self._rounds.resume() or self._reopen(now)

    def _on_message(self, message: ServerMessage, now: float) -> list[Effect]:
        match message:
            case Verdict():
                return self._rounds.on_verdict(message, now)
            case RowMessage():
                return self._rounds.on_row(message, now)
            case Prediction():
                return self._rounds.on_prediction(message)
            case Opened():
                return self._on_opened(message, now)
            case Fault(Code.OVERLOADED, text, retry_s) if retry_s and not self._rounds.session:
                return self._on_refused(text, retry_s, now)
            case Fault(Code.UNKNOWN_MESSAGES):  # after the whole it is an earlier Open's
                return self._reopen_whole(now) if self._whole is not None else []
            case Fault(Code.UNKNOWN_SESSION) if not self._rounds.session:
                return []  # of a Resume sent before the current Open
            case Fault(Code.UNKNOWN_SESSION, text):
                return self._lose_session(text, now)
            case Fault(code, text):  # whatever its code, it must not count as the answer's end
                return self._rounds.close(Code.FAULT if code in ("", *ANSWERED) else code, text)

    # The prompt: both sides make it from the cloud's specification

    def _prepare(self, spec: bytes) -> list[Effect]:
        """Start or restart with this specification; drafts under another are dropped."""
        self._spec = spec_digest(spec)
        self._base = None
        self._rounds.invalidate()
        return [Prepare(spec)]

    def _on_prompt(self, prompt: PromptReady, now: float) -> list[Effect]:
        """The robot has made the prompt; the draft model may still have to read it."""
        if prompt.spec_digest != self._spec:
            return []  # of a specification that was replaced meanwhile
        self._base = base_digest(self._opening, prompt.digest, prompt.spec_digest)
        self._rounds.begin(self._base, prompt)
        effects = self._compare_bases()
        if not effects and self._opening.generation is not None:
            if self._is_anew:  # verdicts may have been dropped meanwhile
                effects = self._rounds.resume()
            effects = [*effects, *self._rounds.follow(now)]
        return effects

    def _compare_bases(self) -> list[Effect]:
        """End the decode if both sides have made their prompt and they differ."""
        if self._base is None or self._cloud_base is None or self._base == self._cloud_base:
            return []
        text = "robot and cloud make different prompts of the same request"
        advice = "give both the same tokenizer and image processor, and the right date"
        return self._rounds.close(Code.PROMPT_MISMATCH, f"{text}; {advice}")

    # The session: opened, resumed on a new stream, or opened again after a loss

    def _on_opened(self, opened: Opened, now: float) -> list[Effect]:
        """The cloud has opened or resumed the session."""
        resumed = bool(self._rounds.session)
        if not resumed and (opened.base.length or not opened.protocol):
            return []  # of a Resume sent before the current Open
        if not resumed and opened.protocol != PROTOCOL:
            return self._rounds.close(Code.BAD_OPENED, versions_differ(PROTOCOL, opened.protocol))
        if not opened.session:
            text = "the cloud did not name the session; update it"
            return self._rounds.close(Code.BAD_OPENED, text)
        if resumed and opened.session != self._rounds.session:
            return self._lose_session("the cloud says another session each time; update it", now)
        self._rounds.session = opened.session
        if self._cloud_base is None or self._rounds.request is None:
            self._deadline.answered()
        if resumed:
            self.stats.resumed += 1
            return self._rounds.resend(now)
        if self.tokens and self._handed_over is not None:
            return self._on_reopened(opened, now)
        self.measures.opened(now)
        self._cloud_base = opened.base
        if not self._preset.drafts_on_robot:
            self._base = opened.base
            self._rounds.begin(opened.base)
            return self._leave_to_cloud(now)
        return self._on_first_opened(opened, now)

    def _on_first_opened(self, opened: Opened, now: float) -> list[Effect]:
        """The first session of a robot that drafts is open; a verdict may have arrived before."""
        if opened.spec and self.tokens:
            text = "the cloud said how to prompt after it had answered; update it"
            return self._rounds.close(Code.BAD_OPENED, text)
        if opened.spec:  # the cloud has another specification than expected
            self._is_anew = self._base is not None
            return self._prepare(opened.spec)
        if self._spec is None:
            text = "the cloud did not say how to prompt; update it"
            return self._rounds.close(Code.BAD_OPENED, text)
        if self._rounds.request_follows_open:
            self._deadline.owed(now)
        return self._compare_bases()

    def _on_reopened(self, opened: Opened, now: float) -> list[Effect]:
        """Continue at a verifier that makes the same prompt and accepted all verified tokens.

        If another session has verified more since that Open, the answers would diverge.
        """
        self.stats.resumed += 1
        same = opened.base == (self._cloud_base or self._base)
        text = "the next verifier cannot go on with this answer; start the decode again"
        if same and opened.verified < len(self.tokens):
            return self._lose_session(text, now)
        if not same or opened.verified > len(self.tokens):
            return self._rounds.close(Code.UNKNOWN_SESSION, text)
        self._cloud_base = opened.base
        if self._rounds.request_follows_open:
            self._deadline.owed(now)
        return [] if self._preset.drafts_on_robot else self._leave_to_cloud(now)

    def _leave_to_cloud(self, now: float) -> list[Effect]:
        """For a robot that does not draft: the server generates, as asked by Open or now."""
        if self._opening.generation is not None:
            return self._rounds.follow(now)
        return self._rounds.resend(now)

    def _on_refused(self, text: str, retry_after_s: float, now: float) -> list[Effect]:
        """The verifier has no room: wait as long as it asks for, if the deadline permits."""
        until, end = self._deadline.refused(retry_after_s, now), self._deadline.deadline
        if end is None or until < end:
            return []
        close, _ = self._rounds.close(Code.OVERLOADED, text)
        return [close, Finish(Code.OVERLOADED, text, until - now)]

    def _lose_session(self, text: str, now: float) -> list[Effect]:
        """The cloud lost the session: open it again, unless that happens too often."""
        self._lost = 1 if len(self.tokens) > (self._handed_over or 0) else self._lost + 1
        if self._lost > MAX_LOST:
            return self._rounds.close(Code.UNKNOWN_SESSION, text)
        return self._reopen(now)

    def _reopen_whole(self, now: float) -> list[Effect]:
        """Open the decode again at a verifier that lacks a part of the request."""
        if self._whole is not None:
            whole = replace(self._opening.request, messages=self._whole.messages)
            self._opening, self._whole = replace(self._opening, request=whole, after=b""), None
        return self._reopen(now)

    def _reopen(self, now: float) -> list[Effect]:
        """Open the decode again, continuing after the tokens that are verified."""
        self._rounds.session = ""
        self._deadline.asked_again()
        self._deadline.owed(now)
        self._handed_over = len(self.tokens)
        known = self._opening.spec_digest if self._spec is None else self._spec
        opening = replace(self._opening, spec_digest=known, verified=self._rounds.hand_over())
        if self._base is not None and not self._rounds.server_generates:
            opening = replace(opening, generation=None)  # the robot leads
        return [
            opening,
            *(self._rounds.pending() if self._rounds.request_follows_open else []),
        ]
