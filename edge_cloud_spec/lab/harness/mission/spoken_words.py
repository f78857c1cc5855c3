"""The words of one decision, as the navigator hears them."""

from __future__ import annotations

from typing import Any

from ....edge.events import Emit
from ....models.tokenizer import TextStream
from ....nav.decision_loop import Decide
from ....nav.events import Words
from .record import DecisionRecord
from .seen_room import TakenFrame
from .virtual_base import VirtualBase, stamp_of


class SpokenWords:
    """Hands them to the base's navigator, and notes when each was said."""

    def __init__(
        self,
        base: VirtualBase,
        tokenizer: Any,
        decide: Decide[TakenFrame],
        record: DecisionRecord,
    ) -> None:
        self._base, self._decide, self._record = base, decide, record
        self._stream = TextStream(tokenizer)
        self._count, self._verified = 0, True

    @property
    def answer(self) -> str:
        """All words so far."""
        return self._stream.text

    def emit(self, emit: Emit, now: float) -> None:
        """These tokens are settled."""
        self._verified = emit.verified
        text = self._stream.add(emit.tokens)
        self._record.said.append((now, text))
        self._say(text, len(emit.tokens), now)

    def finish(self, reason: str, now: float) -> None:
        """Nothing follows."""
        self._say("", 0, now, reason)

    def _say(self, text: str, count: int, now: float, reason: str = "") -> None:
        taken = self._decide.frame.taken
        words = Words(
            self._decide.request,
            self._count,
            count,
            text,
            self._verified,
            bool(reason),
            stamp_of(taken),
            now - taken,
            self._decide.instruction,
            self._decide.stops,
            0.0,
            reason,
        )
        self._count += count
        self._base.on(words)
