"""The quality of the link to the cloud, as the bridge measures it, with hysteresis.

``LinkState`` is a state machine without I/O. It becomes worse at once and better slowly: a better
state needs several timely answers in a row, and a minimum time in the state before. So an unstable
link changes the state a few times a minute, not with each message, and one answer alone does not
count as a good link. ``LinkMonitor`` feeds it from decodes, and from a probe while there are none.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ...wire.frames import ServerFrame
from ...wire.messages import Code
from ..events import LinkLost, LinkUp

PROBE_S = 1.0  # between two probes of a link that is not good
IDLE_S = 5.0  # without an answer, after which a good link is probed
# Faults made by the robot's own stream, which are no answers of the cloud, by a probe's causes.
NO_ANSWER: dict[str, str] = {
    Code.UNAUTHENTICATED: "token",
    Code.NOT_A_VERIFIER: "not_a_verifier",
    Code.LINK_FAILED: "link",
    Code.TLS: "tls",
}
# A probe cannot detect this, as it does not use the target.
REFUSED = "the verifier answers, but could not decide when it was asked last: {}"


class LinkQuality(IntEnum):
    """The states, numbered as in LinkState.msg; a larger number is worse."""

    CLOUD = 1  # answers come in time
    DEGRADED = 2  # answers are late or decide nothing, or the connection just broke
    LOST = 3  # nothing answers

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class LinkReport:
    """The contents of a LinkState message. ``reason``: why the link is not good; empty if it is."""

    quality: LinkQuality
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.quality} {self.reason}".rstrip()

    @classmethod
    def read(cls, message: Any) -> LinkReport:
        """Read a LinkState message. Raises ValueError for an unknown state."""
        return cls(LinkQuality(message.state), message.detail)


# When the state changes; times in s.
MISSES_OF_LAST = 2, 8  # so many late or missing answers among the last so many: degraded
SILENCE_S = 1.0  # without any answer since the first miss or break: lost
TIMELY_ANSWERS = 3  # consecutive answers in time for a better state
HOLD_S = 1.0  # least time in a state before a better one
CALM_S = 30.0  # if the link is lost again within this time, HOLD_S of a lost link doubles
MAX_HOLD_S = 16.0  # largest hold
REPLIES_REMEMBERED, FEW_REPLIES = 64, 8  # of which the tail is known
SLOW_BY, MOST_LATE_S = 1.5, 10.0  # the latter as ``reply_timeout``, after which a decode has ended


class LinkState:
    """The link's quality, and why. ``now`` is monotonic time in s."""

    def __init__(self, late_after_s: float, first_s: float, now: float) -> None:
        """Initially degraded; lost if nothing answers.

        The first answer may take ``first_s``; later ones are in time within ``late_after_s``, which
        may be set.
        """
        self.quality = LinkQuality.DEGRADED
        self._reason, self._advice, self._cause = "the cloud has not answered yet", "", ""
        self.missed_answers = 0
        self.late_after_s = late_after_s
        # Whether the last answers were in time.
        self._in_time = deque[bool](maxlen=MISSES_OF_LAST[1])
        self._in_a_row = 0  # consecutive answers in time
        self._needed = 1  # how many of them a better state needs
        # Time of the first miss or break since the last answer; the first answer may take longer.
        self._silent_since: float | None = now + first_s
        self._broken = self._refuses = False
        self._since = now - HOLD_S  # when the state began
        self._hold = HOLD_S
        self._left_lost = -CALM_S  # when it was last lost

    @property
    def reason(self) -> str:
        """Why the link is not good; empty if it is."""
        return self._reason if self.quality > LinkQuality.CLOUD else ""

    @property
    def advice(self) -> str:
        """What to do about the reason, if that is known; else empty."""
        return self._advice if self.quality > LinkQuality.CLOUD else ""

    def answered(self, after_s: float, now: float, refusal: str = "") -> None:
        """Record the cloud's answer after ``after_s``; refusal: why the cloud makes no
        decisions."""
        self._silent_since, self._broken, self._refuses = None, False, bool(refusal)
        self._advice = self._cause = ""
        late = f"answers take {after_s:.1f} s" if after_s > self.late_after_s else ""
        if late or (refusal and self.quality != LinkQuality.LOST):
            self._in_a_row = 0
        else:
            self._in_time.append(True)
            self._in_a_row += 1
        hold = self._hold if self.quality == LinkQuality.LOST else HOLD_S
        if self.quality == LinkQuality.CLOUD:
            self.tick(now)
        elif self._in_a_row >= self._needed and now - self._since >= hold:
            self._improve(now)
        if refusal or late:
            self._reason = refusal or late

    def missed(self, now: float) -> None:
        """Record that no answer came in time; ``now`` is monotonic, s."""
        self.missed_answers += 1
        self._in_time.append(False)
        self._in_a_row = 0
        known = self._reason if self._broken else f"no answer within {self.late_after_s:.2g} s"
        self._fall_silent(known, now)

    def lost(self, reason: str, now: float, advice: str = "", cause: str = "") -> None:
        """Record that the connection broke or cannot be made; ``advice``: what to do, if known.

        ``cause``: one word for it, if it is known. One cause has several sentences: until an answer
        comes, one with an advice stays, unless another cause, or another advice, is found.
        """
        self._in_a_row = 0
        self._broken = True
        self._fall_silent(reason, now, advice, cause)

    def starting(self, now: float) -> bool:
        """Whether the first answer is not overdue yet."""
        return self._silent_since is not None and now < self._silent_since

    def _fall_silent(self, reason: str, now: float, advice: str = "", cause: str = "") -> None:
        if self._silent_since is None:
            self._silent_since = now
        says_more = advice or not self._advice or cause not in ("", self._cause)
        if says_more and not self.starting(now):
            self._reason, self._advice, self._cause = reason, advice, cause
        self.tick(now)

    def tick(self, now: float) -> None:
        """Change to a worse state, if the events up to ``now`` (monotonic, s) justify it."""
        silent = self._silent_since
        if silent is not None and now - silent >= SILENCE_S:
            self._worsen(LinkQuality.LOST, now)
        elif self._broken or self._refuses or self._in_time.count(False) >= MISSES_OF_LAST[0]:
            self._worsen(LinkQuality.DEGRADED, now)

    def _worsen(self, quality: LinkQuality, now: float) -> None:
        if quality <= self.quality:
            return
        if quality == LinkQuality.LOST:
            again = now - self._left_lost < CALM_S
            self._hold = min(2 * self._hold, MAX_HOLD_S) if again else HOLD_S
        self.quality, self._since = quality, now
        self._needed, self._in_a_row = TIMELY_ANSWERS, 0

    def _improve(self, now: float) -> None:
        if self.quality == LinkQuality.LOST:
            self._left_lost = now
            self.quality, self._reason = LinkQuality.DEGRADED, "answers come again"
        else:
            self.quality = LinkQuality.CLOUD
            self._in_time.clear()
        self._since, self._in_a_row = now, 0


class ReplyWatch:
    """When each request is overdue: after its first message since the last answer. Monotonic times,
    s.

    That is after ``late_after_s``: what it is made with, or more where the slowest tenth of the
    last replies took longer, ``SLOW_BY`` times as long as they, but at most ``MOST_LATE_S``.
    """

    def __init__(self, late_after_s: float) -> None:
        self._least_s = self.late_after_s = late_after_s
        self._took = deque[float](maxlen=REPLIES_REMEMBERED)
        # When each was asked for, and when its next miss counts.
        self._asked: dict[str, tuple[float, float]] = {}

    @property
    def waiting(self) -> bool:
        """Whether any request waits."""
        return bool(self._asked)

    def sent(self, request: str, now: float) -> None:
        """Record that the robot sent a message of this request."""
        self._asked.setdefault(request, (now, now + self.late_after_s))

    def answered(self, request: str, now: float) -> float | None:
        """Record an answer, or a request's end; returns the reply time, s, None if no reply was
        due."""
        asked = self._asked.pop(request, None)
        if asked is None:
            return None
        self._took.append(now - asked[0])
        if len(self._took) >= FEW_REPLIES:
            tail = SLOW_BY * sorted(self._took)[int(0.9 * len(self._took))]
            self.late_after_s = max(self._least_s, min(tail, MOST_LATE_S))
        return now - asked[0]

    def misses(self, now: float) -> int:
        """How many replies became overdue since the last call; one that stays overdue counts
        again."""
        late = {request: at for request, (at, due) in self._asked.items() if now >= due}
        for request, at in late.items():
            self._asked[request] = (at, now + self.late_after_s)
        return len(late)


class LinkMonitor:
    """Feeds a ``LinkState`` with messages sent, received, and probes. Times in s."""

    def __init__(
        self, late_after_s: float, first_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """late_after_s, first_s: see ``LinkState``. clock: monotonic time."""
        self._clock = clock
        self._lock = threading.Lock()
        self.state = LinkState(late_after_s, first_s, clock())
        self._watch = ReplyWatch(late_after_s)
        self._probing = False
        self._next_probe = clock()
        self._refusal = ""  # why the last decode was refused; cleared by a verdict

    @property
    def starting(self) -> bool:
        """Whether the cloud's first answer is not overdue yet."""
        return self.state.starting(self._clock())

    @property
    def report(self) -> LinkReport:
        """The quality and its reason."""
        with self._lock:
            return LinkReport(self.state.quality, self.state.reason)

    def sent(self, request: str, *, last: bool) -> None:
        """Record that the robot sent a message of this request; ``last``: its Close."""
        with self._lock:
            if last:
                self._watch.answered(request, self._clock())
            else:
                self._watch.sent(request, self._clock())

    def received(self, request: str, item: ServerFrame | LinkLost | LinkUp) -> None:
        """Record a message or a change of the link on the request's stream."""
        with self._lock:
            now = self._clock()
            if isinstance(item, LinkLost):
                self.state.lost(item.reason, now)
            elif isinstance(item, LinkUp):
                self.state.tick(now)
            elif (fault := item.fault) is not None and fault.code in NO_ANSWER:
                self._watch.answered(request, now)
                self.state.lost(fault.text, now, cause=NO_ANSWER[fault.code])
            elif item.head.kind != "prediction":
                if fault is not None and fault.code == Code.OVERLOADED:
                    self._refusal = REFUSED.format(fault.text)
                elif item.head.kind == "verdict":
                    self._refusal = ""
                self._answered(self._watch.answered(request, now) or 0.0, now)

    def check(self) -> bool:
        """Whether to probe the cloud now; report the result to ``probed``. Call it a few times a
        second."""
        with self._lock:
            now = self._clock()
            for _ in range(self._watch.misses(now)):
                self.state.missed(now)
            self.state.tick(now)
            due = now >= self._next_probe and not self._watch.waiting and not self._probing
            self._probing |= due
            return due

    def probed(self, problem: str, advice: str, after_s: float, cause: str = "") -> None:
        """Record the probe's result; an empty ``problem``: the cloud answered."""
        with self._lock:
            now = self._clock()
            self._probing = False
            self._next_probe = now + PROBE_S
            if self._watch.waiting:
                return  # a decode measures more than a probe
            if problem:
                self.state.lost(problem, now, advice, cause)
            else:
                self._answered(after_s, now)

    def _answered(self, after_s: float, now: float) -> None:
        self.state.late_after_s = self._watch.late_after_s
        self.state.answered(after_s, now, self._refusal)
        self._next_probe = now + (IDLE_S if self.state.quality == LinkQuality.CLOUD else PROBE_S)
