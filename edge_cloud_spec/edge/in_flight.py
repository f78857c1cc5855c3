"""Drafts in flight: the one that awaits its verdict, and those pushed for predicted prefixes."""

from __future__ import annotations

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_PUSHED, MAX_PUSHED_BYTES, Draft
from ..decoding.growth import FinishedDraft
from ..decoding.preset import Preset
from ..wire.messages import DraftMessage
from .measures import Measures
from .outstanding import AwaitedVerdict
from .speculator import Prefix
from .verified_prefix import VerifiedPrefix


class InFlightDrafts:
    """Makes draft messages, and keeps those that were pushed for predicted prefixes."""

    def __init__(
        self, prefix: VerifiedPrefix, payload: str, preset: Preset, measures: Measures
    ) -> None:
        self._prefix, self._payload, self._preset = prefix, payload, preset
        self._measures = measures
        self._pushed: dict[PrefixDigest, tuple[DraftMessage, float]] = {}  # and when they were sent
        self._round = 0

    def forget_pushed(self) -> None:
        """Which pushed drafts arrived is unknown: send each again when its prefix is verified."""
        self._pushed.clear()

    def holds(self, base: PrefixDigest) -> bool:
        """Whether a draft was pushed for this prefix, so that its verdict may arrive early."""
        return base in self._pushed

    def next(self, finished: FinishedDraft, now: float) -> tuple[AwaitedVerdict, bool]:
        """The draft after the verified prefix as a request, and whether it is still to be sent.

        It was sent already where it was pushed. ``now`` in seconds.
        """
        here = self._prefix.digest
        assert here is not None
        one_way = self._measures.one_way.value
        # A pushed draft does not carry the token that the robot resampled; the cloud needs it.
        pushed = self._pushed.get(here) if self._prefix.resampled is None else None
        if pushed is None:
            message, starts = self._message(tuple(self._prefix.tokens), finished), now + one_way
        else:
            message, starts = pushed[0], max(now - one_way, pushed[1] + one_way)
        self._pushed = {
            base: kept for base, kept in self._pushed.items() if base.length > here.length
        }
        self._round += 1
        due = starts + self._measures.verify_s(len(finished.draft))
        return AwaitedVerdict(message, finished.draft, due), pushed is None

    def push(self, prefix: Prefix, finished: FinishedDraft, now: float) -> DraftMessage | None:
        """The draft for a predicted prefix, to be sent; None where the cloud would not keep it."""
        if not self._preset.speculation.push or len(self._pushed) >= MAX_PUSHED:
            return None
        message = self._message(prefix, finished)
        held = sum(pushed.draft.nbytes for pushed, _ in self._pushed.values())
        if held + message.draft.nbytes > MAX_PUSHED_BYTES:
            return None
        self._pushed[message.base] = (message, now)
        return message

    def _message(self, prefix: Prefix, finished: FinishedDraft) -> DraftMessage:
        """The draft after the verified tokens, or after predicted ones beyond them."""
        verified, draft = self._prefix, finished.draft
        assert verified.digest is not None
        if self._payload == "probabilities":
            values = tuple(draft.row(draft.parent(i)).at(t) for i, t in enumerate(draft.tokens))
            draft = Draft(draft.tokens, values=values)
        predicted = prefix[len(verified.tokens) :]
        left = verified.room - len(predicted) - len(finished.best)
        continues = left > 1 and not verified.ends_with(finished.best[-1])
        open_at = finished.leaf if self._preset.speculation.open and continues else None
        resampled = None if predicted else verified.resampled
        return DraftMessage(
            verified.digest.extend(predicted), draft, self._round, resampled, open_at
        )
