"""The robot's decoder: a state machine without I/O, ``(event, now) -> actions``.

It owns the verified tokens of one decode. Threads, models, links and clocks stand around it
(``runner`` in earnest, a virtual-time harness in benchmarks).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from ..decoding.choose import Chooser, SeededChooser
from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft
from ..decoding.preset import Preset
from ..decoding.row import Row
from ..decoding.shape import Shape, Whole, chain
from ..decoding.speculation import STOP_AND_WAIT
from ..decoding.split import (
    SparseResidual,
    fallback_flaw,
    resample,
    resample_from,
    residual_flaw,
)
from ..wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Prediction,
    Residual,
    Resume,
    RowMessage,
    RowRequest,
    ServerMessage,
    Verdict,
    base_digest,
    spec_digest,
)
from .events import (
    Abort,
    Action,
    Drafted,
    Emit,
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
    Work,
)
from .measures import Measures
from .pacing import Pacing, pacing_of
from .rounds import Ledger, Round
from .speculator import Prefix, Speculator

LOOK_EVERY = 4  # tokens
MOST_PUSHED = 32  # drafts for guesses that the cloud has not decided on; it keeps as many
MAX_EARLY = 64  # verdicts kept that overtook an earlier one
WHOLE = ("end", "length")  # how an answer ends that is all there


@dataclass(frozen=True)
class _Rejection:
    """A rejected place where the recovered token is ours to draw."""

    base: PrefixDigest  # of the draft
    residual: Residual  # what the cloud told of P
    row: Row  # Q


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
        chooser: Chooser | None = None,
        measures: Measures | None = None,
    ) -> None:
        self.ledger = Ledger()
        self.tokens: list[int] = []
        self.deadline: float | None = None
        self.finished = False
        self._opening = opening
        self._preset = preset
        self._patience = patience
        self._session = ""
        self._spec: bytes | None = None  # digest of the specification asked for last
        self._prompt: PromptReady | None = None
        self._base: PrefixDigest | None = None  # of the empty answer, as the robot has it
        self._told: PrefixDigest | None = None  # the same as the cloud has it
        self._digest: PrefixDigest | None = None  # of the verified tokens
        self._heard: PrefixDigest | None = None  # the same without a token that we resampled
        self._chooser = chooser or SeededChooser(opening.policy.seed)
        self._speculator = Speculator(preset.speculation)
        self.measures = measures or Measures()
        self._pacing: Pacing = pacing_of(preset, self.measures)
        self._shape: Shape | None = None  # of the drafts that are wanted now
        self._alone_until = 0  # how far the cloud goes on alone; 0: it does not
        self._working: Work | None = None  # what was asked of the draft model last
        self._drawn: Draft | None = None  # the draft that awaits its verdict, as it was drawn
        self._sent: DraftMessage | None = None  # and as it was sent
        self._pushed: dict[PrefixDigest, tuple[DraftMessage, float]] = {}  # for guesses, and when
        self._waited = False  # whether the verified prefix had to wait for its draft
        self._resampled: int | None = None  # our token after the last verdict
        self._unresolved: _Rejection | None = None  # waits for the dense row
        self._early: dict[PrefixDigest, Verdict] = {}
        self._round = 0
        self._trouble = ""  # why the link was lost last
        self._started = 0.0
        self._sent_at = 0.0
        self._draft_s = 0.0
        self._pass_s = 0.0  # of the draft model, last
        self._due = 0.0  # when the cloud's pass will have ended

    @property
    def width(self) -> int:
        """How many nodes a pass of the draft model is to work on."""
        return self._speculator.speculation.width

    def start(self, now: float, known_spec: bytes = b"") -> list[Action]:
        """Begin. With a specification known from before, drafting does not wait for the cloud."""
        if not self._preset.uses_cloud:
            return self._prepare(b"")
        self._await(now)
        self._started = now
        known = self._prepare(known_spec) if known_spec and self._preset.drafts_on_robot else []
        return [Send(self._opening), *known]

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do upon this event; nothing once the decode is finished."""
        if self.finished:
            return []
        match event:
            case Drafted():
                return self._on_drafted(event, now)
            case Received(message):
                return self._on_message(message, now)
            case PromptReady():
                return self._on_prompt(event, now)
            case LinkLost(reason):
                self._trouble = reason
                self._pushed.clear()  # who knows what arrived
                self._await(now)
                return []
            case LinkUp():
                self._pushed.clear()
                return self._on_link_up()
            case Abort(reason):
                return self._close("aborted", reason)
            case Unusable(text):
                return self._close("bad_request", text)
            case Tick():
                if self.deadline is None or now < self.deadline:
                    return []
                return self._close("timeout", self._why_late())

    def _on_message(self, message: ServerMessage, now: float) -> list[Action]:
        match message:
            case Verdict():
                return self._on_verdict(message, now)
            case RowMessage():
                return self._on_row(message, now)
            case Prediction():
                return self._on_prediction(message)
            case Opened():
                return self._on_opened(message, now)
            case Fault(code, text):  # must not pass for the end of an answer, whatever its code
                return self._close("fault" if code in ("", *WHOLE) else code, text)

    def _await(self, now: float) -> None:
        """From here on the cloud owes an answer, if it did not already."""
        if self.deadline is None:
            self.deadline = now + self._patience

    def _why_late(self) -> str:
        why = f" ({self._trouble})" if self._trouble else ""
        return f"the cloud has not answered for {self._patience:g} s; check the link{why}"

    def _prepare(self, spec: bytes) -> list[Action]:
        """Begin, or begin anew, with this specification; what was drafted under another is void."""
        self._spec = spec_digest(spec)
        self._working = None
        self._pushed.clear()
        self._drawn = self._sent = self._prompt = self._base = self._digest = self._heard = None
        return [Prepare(spec)]

    def _on_prompt(self, prompt: PromptReady, now: float) -> list[Action]:
        if prompt.spec_digest != self._spec:
            return []  # another one was asked for meanwhile
        self._prompt = prompt
        self._base = base_digest(self._opening, prompt.digest, prompt.spec_digest)
        self._digest = self._heard = self._base
        self._speculator.begin(prompt.end_tokens)
        return self._compare_bases() or self._draft(now)

    def _on_opened(self, opened: Opened, now: float) -> list[Action]:
        if not opened.session:
            return self._close("bad_opened", "the cloud did not name the session; update it")
        resumed = bool(self._session)
        self._session = opened.session
        if resumed:
            self.ledger.resumed += 1
            if not self._asked:
                self.deadline = None  # nothing is owed meanwhile
            return self._again(now)
        self.deadline = None
        self._told = opened.base
        if not self._preset.drafts_on_robot:
            self._base = self._digest = self._heard = opened.base
            return self._again(now)
        if opened.spec:  # the cloud's prompt is not the one we held: begin with what it says
            return self._prepare(opened.spec)
        if self._spec is None:
            return self._close("bad_opened", "the cloud did not say how to prompt; update it")
        if self._asked:
            self._await(now)
        return self._compare_bases()

    def _compare_bases(self) -> list[Action]:
        """End where both sides have made their prompt and differ."""
        if self._base is None or self._told is None or self._base == self._told:
            return []
        text = (
            "robot and cloud make different prompts of the same request; "
            "give both the same tokenizer and image processor"
        )
        return self._close("prompt_mismatch", text)

    def _on_link_up(self) -> list[Action]:
        if self._session and self._heard is not None:
            return [Send(Resume(self._session, self._heard))]
        return [Send(self._opening), *(self._pending() if self._asked else [])]

    def _again(self, now: float) -> list[Action]:
        """Say again what the cloud may not have heard."""
        if not self._preset.drafts_on_robot:
            self._await(now)
            self._sent_at = now
        return self._pending()

    def _pending(self) -> list[Action]:
        """What the cloud is asked for now."""
        if self._unresolved is not None:
            return [Send(RowRequest(self._unresolved.base))]
        if self._sent is not None:
            return [Send(self._sent)]
        if self._alone_until or not self._preset.drafts_on_robot:
            assert self._digest is not None
            speculative = self._preset.drafter == "cloud"
            return [Send(Generate(self._digest, speculative, self._alone_until))]
        return []

    @property
    def _asked(self) -> bool:
        """Whether the cloud was asked for something that it has not said yet."""
        return self._sent is not None or self._alone_until > 0 or self._unresolved is not None

    @property
    def _alone(self) -> bool:
        """Whether the next verdict is on nothing that the robot drafted."""
        return self._alone_until > 0 or not self._preset.drafts_on_robot

    def _draft(self, now: float) -> list[Action]:
        """Send the draft after the verified tokens, if it is made already; draft what is wanted."""
        self._draft_s = 0.0
        self._started = now
        verified = tuple(self.tokens)
        self._speculator.settle(verified)
        plan = self._pacing.plan(now, len(self.tokens))
        self._shape, self._speculator.speculation = plan.shape, plan.speculation
        whole = self._speculator.draft_after(verified, plan.speculation.cut)
        if plan.shape is None and whole is None:
            return [*self._work(), *self._leave_alone(plan.alone, now)]
        self._waited = whole is None
        return [*(self._send(whole, now) if whole else []), *self._work()]

    def _leave_alone(self, passes: int, now: float) -> list[Action]:
        """Let the cloud go on without drafts for so many passes."""
        self._alone_until = len(self.tokens) + passes
        self._sent_at = now
        self._waited = True
        self._await(now)
        return self._pending()

    def _on_alone(self, now: float) -> list[Action]:
        """After a verdict on no draft: wait for the next, or go on as the pacing says."""
        self._started = self._sent_at = now
        self._waited = False
        if not self._alone_until:
            self._await(now)
            return []
        if len(self.tokens) >= self._alone_until:
            self._alone_until = 0
            return self._draft(now)
        self._await(now)
        return self._look_on()

    def _look_on(self) -> list[Action]:
        """Draft now and then while the cloud goes on alone, to learn whether it should."""
        verified = tuple(self.tokens)
        self._speculator.settle(verified)
        if len(verified) % LOOK_EVERY:
            return []
        self._shape, self._speculator.speculation = chain(1), STOP_AND_WAIT
        return self._work()

    def _work(self) -> list[Action]:
        """Ask the draft model for what is wanted now, unless it was asked for just that."""
        shape = self._shape
        branches = self._speculator.branches(shape, self._room()) if shape is not None else ()
        work = Work(tuple(self.tokens), branches)
        if work == self._working:
            return []
        self._working = work
        return [work]

    def _room(self) -> int:
        """How many tokens the answer may still get."""
        assert self._prompt is not None
        longest = self._prompt.max_tokens
        return min(self._opening.max_tokens or longest, longest) - len(self.tokens)

    def _on_drafted(self, drafted: Drafted, now: float) -> list[Action]:
        working, whole = self._working, drafted.whole
        if working is None or drafted.branch not in working.branches or self._digest is None:
            return []  # it was not wanted any more
        prefix, verified = drafted.branch.prefix, tuple(self.tokens)
        if prefix == verified:
            self._draft_s += drafted.seconds
        if drafted.seconds:
            self._pass_s = drafted.seconds
            self.measures.drafted(drafted.nodes, drafted.seconds)
        if not self._preset.verified:
            return self._emit_unverified(drafted.tokens, now, whole=drafted.done)
        if not drafted.done and not self._cuts(prefix, whole, now):
            self._speculator.keep(drafted.branch, whole)
            return []
        sent: list[Action] = []
        if self._speculator.drafted(drafted.branch, whole):
            if self._alone_until:
                return self._work()
            if prefix == verified and self._sent is None:
                sent = self._send(whole, now)
            else:
                sent = self._push(prefix, whole, now)
        return [*sent, *self._work()]

    def _cuts(self, prefix: tuple[int, ...], part: Whole, now: float) -> bool:
        """Whether to send this part of a draft, since the cloud would wait for more of it."""
        least = self._speculator.speculation.cut
        if not least or part.draft.depth < least:
            return False
        if len(prefix) == len(self.tokens):
            return self._sent is None
        ready = now + self._pass_s + self.measures.one_way.value
        return self._speculator.is_near(prefix) and ready > self._due

    def _send(self, whole: Whole, now: float) -> list[Action]:
        """Send the draft after the verified tokens, unless it was pushed already."""
        assert self._digest is not None
        there = self.measures.one_way.value
        pushed = self._pushed.get(self._digest)
        if pushed is None:
            self._sent, starts = self._message(tuple(self.tokens), whole), now + there
        else:
            self._sent, starts = pushed[0], max(now - there, pushed[1] + there)
        self._pushed = {
            base: kept for base, kept in self._pushed.items() if base.length > self._digest.length
        }
        self._drawn = whole.draft
        self._round += 1
        self._sent_at = now
        self._due = starts + self.measures.verify_s(len(whole.draft))
        self._await(now)
        return [] if pushed else [Send(self._sent)]

    def _push(self, prefix: Prefix, whole: Whole, now: float) -> list[Action]:
        """Send a draft for a guess, as long as the cloud is sure to keep it."""
        if not self._preset.speculation.push or len(self._pushed) >= MOST_PUSHED:
            return []
        message = self._message(prefix, whole)
        self._pushed[message.base] = (message, now)
        return [Send(message)]

    def _message(self, prefix: tuple[int, ...], whole: Whole) -> DraftMessage:
        """The draft after the verified tokens, or after a guess beyond them."""
        assert self._digest is not None and self._prompt is not None
        draft = whole.draft
        if self._opening.payload == "probabilities":
            values = tuple(draft.row(draft.parent(i)).at(t) for i, t in enumerate(draft.tokens))
            draft = Draft(draft.tokens, values=values)
        guessed = prefix[len(self.tokens) :]
        room = self._room() - len(guessed) - len(whole.best)
        goes_on = room > 1 and whole.best[-1] not in self._prompt.end_tokens
        open_at = whole.leaf if self._preset.speculation.open and goes_on else None
        resampled = None if guessed else self._resampled
        return DraftMessage(self._digest.extend(guessed), draft, self._round, resampled, open_at)

    def _emit_unverified(self, tokens: tuple[int, ...], now: float, whole: bool) -> list[Action]:
        assert self._prompt is not None
        emit = Emit(len(self.tokens), tokens, verified=False)
        self.tokens += tokens
        ended = self.tokens[-1] in self._prompt.end_tokens
        if ended or self._room() <= 0:
            return [emit, *self._finish("end" if ended else "length")]
        return [emit, *(self._draft(now) if whole else [])]

    def _on_verdict(self, verdict: Verdict, now: float) -> list[Action]:
        if verdict.base != self._digest or self._unresolved is not None:
            if not self._is_early(verdict):
                self.ledger.stale += 1
            return []
        drafted, tokens = self._settled(verdict)
        flaw = self._flaw(verdict, tokens)
        if tokens is None or flaw:
            return self._close("bad_verdict", f"{flaw}; the cloud's version may differ")
        self.ledger.rounds.append(
            Round(
                base=len(self.tokens),
                drafted=drafted,
                accepted=len(verdict.path),
                emitted=len(tokens),
                start=self._started,
                sent=self._sent_at,
                settled=now,
                verify_s=verdict.verify_s + verdict.draft_s,
                queue_s=verdict.queue_s,
                draft_s=self._draft_s,
                waited=self._waited,
            )
        )
        self._learn(verdict, now)
        rejection = self._rejection(verdict)
        actions = self._settle(tokens)
        self._heard = self._digest
        self._sent = self._resampled = self.deadline = None
        if verdict.finish:
            return [*actions, *self._close(verdict.finish)]
        if rejection is not None:
            return [*actions, *self._resample(rejection, now)]
        if self._preset.drafts_on_robot and self._room() <= 0:
            return [*actions, *self._close("length")]
        actions += self._on_alone(now) if self._alone else self._draft(now)
        early = self._early.pop(self._digest, None)
        if early is None or not (self._alone or self._sent):
            return actions
        return [*actions, *self._on_verdict(early, now)]

    def _settle(self, tokens: tuple[int, ...]) -> list[Action]:
        """These tokens are the answer's next ones."""
        assert self._digest is not None
        emit = Emit(len(self.tokens), tokens, verified=True)
        self.tokens += tokens
        self._digest = self._digest.extend(tokens)
        return [emit] if tokens else []

    def _flaw(self, verdict: Verdict, tokens: tuple[int, ...] | None) -> str:
        """Why this verdict, which settles these tokens, cannot be one on our draft; else empty."""
        if tokens is None:
            return "the cloud accepted tokens that were not drafted"
        if not (tokens or verdict.finish or verdict.residual):
            return "the cloud's verdict settles nothing"
        if any(token >= self._vocabulary for token in tokens):
            return f"the cloud said a token outside the vocabulary of {self._vocabulary}"
        if self._prompt is not None and len(tokens) > self._room():
            return "the cloud said more tokens than the answer has room for"
        if verdict.residual is None:
            return ""
        rejection, split = self._rejection(verdict), self._opening.split
        if rejection is None or split is None or verdict.token is not None or verdict.finish:
            return "the cloud wants us to resample what was not drawn, or is settled"
        return residual_flaw(verdict.residual, split, rejection.row, self._vocabulary)

    @property
    def _vocabulary(self) -> int:
        return 2**32 if self._prompt is None else self._prompt.vocabulary

    def _rejection(self, verdict: Verdict) -> _Rejection | None:
        """What is ours to draw upon this verdict, with Q there as it was when we drew from it."""
        drawn, path = self._drawn, verdict.path
        if verdict.residual is None or self._opening.split is None:
            return None
        if drawn is None or drawn.rows is None or len(path) == len(drawn):
            return None
        return _Rejection(verdict.base, verdict.residual, drawn.row(path[-1] if path else -1))

    def _resample(
        self, rejection: _Rejection, now: float, dense: Row | None = None
    ) -> list[Action]:
        """Draw the recovered token, and go on; or ask for all of P where the short form ends."""
        position, told = len(self.tokens), rejection.residual
        token: int | None
        if isinstance(told, SparseResidual):
            token = resample(told, rejection.row, position, self._chooser, dense)
        else:
            token = resample_from(told, rejection.row, position, self._chooser)
        if token is None:
            self._unresolved = rejection
            self.ledger.fallbacks += 1
            self._await(now)
            return [Send(RowRequest(rejection.base))]
        self._unresolved = self.deadline = None
        self._resampled = token
        actions = self._settle((token,))
        assert self._prompt is not None
        if token in self._prompt.end_tokens:
            return [*actions, *self._close("end")]
        if self._room() <= 0:
            return [*actions, *self._close("length")]
        return [*actions, *self._draft(now)]

    def _on_row(self, message: RowMessage, now: float) -> list[Action]:
        waiting = self._unresolved
        if waiting is None or message.base != waiting.base:
            self.ledger.stale += 1
            return []
        assert isinstance(waiting.residual, SparseResidual)
        flaw = fallback_flaw(message.row, waiting.residual, waiting.row, self._vocabulary)
        if flaw:
            return self._close("bad_row", f"{flaw}; the cloud's version may differ")
        return self._resample(waiting, now, message.row)

    def _learn(self, verdict: Verdict, now: float) -> None:
        """Measure times, and how the draft's first and second choices did."""
        known = self.measures
        whole = self._speculator.draft_after(tuple(self.tokens))
        nodes = 0 if self._alone or whole is None else len(whole.draft)
        link = max(0.0, now - self._sent_at - verdict.verify_s - verdict.queue_s)
        if nodes or self.tokens:  # the first token alone costs no pass: the prefill gave its row
            known.verified(nodes, verdict.verify_s, link if self._waited else None)
        if whole is None:
            return
        came = tuple(whole.draft.tokens[node] for node in verdict.path) or verdict.tokens
        came += () if verdict.token is None else (verdict.token,)
        predicted = self._speculator.was_predicted((*self.tokens, *came))
        if predicted is not None:
            known.exits.observe(float(predicted))
        pairs = zip(came, whole.best, strict=False)
        along = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        for _ in range(along):
            known.acceptance.observe(1.0)
        if along < min(len(came), len(whole.best)):
            known.acceptance.observe(0.0)
            if along < len(whole.seconds):
                known.runner_up.observe(float(came[along] == whole.seconds[along]))

    def _on_prediction(self, message: Prediction) -> list[Action]:
        """An exit's guess at the verdict: something to draft after, and nothing else."""
        if message.base != self._digest or self._sent is None:
            self.ledger.stale += 1
            return []
        path = self._sent.draft.path_tokens(message.path)
        if path is None or not self._preset.speculation.exits:
            return []
        self.ledger.predictions += 1
        guess = (*self.tokens, *path, message.token)
        self._speculator.predict(guess, message.confidence)
        return self._work()

    def _is_early(self, verdict: Verdict) -> bool:
        """Keep a verdict that overtook the one before it: the cloud went straight on."""
        base, here = verdict.base, self._digest
        if here is None or base.length <= here.length:
            return False
        if not self._alone and base not in self._pushed:
            return False
        for old in [old for old in self._early if old.length < here.length]:
            del self._early[old]
        if base in self._early or len(self._early) >= MAX_EARLY:
            return False
        self._early[base] = verdict
        return True

    def _settled(self, verdict: Verdict) -> tuple[int, tuple[int, ...] | None]:
        """How many tokens were drafted, and the tokens that this verdict settles."""
        last = () if verdict.token is None else (verdict.token,)
        if self._alone:
            return verdict.drafted, verdict.tokens + last
        if self._sent is None:
            return 0, None
        draft = self._sent.draft
        accepted = draft.path_tokens(verdict.path)
        return len(draft), None if accepted is None else accepted + last

    def _close(self, reason: str, text: str = "") -> list[Action]:
        goodbye: list[Action] = [Send(Close(self._resampled))] if self._preset.uses_cloud else []
        return [*goodbye, *self._finish(reason, text)]

    def _finish(self, reason: str, text: str = "") -> list[Action]:
        self.finished = True
        self.deadline = None
        self._working = None
        return [Finish(reason, text)]
