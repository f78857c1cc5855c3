"""Putting verified words in order: which request counts, and what its answer is so far."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from .answer import Action, NotAnAction, read_answer
from .events import Words

REMEMBERED = 64  # requests that came before the current one
MAX_CHARACTERS = 20_000  # characters of one answer
_FAILED = {"timeout": "no answer from the cloud", "aborted": "the decision was called off"}
SAME_FRAME = 0.01  # s; steady time of one frame as seen from two messages


@dataclass(frozen=True)
class Settled:
    """A request's answer is known: its ``action``, or the ``problem`` for which it has none.

    ``words`` are its first: they say what it was decided for, and on which frame.
    """

    words: Words
    frame_time: float
    verified: bool
    action: Action | None
    problem: str
    failed: bool = False  # the decode gave no words; nothing was refused


class AnswerAssembler:
    """Hears words, drops and counts the late, repeated and misplaced; settles a request once.

    ``counts`` has the keys ``stale`` (an older request), ``repeated`` and ``out_of_order``.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(stale=0, repeated=0, out_of_order=0)
        self._past: deque[str] = deque(maxlen=REMEMBERED)
        self._first: Words | None = None  # of the current request
        self._frame_time = self._order = float("-inf")
        self._next, self._text, self._verified, self._settled = 0, "", True, False

    def hear(self, words: Words, now: float) -> Settled | None:
        """The request's outcome when these words settle it, else None."""
        first, frame_time = self._first, now - words.age
        order = min(frame_time, now)  # a stamp from the future must not make the next ones old
        if first is None or words.request != first.request:
            if words.request in self._past or order < self._order - SAME_FRAME:
                self.counts["stale"] += 1
                return None
            if first is not None:
                self._past.append(first.request)
            self._first, self._frame_time, self._order = words, frame_time, order
            self._next, self._text, self._verified, self._settled = 0, "", True, False
        if words.position != self._next:
            self.counts["repeated" if words.position < self._next else "out_of_order"] += 1
            missing = words.finished and words.position > self._next
            return self._settle(None, "words of it are missing") if missing else None
        self._next += words.count
        self._verified &= words.verified
        if self._settled:
            return None
        self._text += words.text
        try:
            action = read_answer(self._text).action
        except NotAnAction as problem:
            return self._settle(None, str(problem))
        if action is not None:
            return self._settle(action, "")
        if words.finished or len(self._text) > MAX_CHARACTERS:
            why = _FAILED.get(words.finish_reason, f"no decision ({words.finish_reason})")
            if not self._text and words.finish_reason not in ("", "end", "length"):
                return self._settle(None, why, failed=True)
            return self._settle(None, f"{self._text[:80]!r} ends without an action")
        return None

    def _settle(self, action: Action | None, problem: str, failed: bool = False) -> Settled | None:
        if self._settled or self._first is None:
            return None
        self._settled = True
        return Settled(self._first, self._frame_time, self._verified, action, problem, failed)
