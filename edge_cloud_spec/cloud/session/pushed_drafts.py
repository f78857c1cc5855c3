"""Drafts that a robot sent for prefixes where the answer is not: not yet, or not any more."""

from __future__ import annotations

from ...decoding.digest import PrefixDigest
from ...decoding.draft import MAX_PUSHED, MAX_PUSHED_BYTES, BadDraft, Draft
from ...wire.messages import DraftMessage
from .counters import Counters
from .verified_answer import VerifiedAnswer


class PushedDrafts:
    """The newest of them, bounded in number and bytes; of a prefix, the first is kept."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._drafts: dict[PrefixDigest, DraftMessage] = {}

    def __len__(self) -> int:
        return len(self._drafts)

    def add(self, message: DraftMessage) -> None:
        """Keep it until the answer reaches its prefix; raises BadDraft where they are too large."""
        kept = sum(pushed.draft.nbytes for pushed in self._drafts.values())
        if kept + message.draft.nbytes > MAX_PUSHED_BYTES:
            raise BadDraft(
                f"pushed drafts would hold more than {MAX_PUSHED_BYTES} bytes; push fewer"
            )
        if self._drafts.setdefault(message.base, message) is not message:
            self._counters.unused += 1
        self._keep(dict(list(self._drafts.items())[-MAX_PUSHED:]))

    def take(self, here: PrefixDigest) -> DraftMessage | None:
        """The draft for this prefix, if there is one."""
        return self._drafts.pop(here, None)

    def take_rest(self, answer: VerifiedAnswer) -> Draft | None:
        """What is left of a draft along which the answer went, of the one for its last place.

        Those along which it did not go are dropped.
        """
        rests = {
            base: answer.rest_of(base, message.draft)
            for base, message in self._drafts.items()
            if base.length <= len(answer.tokens)
        }
        lost = {base for base, rest in rests.items() if rest is None}
        self._keep({base: kept for base, kept in self._drafts.items() if base not in lost})
        last = max(rests.keys() - lost, key=lambda base: base.length, default=None)
        if last is None:
            return None
        del self._drafts[last]
        return rests[last]

    def forget_before(self, here: PrefixDigest) -> None:
        """The answer is at ``here``: drop the drafts that are not beyond it."""
        self._keep({base: kept for base, kept in self._drafts.items() if base.length > here.length})

    def forget_hints(self) -> None:
        """The cloud does not go on alone any more: drop what is for that."""
        self._keep({base: kept for base, kept in self._drafts.items() if not kept.hint})

    def clear(self) -> None:
        """Drop all of them."""
        self._keep({})

    def _keep(self, drafts: dict[PrefixDigest, DraftMessage]) -> None:
        self._counters.unused += len(self._drafts) - len(drafts)
        self._drafts = drafts
