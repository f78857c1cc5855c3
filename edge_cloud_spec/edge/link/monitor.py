"""The state of the link as the bridge measures it: on decodes, and by a probe where there are none.

For any thread; it holds its own lock, and calls nobody back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...wire.codec import decode_server
from ...wire.frames import server_kind_of
from ...wire.messages import Fault, WireError
from ..events import LinkLost, LinkUp
from .reply_watch import ReplyWatch
from .state import LinkLimits, LinkQuality, LinkState

PROBE_S = 1.0  # between two probes of a link that is not good
IDLE_S = 5.0  # without an answer, after which a good one is probed
# Faults that the robot's own end of the stream makes: no answers of the cloud.
NO_ANSWER = ("unauthenticated", "not_a_verifier", "link_failed")


class LinkMonitor:
    """Feeds a ``LinkState`` with what the bridge sends, receives and probes. Times in s."""

    def __init__(self, limits: LinkLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: steady time."""
        self._clock = clock
        self._lock = threading.Lock()
        self._state = LinkState(limits, clock())
        self._watch = ReplyWatch(limits.deadline_s)
        self._probing = False
        self._next_probe = clock()
        self._advice = ""

    @property
    def quality(self) -> LinkQuality:
        """The state."""
        return self._state.quality

    @property
    def reason(self) -> str:
        """Why it is not good; empty where it is."""
        return self._state.reason

    @property
    def advice(self) -> str:
        """What to do about it, where a probe found that out; else empty."""
        return self._advice if self._state.quality else ""

    @property
    def starting(self) -> bool:
        """Whether nothing is wrong yet with a cloud that did not answer."""
        return self._state.starting(self._clock())

    @property
    def missed_answers(self) -> int:
        """Deadlines that passed without an answer."""
        return self._state.missed_answers

    @property
    def text(self) -> str:
        """The topic ``link_state``: the state, and why it is not good."""
        with self._lock:
            return f"{self._state.quality} {self._state.reason}".strip()

    def sent(self, request: str, *, last: bool) -> None:
        """The robot sent a message of this request; ``last``: its Close."""
        with self._lock:
            if last:
                self._watch.forget(request)
            else:
                self._watch.sent(request, self._clock())

    def received(self, request: str, item: bytes | LinkLost | LinkUp) -> None:
        """The request's stream received this."""
        with self._lock:
            now = self._clock()
            if isinstance(item, LinkLost):
                self._state.lost(item.reason, now)
            elif isinstance(item, LinkUp):
                self._state.up(now)
            elif reason := _link_fault(item):
                self._watch.forget(request)
                self._state.lost(reason, now)
            elif server_kind_of(item) != "prediction":
                after_s = self._watch.answered(request, now)
                self._answered(after_s or 0.0, now)

    def check(self) -> bool:
        """Look at the time, some times a second; whether to probe the cloud now (``probed``)."""
        with self._lock:
            now = self._clock()
            for _ in range(self._watch.misses(now)):
                self._state.missed(now)
            self._state.tick(now)
            due = now >= self._next_probe and not self._watch.waiting and not self._probing
            self._probing |= due
            return due

    def probed(self, problem: str, advice: str, after_s: float) -> None:
        """The probe that ``check`` asked for found this; an empty ``problem``: it answered."""
        with self._lock:
            now = self._clock()
            self._probing = False
            self._next_probe = now + PROBE_S
            if self._watch.waiting:
                return  # a decode measures more than a probe does
            self._advice = advice
            if problem:
                self._state.lost(problem, now)
            else:
                self._answered(after_s, now)

    def _answered(self, after_s: float, now: float) -> None:
        self._state.answered(after_s, now)
        self._next_probe = now + (PROBE_S if self._state.quality else IDLE_S)


def _link_fault(data: bytes) -> str:
    """Why the cloud cannot be used, where this is the robot's own report of that; else empty."""
    if server_kind_of(data) != "fault":
        return ""
    try:
        fault = decode_server(data)
    except WireError:
        return ""
    return fault.text if isinstance(fault, Fault) and fault.code in NO_ANSWER else ""
