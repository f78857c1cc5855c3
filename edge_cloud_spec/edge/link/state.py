"""How good the link to the cloud is: a state machine without I/O, with hysteresis.

It becomes worse at once and better slowly: a better state needs answers in time in a row, and time
in the state before. So a link that comes and goes changes the state a few times a minute, not with
each message, and nobody acts on a link that answers once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum


class LinkQuality(IntEnum):
    """The states; a larger number is worse."""

    CLOUD = 0  # answers come in time
    DEGRADED = 1  # some are late, or the connection broke a moment ago
    LOST = 2  # nothing answers

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class LinkLimits:
    """When the state changes; times in seconds.

    The first answer may take ``first_s``; others are in time within ``deadline_s``. ``misses`` of
    the last ``of`` answers that are not make the link degraded, ``lost_s`` without any answer after
    the first miss or a break make it lost. A better state needs ``answers`` in time in a row and
    ``hold_s`` in the state before; of a lost link that doubles, up to ``max_hold_s``, each time it
    is lost again within ``calm_s``.
    """

    deadline_s: float = 2.0
    first_s: float = 2.0
    misses: int = 2
    of: int = 8
    lost_s: float = 1.0
    answers: int = 3
    hold_s: float = 1.0
    max_hold_s: float = 16.0
    calm_s: float = 30.0


class LinkState:
    """The state, and why. ``now`` is steady time in s; it never goes back."""

    def __init__(self, limits: LinkLimits, now: float) -> None:
        """Nothing is known yet: it is degraded, and lost if nothing answers."""
        self.quality = LinkQuality.DEGRADED
        self._reason = "the cloud has not answered yet"
        self.missed_answers = 0
        self._limits = limits
        self._in_time: deque[bool] = deque(maxlen=limits.of)  # of the last answers
        self._in_a_row = 0  # answers in time
        self._needed = 1  # of those, for a better state
        # The first miss or break after the last answer; the first answer may take its time.
        self._silent_since: float | None = now + limits.first_s
        self._broken = False
        self._since = now - limits.hold_s  # in this state
        self._hold = limits.hold_s
        self._left_lost = -limits.calm_s  # when it was lost last

    @property
    def reason(self) -> str:
        """Why it is not good; empty where it is."""
        return self._reason if self.quality else ""

    def answered(self, after_s: float, now: float) -> None:
        """The cloud answered, ``after_s`` after it was asked."""
        limits = self._limits
        self._silent_since, self._broken = None, False
        if after_s > limits.deadline_s:
            self._in_a_row = 0
            self._reason = f"answers take {after_s:.1f} s"
        else:
            self._in_time.append(True)
            self._in_a_row += 1
        if self.quality == LinkQuality.CLOUD:
            self._judge(now)
        elif self._in_a_row >= self._needed and now - self._since >= self._hold_now:
            self._improve(now)

    def missed(self, now: float) -> None:
        """An answer was due by now."""
        self.missed_answers += 1
        self._in_time.append(False)
        self._in_a_row = 0
        self._fall_silent(f"no answer within {self._limits.deadline_s:g} s", now)

    def lost(self, reason: str, now: float) -> None:
        """The connection broke, or cannot be made."""
        self._in_a_row = 0
        self._broken = True
        self._fall_silent(reason, now)

    def up(self, now: float) -> None:
        """There is a connection again; whether anybody answers on it is not known yet."""
        self._judge(now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._judge(now)

    def starting(self, now: float) -> bool:
        """Whether the first answer may still come."""
        return self._silent_since is not None and now < self._silent_since

    @property
    def _hold_now(self) -> float:
        return self._hold if self.quality == LinkQuality.LOST else self._limits.hold_s

    def _fall_silent(self, reason: str, now: float) -> None:
        if self._silent_since is None:
            self._silent_since = now
        if not self.starting(now):
            self._reason = reason
        self._judge(now)

    def _judge(self, now: float) -> None:
        """Go to a worse state, if it is one."""
        limits, silent = self._limits, self._silent_since
        if silent is not None and now - silent >= limits.lost_s:
            self._worsen(LinkQuality.LOST, now)
        elif self._broken or self._in_time.count(False) >= limits.misses:
            self._worsen(LinkQuality.DEGRADED, now)

    def _worsen(self, quality: LinkQuality, now: float) -> None:
        if quality <= self.quality:
            return
        if quality == LinkQuality.LOST:
            again = now - self._left_lost < self._limits.calm_s
            longer = min(2 * self._hold, self._limits.max_hold_s)
            self._hold = longer if again else self._limits.hold_s
        self.quality, self._since = quality, now
        self._needed, self._in_a_row = self._limits.answers, 0

    def _improve(self, now: float) -> None:
        if self.quality == LinkQuality.LOST:
            self._left_lost = now
            self.quality, self._reason = LinkQuality.DEGRADED, "answers come again"
        else:
            self.quality, self._reason = LinkQuality.CLOUD, ""
            self._in_time.clear()
        self._since, self._in_a_row = now, 0
