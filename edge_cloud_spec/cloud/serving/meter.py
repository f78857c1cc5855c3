"""Counters of a server's streams: bytes, refusals, and times by preset.

Cheap enough to update at each message; a scrape in another thread reads them. Knows no exporter.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate
from weakref import WeakKeyDictionary

from ...wire.frames import ClientFrame
from ...wire.messages import Fault, Opened, ServerMessage, Verdict
from ..model_thread.sessions import RobotStream

# Bucket bounds in seconds, as vLLM's: from passes of milliseconds to prompts that wait a minute.
SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
OTHER = "other"  # label for unknown or missing presets


class Histogram:
    """A histogram with bucket bounds ``SECONDS``; written by one thread, read by another."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)  # the last bucket is above all bounds
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value ``times`` times."""
        place = bisect_left(SECONDS, value)
        with self._lock:
            self._counts[place] += times
            self._sum += value * times

    def read(self) -> tuple[list[int], float]:
        """Cumulative counts per bucket and the total, and the sum of the values."""
        with self._lock:
            return list(accumulate(self._counts)), self._sum


@dataclass
class _Progress:
    """The progress of a stream's decode; times in s."""

    asked: float | None = None  # arrival of its Open; None after its first token
    last: float | None = None  # when the last verdict was sent
    next: int = 0  # tokens before the next new verdict, to recognize repeated ones


class Meter:
    """Counts bytes (on the server's loop) and verdicts (in the model's thread).

    Robots choose the preset's name, so only known presets become a label; others share one.
    """

    def __init__(self, presets: Collection[str]) -> None:
        self._presets = frozenset(presets)
        self._progress: WeakKeyDictionary[RobotStream, _Progress] = WeakKeyDictionary()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.opened_streams = 0
        self.slow_readers = 0  # streams ended because their robots did not read
        self.faults: Counter[str] = Counter()  # failed requests, by code
        self._lock = threading.Lock()  # while a fault is counted
        self.first_token_s = defaultdict[str, Histogram](Histogram)  # by preset
        self.between_tokens_s = defaultdict[str, Histogram](Histogram)
        self.queue_s = defaultdict[str, Histogram](Histogram)
        self.verify_s = defaultdict[str, Histogram](Histogram)

    def received(self, stream: RobotStream, frame: ClientFrame) -> None:
        """A robot's message has arrived; ``open`` starts its decode's timer."""
        if frame.head.kind == "open":
            self._progress[stream] = _Progress(asked=time.perf_counter())

    def sent(self, stream: RobotStream, message: ServerMessage) -> None:
        """Count a message that is sent to the robot: a fault from any thread, the rest from the
        model's."""
        match message:
            case Fault(code):
                with self._lock:
                    self.faults[code] += 1
            case Opened(base=base):
                self._progress.setdefault(stream, _Progress()).next = base.length
            case Verdict():
                self._count_verdict(stream, message)

    def _count_verdict(self, stream: RobotStream, verdict: Verdict) -> None:
        progress = self._progress.setdefault(stream, _Progress())
        if verdict.base.length < progress.next:
            return
        progress.next = verdict.base.length + 1
        name = OTHER if stream.session is None else stream.session.opening.preset
        preset = name if name in self._presets else OTHER
        now = time.perf_counter()
        tokens = len(verdict.path) + (verdict.token is not None)
        self.queue_s[preset].observe(verdict.queue_s)
        self.verify_s[preset].observe(verdict.verify_s)
        if progress.asked is not None:
            self.first_token_s[preset].observe(now - progress.asked)
        elif progress.last is not None and tokens:
            self.between_tokens_s[preset].observe((now - progress.last) / tokens, tokens)
        progress.asked, progress.last = None, now
