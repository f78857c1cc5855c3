"""The robot's decoder: a state machine without I/O, ``(event, now) -> actions``.

It owns the verified tokens of one decode. Threads, models, links and clocks stand around it
(``runner`` in earnest, a virtual-time harness in benchmarks).
"""

from __future__ import annotations

import numpy as np

from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft
from ..decoding.preset import Preset
from ..wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    Verdict,
    base_digest,
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
    StartDraft,
    Tick,
)
from .rounds import Ledger, Round


class EdgeDecoder:
    """One decode: opens it, keeps a draft on its way, and emits what verdicts settle.

    ``patience`` is how long, in seconds, the cloud may leave a message unanswered (link losses
    included) before the decode is given up.
    """

    def __init__(self, opening: Open, preset: Preset, patience: float = 10.0) -> None:
        self.ledger = Ledger()
        self.tokens: list[int] = []
        self.deadline: float | None = None
        self.finished = False
        self._opening = opening
        self._preset = preset
        self._patience = patience
        self._session = ""
        self._opened = False
        self._prompt: PromptReady | None = None
        self._digest: PrefixDigest | None = None
        self._drafting: list[Drafted] | None = None  # the draft under way
        self._sent: DraftMessage | None = None  # the draft that awaits its verdict
        self._round = 0
        self._started = 0.0
        self._sent_at = 0.0

    def start(self, now: float, known_spec: bytes = b"") -> list[Action]:
        """Begin. With a specification known from before, drafting does not wait for the cloud."""
        if not self._preset.uses_cloud:
            return [Prepare(b"")]
        self.deadline = now + self._patience
        self._started = now
        actions: list[Action] = [Send(self._opening)]
        if known_spec and self._preset.drafts_on_robot:
            actions.append(Prepare(known_spec))
        return actions

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do upon this event; nothing once the decode is finished."""
        if self.finished:
            return []
        match event:
            case Drafted():
                return self._on_drafted(event, now)
            case Received(Verdict() as verdict):
                return self._on_verdict(verdict, now)
            case Received(Opened() as opened):
                return self._on_opened(opened, now)
            case Received(Fault(code, text)):
                return self._finish(code, text)
            case PromptReady():
                return self._on_prompt(event, now)
            case LinkLost(reason):
                self.deadline = self.deadline or now + self._patience
                return []
            case LinkUp():
                return self._on_link_up(now)
            case Abort(reason):
                return [*self._goodbye(), *self._finish("aborted", reason)]
            case Tick():
                if self.deadline is not None and now >= self.deadline:
                    text = f"the cloud has not answered for {self._patience:g} s; check the link"
                    return [*self._goodbye(), *self._finish("timeout", text)]
                return []

    def _on_prompt(self, prompt: PromptReady, now: float) -> list[Action]:
        self._prompt = prompt
        self._digest = base_digest(self._opening, prompt.digest, prompt.target_identity)
        return self._draft(now)

    def _on_opened(self, opened: Opened, now: float) -> list[Action]:
        resumed = bool(self._session)
        self._session, self._opened = opened.session, True
        self.deadline = None
        if resumed:
            self.ledger.resumed += 1
            return self._again(now)
        if not self._preset.drafts_on_robot:
            self._digest = opened.base
            return self._generate(now)
        if opened.spec:  # the cloud's prompt is not the one we held: begin with what it says
            self._drafting = self._sent = None
            return [Prepare(opened.spec)]
        if self._digest is not None and opened.base != self._digest:
            text = (
                "robot and cloud make different prompts of the same request; "
                "give both the same tokenizer and image processor"
            )
            return [*self._goodbye(), *self._finish("prompt_mismatch", text)]
        if self._sent is not None:
            self.deadline = now + self._patience
        return []

    def _on_link_up(self, now: float) -> list[Action]:
        self.deadline = now + self._patience
        if not self._session:
            return [Send(self._opening), *([Send(self._sent)] if self._sent else [])]
        assert self._digest is not None
        return [Send(Resume(self._session, self._digest))]

    def _again(self, now: float) -> list[Action]:
        if not self._preset.drafts_on_robot:
            return self._generate(now)
        if self._sent is None:
            return []
        self.deadline = now + self._patience
        return [Send(self._sent)]

    def _generate(self, now: float) -> list[Action]:
        assert self._digest is not None
        self.deadline = now + self._patience
        self._sent_at = now
        return [Send(Generate(self._digest, speculative=self._preset.drafter == "cloud"))]

    def _draft(self, now: float) -> list[Action]:
        self._drafting = []
        self._started = now
        return [StartDraft(tuple(self.tokens), self._preset.draft_length)]

    def _on_drafted(self, drafted: Drafted, now: float) -> list[Action]:
        if self._drafting is None or self._prompt is None or self._digest is None:
            return []
        self._drafting.append(drafted)
        ended = drafted.token in self._prompt.end_tokens
        whole = ended or len(self._drafting) == self._preset.draft_length
        if not self._preset.verified:
            return self._emit_unverified(drafted.token, ended, now, whole)
        if not whole:
            return []
        rows = [d.row for d in self._drafting if d.row is not None]
        draft = Draft(
            tuple(d.token for d in self._drafting), rows=np.stack(rows) if rows else None
        )
        self._sent = DraftMessage(self._digest, draft, self._round)
        self._drafting = None
        self._round += 1
        self._sent_at = now
        self.deadline = now + self._patience
        return [Send(self._sent)]

    def _emit_unverified(
        self, token: int, ended: bool, now: float, whole: bool
    ) -> list[Action]:
        assert self._prompt is not None
        emit = Emit(len(self.tokens), (token,), verified=False)
        self.tokens.append(token)
        if ended or len(self.tokens) >= self._prompt.max_tokens:
            return [emit, *self._finish("end" if ended else "length")]
        return [emit, *(self._draft(now) if whole else [])]

    def _on_verdict(self, verdict: Verdict, now: float) -> list[Action]:
        if verdict.base != self._digest:
            self.ledger.stale += 1
            return []
        drafted, tokens = self._settled(verdict)
        if tokens is None:
            text = "the cloud accepted tokens that were not drafted; its version may differ"
            return [*self._goodbye(), *self._finish("bad_verdict", text)]
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
            )
        )
        actions: list[Action] = [Emit(len(self.tokens), tokens, verified=True)]
        self.tokens += tokens
        self._digest = self._digest.extend(tokens)
        self._sent = None
        if verdict.finish:
            return [*actions, *self._goodbye(), *self._finish(verdict.finish)]
        if self._preset.drafts_on_robot:
            self.deadline = None
            return [*actions, *self._draft(now)]
        self._started = self._sent_at = now
        self.deadline = now + self._patience
        return actions

    def _settled(self, verdict: Verdict) -> tuple[int, tuple[int, ...] | None]:
        """How many tokens were drafted, and the tokens that this verdict settles."""
        last = () if verdict.token is None else (verdict.token,)
        if not self._preset.drafts_on_robot:
            return verdict.drafted, verdict.tokens + last
        if self._sent is None:
            return 0, None
        draft, node = self._sent.draft, -1
        for step in verdict.path:
            if step not in draft.children(node):
                return len(draft), None
            node = step
        return len(draft), tuple(draft.tokens[step] for step in verdict.path) + last

    def _goodbye(self) -> list[Action]:
        return [Send(Close())] if self._preset.uses_cloud else []

    def _finish(self, reason: str, text: str = "") -> list[Action]:
        self.finished = True
        self.deadline = None
        self._drafting = None
        return [Finish(reason, text)]


