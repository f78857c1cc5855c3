"""Checks that the words of an answer come in order and whole, and which request counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..wire.messages import ABORTED, COMPLETE, TIMEOUT
from .answer import NOTHING_READ, STOP_ACTION, Reading
from .events import Words

REQUESTS_REMEMBERED = 64  # earlier requests whose words are still recognized
MAX_CHARACTERS = 20_000  # characters of one answer
_WHY_NONE = {TIMEOUT: "no answer from the cloud", ABORTED: "the decision was called off"}
SAME_FRAME_S = 0.01  # s; differences between two messages' times of one frame
FRAME_FUTURE_S = 0.5  # s by which a frame's stamp may be in the future


@dataclass
class HeardAnswer:
    """The answer to a request as far as it came, and what it says, once that is settled.

    ``words`` are its first message, with its goal and frame; ``next``: the position of the next.
    """

    words: Words
    frame_time: float
    verified: bool = True
    reading: Reading = NOTHING_READ
    failed: bool = False  # the decode gave no words, so that nothing was refused
    next: int = 0


class AnswerSequencer:
    """Takes the words of each request; drops and counts late, repeated and misplaced ones.

    Of a request on an older frame, or one that has been replaced, only a ``stop`` counts. A frame
    is older if both its stamp and its time, by its age at arrival, are: the time is as exact as two
    clocks are read together, and a stamp goes back where this computer's clock does. No offset of
    the camera's clock changes the order, and a stamp in the future makes no later frame old.
    ``counts`` has the keys ``stale`` (an older request), ``repeated`` and ``out_of_order``.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(stale=0, repeated=0, out_of_order=0)
        self._answers: dict[str, HeardAnswer] = {}
        self._newest, self._taken, self._stamp = "", float("-inf"), 0

    def receive(self, words: Words, now: float, ahead: float = 0.0) -> HeardAnswer | None:
        """Add a message of words; returns the result of its request if that is now complete, else
        None. ``ahead``: how far the camera's clock is ahead, s."""
        answer = self._answers.get(words.request)
        if answer is None:
            answer = self._answers[words.request] = HeardAnswer(words, now - words.age)
            if len(self._answers) > REQUESTS_REMEMBERED + 1:
                del self._answers[next(name for name in self._answers if name != self._newest)]
            taken, latest = answer.frame_time, now + max(0.0, ahead) + FRAME_FUTURE_S
            if self._taken > latest:  # by an offset of the camera's clock that holds no more
                self._taken, self._stamp = float("-inf"), 0
            if taken >= self._taken - SAME_FRAME_S or words.stamp >= self._stamp > 0:
                self._newest = words.request
                if taken <= latest:
                    self._taken = max(self._taken, taken)
                    self._stamp = max(self._stamp, words.stamp)
        is_newest = words.request == self._newest
        if words.position != answer.next:
            misplaced = "repeated" if words.position < answer.next else "out_of_order"
            self.counts[misplaced if is_newest else "stale"] += 1
            ends = is_newest and words.finished and not answer.reading.settled
            if not ends or words.position < answer.next:
                return None
            answer.reading = Reading(problem="words of it are missing")
            return answer
        settled = self._go_on(answer, words)
        if is_newest or (settled is not None and settled.reading.action == STOP_ACTION):
            return settled
        self.counts["stale"] += 1
        return None

    def _go_on(self, answer: HeardAnswer, words: Words) -> HeardAnswer | None:
        answer.next += len(words.tokens)
        answer.verified &= words.verified
        if answer.reading.settled:
            return None
        answer.reading, text = words.reading, words.answer
        if not answer.reading.settled and (words.finished or len(text) > MAX_CHARACTERS):
            why = _WHY_NONE.get(words.finish_reason, f"no decision ({words.finish_reason})")
            answer.failed = not text and words.finish_reason not in ("", *COMPLETE)
            none = f"{text[:80]!r} ends without an action"
            answer.reading = Reading(problem=why if answer.failed else none)
        return answer if answer.reading.settled else None
