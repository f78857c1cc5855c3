"""What a server measures of its robots' streams: bytes, refusals, and times by preset.

Cheap enough for each message; read by a scrape in another thread. It knows of no exporter.
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

from ...wire.frames import kind_of
from ...wire.messages import Fault, Opened, ServerMessage, Verdict
from ..model_thread.sessions import RobotStream

# Seconds, as vLLM's: a pass of milliseconds, and a prompt that waited for a minute.
SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
OTHER = "other"  # the preset of a robot that names none, or one of its own


class Histogram:
    """A histogram with the buckets ``SECONDS``; observed from one thread, read from another."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)  # the last: above all bounds
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float, times: int = 1) -> None:
        """Count this value, so many times."""
        place = bisect_left(SECONDS, value)
        with self._lock:
            self._counts[place] += times
            self._sum += value * times

    def read(self) -> tuple[list[int], float]:
        """The cumulative counts, one for each bound and the total, and the sum of the values."""
        with self._lock:
            return list(accumulate(self._counts)), self._sum


@dataclass
class _Progress:
    """Where the decode of a stream is: times in s."""

    asked: float | None = None  # when its Open arrived; None once it has its first token
    last: float | None = None  # when its last verdict was sent
    next: int = 0  # tokens before the next verdict that is new: others are repeated


class Meter:
    """Counts of bytes (on the server's loop) and of verdicts (in the model's thread).

    Robots name their presets: of these only the known ones become a label, so that nobody can make
    ever more of them.
    """

    def __init__(self, presets: Collection[str]) -> None:
        self._presets = frozenset(presets)
        self._progress: WeakKeyDictionary[RobotStream, _Progress] = WeakKeyDictionary()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.opened_streams = 0
        self.slow_readers = 0  # streams that were ended since their robots did not read
        self.faults: Counter[str] = Counter()  # requests, by the fault's code
        self.first_token_s = defaultdict[str, Histogram](Histogram)  # each by preset
        self.between_tokens_s = defaultdict[str, Histogram](Histogram)
        self.queue_s = defaultdict[str, Histogram](Histogram)
        self.verify_s = defaultdict[str, Histogram](Histogram)

    def received(self, stream: RobotStream, data: bytes) -> None:
        """Count the bytes of a robot's message; an ``open`` starts the clock of its decode."""
        self.received_bytes += len(data)
        if kind_of(data) == "open":
            self._progress[stream] = _Progress(asked=time.perf_counter())

    def sent(self, stream: RobotStream, message: ServerMessage) -> None:
        """Count a message that the model's thread sends to the robot."""
        match message:
            case Fault(code):
                self.faults[code] += 1
            case Opened(base=base):
                self._progress.setdefault(stream, _Progress()).next = base.length
            case Verdict():
                self._judged(stream, message)

    def preset_of(self, stream: RobotStream) -> str:
        """The label for the preset that this robot names."""
        session = stream.session
        name = session.opening.preset if session is not None else OTHER
        return name if name in self._presets else OTHER

    def _judged(self, stream: RobotStream, verdict: Verdict) -> None:
        progress = self._progress.setdefault(stream, _Progress())
        if verdict.base.length < progress.next:
            return
        progress.next = verdict.base.length + 1
        preset, now = self.preset_of(stream), time.perf_counter()
        tokens = len(verdict.path) + (verdict.token is not None)
        self.queue_s[preset].observe(verdict.queue_s)
        self.verify_s[preset].observe(verdict.verify_s)
        if progress.asked is not None:
            self.first_token_s[preset].observe(now - progress.asked)
        elif progress.last is not None and tokens:
            self.between_tokens_s[preset].observe((now - progress.last) / tokens, tokens)
        progress.asked, progress.last = None, now
