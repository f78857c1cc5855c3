"""Drafts that a robot pushed for prefixes that the answer has not reached yet."""

from __future__ import annotations

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_PUSHED, MAX_PUSHED_BYTES, BadDraft
from ..wire.messages import DraftMessage
from .counters import Counters


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
        """The draft for this prefix, if there is one; those for shorter prefixes are dropped."""
        message = self._drafts.pop(here, None)
        self.forget_before(here)
        return message

    def forget_before(self, here: PrefixDigest) -> None:
        """The answer is at ``here``: drop the drafts that are not beyond it."""
        self._keep({base: kept for base, kept in self._drafts.items() if base.length > here.length})

    def clear(self) -> None:
        """Drop all of them."""
        self._keep({})

    def _keep(self, drafts: dict[PrefixDigest, DraftMessage]) -> None:
        self._counters.unused += len(self._drafts) - len(drafts)
        self._drafts = drafts
