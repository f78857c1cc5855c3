"""Drafts that a robot pushed for prefixes which the answer has not reached yet."""

from __future__ import annotations

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_PUSHED, MAX_PUSHED_BYTES, BadDraft
from ..wire.messages import DraftMessage
from .counters import Counters


class PushedDrafts:
    """The newest of them, bounded in number and bytes; the first for a prefix stands."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._drafts: dict[PrefixDigest, DraftMessage] = {}

    def __len__(self) -> int:
        return len(self._drafts)

    def add(self, message: DraftMessage) -> None:
        """Keep it until the answer gets to its prefix; raises BadDraft."""
        held = sum(pushed.draft.nbytes for pushed in self._drafts.values())
        if held + message.draft.nbytes > MAX_PUSHED_BYTES:
            raise BadDraft(
                f"pushed drafts would hold more than {MAX_PUSHED_BYTES} bytes; push fewer"
            )
        if self._drafts.setdefault(message.base, message) is not message:
            self._counters.unused += 1
        self._keep(dict(list(self._drafts.items())[-MAX_PUSHED:]))

    def take(self, here: PrefixDigest) -> DraftMessage | None:
        """The draft for just this prefix; those for shorter ones are of no use any more."""
        message = self._drafts.pop(here, None)
        self.forget_before(here)
        return message

    def forget_before(self, here: PrefixDigest) -> None:
        """The answer is at ``here``: what is not beyond it is of no use any more."""
        self._keep({base: kept for base, kept in self._drafts.items() if base.length > here.length})

    def clear(self) -> None:
        """None of them is of use any more."""
        self._keep({})

    def _keep(self, drafts: dict[PrefixDigest, DraftMessage]) -> None:
        self._counters.unused += len(self._drafts) - len(drafts)
        self._drafts = drafts
