"""The words of one decision, as the navigator hears them."""

from __future__ import annotations

from typing import Any

from ....edge.events import Emit
from ....models.tokenizer import TextStream
from ....nav.decision_schedule import DueDecision
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
        request: str,
        due: DueDecision[TakenFrame],
        record: DecisionRecord,
    ) -> None:
        self._base, self._request, self._due, self._record = base, request, due, record
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
        taken = self._due.frame.taken
        words = Words(
            self._request,
            self._count,
            count,
            text,
            self._verified,
            bool(reason),
            stamp_of(taken),
            now - taken,
            self._due.instruction,
            self._due.stops,
            0.0,
            reason,
        )
        self._count += count
        self._base.on(words)
