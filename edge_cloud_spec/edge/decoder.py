"""The robot's decoder: a state machine without I/O, ``(event, now) -> actions``.

It owns one decode. Threads, models, links and clocks stand around it (``runner`` in earnest, a
virtual-time harness in benchmarks). Here is how a decode opens, resumes and ends; what happens
between is the ``exchange`` of drafts and verdicts.
"""

from __future__ import annotations

from ..decoding.digest import PrefixDigest
from ..decoding.preset import Preset
from ..decoding.random_source import RandomSource, SeededRandomSource
from ..wire.messages import (
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

WHOLE = ("end", "length")  # how an answer ends that is all there


class EdgeDecoder:
    """One decode: opens it, keeps a draft on its way, and emits what verdicts settle.

    ``patience`` is how long, in seconds, the cloud may leave a message unanswered (link losses
    included) before the decode is given up; ``deadline`` is when that will be, None while the cloud
    owes nothing. Only an answer moves it: a link that comes and goes does not.
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
        self._told: PrefixDigest | None = None  # the same as the cloud has it
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
        """When the decode will be given up, unless the cloud answers."""
        return self._deadline.deadline

    @property
    def width(self) -> int:
        """How many nodes a pass of the draft model is to work on."""
        return self._exchange.width

    def start(self, now: float, known_spec: bytes = b"") -> list[Action]:
        """Begin. With a specification known from before, drafting does not wait for the cloud."""
        if not self._preset.uses_cloud:
            return self._prepare(b"")
        self._deadline.owed(now)
        self._exchange.start(now)
        known = self._prepare(known_spec) if known_spec and self._preset.drafts_on_robot else []
        return [Send(self._opening), *known]

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do upon this event; nothing once the decode is finished."""
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
                late = self._deadline.is_over(now)
                return self._exchange.close("timeout", self._deadline.why) if late else []

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
                return self._exchange.close("fault" if code in ("", *WHOLE) else code, text)

    def _prepare(self, spec: bytes) -> list[Action]:
        """Begin, or begin anew, with this specification; what was drafted under another is void."""
        self._spec = spec_digest(spec)
        self._base = None
        self._exchange.void()
        return [Prepare(spec)]

    def _on_prompt(self, prompt: PromptReady, now: float) -> list[Action]:
        if prompt.spec_digest != self._spec:
            return []  # another one was asked for meanwhile
        self._base = base_digest(self._opening, prompt.digest, prompt.spec_digest)
        self._exchange.begin(self._base, prompt)
        return self._compare_bases() or self._exchange.draft(now)

    def _on_opened(self, opened: Opened, now: float) -> list[Action]:
        if not opened.session:
            return self._bad_opened("the cloud did not name the session; update it")
        resumed = bool(self._session)
        self._session = opened.session
        if resumed:
            self.stats.resumed += 1
            if not self._exchange.asked:
                self._deadline.answered()  # nothing is owed meanwhile
            return self._exchange.again(now)
        self._deadline.answered()
        self._told = opened.base
        if not self._preset.drafts_on_robot:
            self._base = opened.base
            self._exchange.begin(opened.base)
            return self._exchange.again(now)
        if opened.spec:  # the cloud's prompt is not the one we held: begin with what it says
            return self._prepare(opened.spec)
        if self._spec is None:
            return self._bad_opened("the cloud did not say how to prompt; update it")
        if self._exchange.asked:
            self._deadline.owed(now)
        return self._compare_bases()

    def _bad_opened(self, text: str) -> list[Action]:
        return self._exchange.close("bad_opened", text)

    def _compare_bases(self) -> list[Action]:
        """End where both sides have made their prompt and differ."""
        if self._base is None or self._told is None or self._base == self._told:
            return []
        text = (
            "robot and cloud make different prompts of the same request; "
            "give both the same tokenizer and image processor"
        )
        return self._exchange.close("prompt_mismatch", text)

    def _resume(self) -> list[Action]:
        """Say where the robot stands; empty before it and the cloud have begun."""
        heard = self._exchange.prefix.heard
        if heard is None or not self._session:
            return []
        return [Send(Resume(self._session, heard))]

    def _on_link_up(self) -> list[Action]:
        resumed = self._resume()
        if resumed:
            return resumed
        return [Send(self._opening), *(self._exchange.pending() if self._exchange.asked else [])]
