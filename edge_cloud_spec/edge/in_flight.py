"""Drafts in flight: the one that awaits its verdict, and those pushed for predicted prefixes."""

from __future__ import annotations

from dataclasses import replace

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_PUSHED, MAX_PUSHED_BYTES, Draft
from ..decoding.preset import Preset
from ..decoding.propose import FinishedDraft
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
        self._hints: set[Prefix] = set()  # places that hints were sent for
        self._round = 0

    def forget_pushed(self) -> None:
        """Which pushed drafts arrived is unknown: send each again when its prefix is verified."""
        self._pushed.clear()
        self._hints.clear()

    def draft_at(self, base: PrefixDigest | None) -> Draft | None:
        """The draft that was pushed for this prefix, if any: the cloud may judge it unasked."""
        pushed = None if base is None else self._pushed.get(base)
        return None if pushed is None else pushed[0].draft

    def next(
        self, finished: FinishedDraft, now: float, patience_s: float = 0.0, exits: bool = True
    ) -> tuple[AwaitedVerdict, bool]:
        """The draft after the verified prefix as a request, and whether it is still to be sent.

        It was sent already where it was pushed. ``now`` in seconds. ``patience_s``: how long the
        robot can wait for the verdict, of which the way there and back is no time of the cloud's.
        ``exits``: whether its pass is to predict the verdict.
        """
        here = self._prefix.digest
        assert here is not None
        one_way = self._measures.one_way.value
        # A pushed draft does not carry the token that the robot resampled; the cloud needs it.
        pushed = self._pushed.get(here) if self._prefix.resampled is None else None
        if pushed is None:
            left = max(0.0, patience_s - 2 * one_way)
            message, starts = (
                self._message(tuple(self._prefix.tokens), finished, left, exits),
                now + one_way,
            )
        else:
            message, starts = pushed[0], max(now - one_way, pushed[1] + one_way)
        self._pushed = {
            base: kept for base, kept in self._pushed.items() if base.length > here.length
        }
        self._round += 1
        due = starts + self._measures.verify_s(len(finished.draft), exits)
        return AwaitedVerdict(message, finished.draft, due), pushed is None

    def push(
        self, prefix: Prefix, finished: FinishedDraft, now: float, exits: bool = True
    ) -> DraftMessage | None:
        """The draft for a predicted prefix, to be sent; None where the cloud would not keep it."""
        if not self._preset.speculation.push or len(self._pushed) >= MAX_PUSHED:
            return None
        message = self._message(prefix, finished, exits=exits)
        held = sum(pushed.draft.nbytes for pushed, _ in self._pushed.values())
        if held + message.draft.nbytes > MAX_PUSHED_BYTES:
            return None
        self._pushed[message.base] = (message, now)
        return message

    def hint(self, prefix: Prefix, finished: FinishedDraft) -> DraftMessage | None:
        """The same for a cloud that goes on alone; None where it was told or has too many."""
        verified = tuple(self._prefix.tokens)
        self._hints = {hint for hint in self._hints if hint[: len(verified)] == verified}
        if len(self._hints) >= MAX_PUSHED or prefix in self._hints:
            return None
        self._hints.add(prefix)
        return replace(self._message(prefix, finished, exits=False), hint=True)

    def _message(
        self,
        prefix: Prefix,
        finished: FinishedDraft,
        patience_s: float = 0.0,
        exits: bool = True,
    ) -> DraftMessage:
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
        return DraftMessage(
            verified.digest.extend(predicted),
            draft,
            self._round,
            None if predicted else verified.resampled,
            open_at,
            patience_s,
            without_exits=self._preset.speculation.exits and not exits,
        )
