"""What the cloud is asked for: a verdict on a draft, drafts pushed for later, or to go on alone."""

from __future__ import annotations

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_PUSHED, MAX_PUSHED_BYTES, Draft
from ..decoding.growth import FinishedDraft
from ..decoding.preset import Preset
from ..wire.messages import DraftMessage, Generate, Verdict
from .events import Action, Send
from .measures import Measures
from .speculator import Prefix
from .verified_prefix import VerifiedPrefix


class InFlightDrafts:
    """Sends drafts; knows which the cloud keeps, and when its pass over the present one ends."""

    def __init__(
        self, answer: VerifiedPrefix, payload: str, preset: Preset, measures: Measures
    ) -> None:
        self.sent: DraftMessage | None = None  # the draft that awaits its verdict
        self.drawn: Draft | None = None  # the same as it was drawn; kept after the verdict
        self.alone_until = 0  # how far the cloud goes on alone; 0: it does not
        self.due = 0.0  # when the cloud's pass over the draft will have ended
        self._answer, self._payload, self._preset = answer, payload, preset
        self._measures = measures
        self._pushed: dict[PrefixDigest, tuple[DraftMessage, float]] = {}  # for guesses, and when
        self._round = 0

    def void(self) -> None:
        """The prompt was not the right one: nothing that was sent counts."""
        self._pushed.clear()
        self.sent = self.drawn = None
        self.alone_until = 0

    def forget_pushed(self) -> None:
        """Who knows what arrived: what was pushed will be said again in its turn."""
        self._pushed.clear()

    def answered(self) -> None:
        """The verdict came."""
        self.sent = None

    @property
    def asked(self) -> bool:
        """Whether the cloud was asked for a verdict that it has not said yet."""
        return self.sent is not None or self.alone_until > 0

    @property
    def alone(self) -> bool:
        """Whether the next verdict is on nothing that the robot drafted."""
        return self.alone_until > 0 or not self._preset.drafts_on_robot

    def expects(self, base: PrefixDigest) -> bool:
        """Whether the cloud may go straight on to a verdict on this prefix, ahead of the answer."""
        return self.alone or base in self._pushed

    def pending(self) -> list[Action]:
        """What the cloud is asked for now."""
        if self.sent is not None:
            return [Send(self.sent)]
        if self.alone:
            assert self._answer.digest is not None
            speculative = self._preset.drafter == "cloud"
            return [Send(Generate(self._answer.digest, speculative, self.alone_until))]
        return []

    def settled(self, verdict: Verdict) -> tuple[int, tuple[int, ...] | None]:
        """How many tokens were drafted, and what this verdict settles; None: not our draft."""
        last = () if verdict.token is None else (verdict.token,)
        if self.alone:
            return verdict.drafted, verdict.tokens + last
        if self.sent is None:
            return 0, None
        if verdict.tokens:  # said again, with what it is about
            return len(self.sent.draft), verdict.tokens + last
        accepted = self.sent.draft.path_tokens(verdict.path)
        return len(self.sent.draft), None if accepted is None else accepted + last

    def send(self, whole: FinishedDraft, now: float) -> list[Action]:
        """Send the draft after the verified tokens, unless it was pushed already."""
        here = self._answer.digest
        assert here is not None
        there = self._measures.one_way.value
        # What was pushed does not say which token we drew; the cloud has to hear it.
        pushed = self._pushed.get(here) if self._answer.resampled is None else None
        if pushed is None:
            self.sent, starts = self._message(tuple(self._answer.tokens), whole), now + there
        else:
            self.sent, starts = pushed[0], max(now - there, pushed[1] + there)
        self._pushed = {
            base: kept for base, kept in self._pushed.items() if base.length > here.length
        }
        self.drawn = whole.draft
        self.due = starts + self._measures.verify_s(len(whole.draft))
        self._round += 1
        return [] if pushed else [Send(self.sent)]

    def push(self, prefix: Prefix, whole: FinishedDraft, now: float) -> list[Action]:
        """Send a draft for a guess, as long as the cloud is sure to keep it."""
        if not self._preset.speculation.push or len(self._pushed) >= MAX_PUSHED:
            return []
        message = self._message(prefix, whole)
        held = sum(pushed.draft.nbytes for pushed, _ in self._pushed.values())
        if held + message.draft.nbytes > MAX_PUSHED_BYTES:
            return []
        self._pushed[message.base] = (message, now)
        return [Send(message)]

    def _message(self, prefix: Prefix, whole: FinishedDraft) -> DraftMessage:
        """The draft after the verified tokens, or after a guess beyond them."""
        answer, draft = self._answer, whole.draft
        assert answer.digest is not None
        if self._payload == "probabilities":
            values = tuple(draft.row(draft.parent(i)).at(t) for i, t in enumerate(draft.tokens))
            draft = Draft(draft.tokens, values=values)
        guessed = prefix[len(answer.tokens) :]
        left = answer.room - len(guessed) - len(whole.best)
        goes_on = left > 1 and not answer.ends_with(whole.best[-1])
        open_at = whole.leaf if self._preset.speculation.open and goes_on else None
        resampled = None if guessed else answer.resampled
        return DraftMessage(answer.digest.extend(guessed), draft, self._round, resampled, open_at)
