"""The robot's decoder: a state machine without I/O, ``(event, now) -> actions``.

It owns one decode. Threads, models, links and clocks are outside it (``runner``; in tests and
benchmarks also a harness in virtual time). Here is how a decode opens, resumes and ends; what
happens between is the ``exchange`` of drafts and verdicts.
"""

from __future__ import annotations

from ..decoding.digest import PrefixDigest
from ..decoding.preset import Preset
from ..decoding.random_source import RandomSource, SeededRandomSource
from ..wire.messages import (
    COMPLETE,
    Fault,
    Open,
    Opened,
    Prediction,
    Resume,
    RowMessage,
    ServerMessage,
    Verdict,
    base_digest,
    spec_digest,
)
from ..wire.version import VersionError, check_agreed
from .events import (
    Abort,
    Action,
    Drafted,
    Event,
    Finish,
    LinkLost,
    LinkUp,
    Prepare,
    PromptReady,
    Received,
    Send,
    Tick,
    Unusable,
)
from .exchange import Exchange
from .measures import Measures
from .reply_deadline import ReplyDeadline
from .rounds import DecodeStats


class EdgeDecoder:
    """One decode: opens it, keeps a draft in flight, and emits what verdicts settle.

    ``patience`` is how long, in seconds, the cloud may take to reply (link losses included) before
    the decode ends with a timeout; ``deadline`` is when that will be, None while no reply is due.
    Only a reply moves it: a link that is lost and restored does not.
    """

    def __init__(
        self,
        opening: Open,
        preset: Preset,
        patience: float = 10.0,
        random_source: RandomSource | None = None,
        measures: Measures | None = None,
    ) -> None:
        self.stats = DecodeStats()
        self.measures = measures or Measures()
        self.finished = False
        self._opening = opening
        self._preset = preset
        self._deadline = ReplyDeadline(patience)
        self._session = ""
        self._spec: bytes | None = None  # digest of the specification asked for last
        self._base: PrefixDigest | None = None  # of the empty answer, as the robot has it
        self._cloud_base: PrefixDigest | None = None  # the same, as the cloud has it
        self._exchange = Exchange(
            opening,
            preset,
            random_source or SeededRandomSource(opening.policy.seed),
            self.measures,
            self.stats,
            self._deadline,
            self._resume,
        )

    @property
    def tokens(self) -> list[int]:
        """The answer's tokens so far."""
        return self._exchange.prefix.tokens

    @property
    def deadline(self) -> float | None:
        """When the decode times out unless the cloud replies, s; None while no reply is due."""
        return self._deadline.deadline

    @property
    def width(self) -> int:
        """How many nodes a pass of the draft model is to work on."""
        return self._exchange.width

    def start(self, now: float, known_spec: bytes = b"") -> list[Action]:
        """Begin. With a prompt specification known already, drafting does not wait for the cloud.

        ``now`` in seconds, here and below.
        """
        if not self._preset.uses_cloud:
            return self._prepare(b"")
        self._deadline.owed(now)
        self._exchange.start(now)
        known = self._prepare(known_spec) if known_spec and self._preset.drafts_on_robot else []
        return [Send(self._opening), *known]

    def handle(self, event: Event, now: float) -> list[Action]:
        """The actions that follow from this event; none once the decode is finished."""
        if self.finished:
            return []
        actions = self._on(event, now)
        if any(isinstance(action, Finish) for action in actions):
            self.finished = True
            self._deadline.answered()
        return actions

    def _on(self, event: Event, now: float) -> list[Action]:
        match event:
            case Drafted():
                return self._exchange.on_drafted(event, now)
            case Received(message):
                return self._on_message(message, now)
            case PromptReady():
                return self._on_prompt(event, now)
            case LinkLost(reason):
                self._exchange.forget_pushed()
                self._deadline.lost(reason, now)
                return []
            case LinkUp():
                self._exchange.forget_pushed()
                return self._on_link_up()
            case Abort(reason):
                return self._exchange.close("aborted", reason)
            case Unusable(text):
                return self._exchange.close("bad_request", text)
            case Tick():
                is_over = self._deadline.is_over(now)
                return self._exchange.close("timeout", self._deadline.why) if is_over else []

    def _on_message(self, message: ServerMessage, now: float) -> list[Action]:
        match message:
            case Verdict():
                return self._exchange.on_verdict(message, now)
            case RowMessage():
                return self._exchange.on_row(message, now)
            case Prediction():
                return self._exchange.on_prediction(message)
            case Opened():
                return self._on_opened(message, now)
            case Fault(code, text):  # must not pass for the end of an answer, whatever its code
                return self._exchange.close("fault" if code in ("", *COMPLETE) else code, text)

    def _prepare(self, spec: bytes) -> list[Action]:
        """Begin, or begin anew, with this specification; drafts under another are dropped."""
        self._spec = spec_digest(spec)
        self._base = None
        self._exchange.invalidate()
        return [Prepare(spec)]

    def _on_prompt(self, prompt: PromptReady, now: float) -> list[Action]:
        if prompt.spec_digest != self._spec:
            return []  # of a specification that was replaced meanwhile
        self._base = base_digest(self._opening, prompt.digest, prompt.spec_digest)
        self._exchange.begin(self._base, prompt)
        return self._compare_bases() or self._exchange.draft(now)

    def _on_opened(self, opened: Opened, now: float) -> list[Action]:
        if not opened.session:
            return self._bad_opened("the cloud did not name the session; update it")
        try:
            check_agreed(opened.protocol)
        except VersionError as error:
            return self._bad_opened(str(error))
        resumed = bool(self._session)
        self._session = opened.session
        if resumed:
            self.stats.resumed += 1
            if not self._exchange.asked:
                self._deadline.answered()  # no reply is due meanwhile
            return self._exchange.resend(now)
        self._deadline.answered()
        self._cloud_base = opened.base
        if not self._preset.drafts_on_robot:
            self._base = opened.base
            self._exchange.begin(opened.base)
            return self._exchange.resend(now)
        if opened.spec:  # the cloud's specification is not the known one: begin with that
            return self._prepare(opened.spec)
        if self._spec is None:
            return self._bad_opened("the cloud did not say how to prompt; update it")
        if self._exchange.asked:
            self._deadline.owed(now)
        return self._compare_bases()

    def _bad_opened(self, text: str) -> list[Action]:
        return self._exchange.close("bad_opened", text)

    def _compare_bases(self) -> list[Action]:
        """End the decode if both sides have made their prompt and they differ."""
        if self._base is None or self._cloud_base is None or self._base == self._cloud_base:
            return []
        text = (
            "robot and cloud make different prompts of the same request; "
            "give both the same tokenizer and image processor"
        )
        return self._exchange.close("prompt_mismatch", text)

    def _resume(self) -> list[Action]:
        """Send the robot's verified prefix; empty before it and the cloud have begun."""
        shared = self._exchange.prefix.shared
        if shared is None or not self._session:
            return []
        return [Send(Resume(self._session, shared))]

    def _on_link_up(self) -> list[Action]:
        resumed = self._resume()
        if resumed:
            return resumed
        return [Send(self._opening), *(self._exchange.pending() if self._exchange.asked else [])]
