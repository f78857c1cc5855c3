"""A link that fails: what happens to each message is drawn, or given message by message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from ...wire.codec import decode_server
from ...wire.messages import ClientMessage, Close, Verdict
from .virtual_link import Arrival, VirtualLink

# What can happen to one message. cut: the link breaks at it, and it is lost with all that is in
# flight. moved: the same, and the robot comes back at the other verifier. lost: it alone never
# arrives. repeated: it arrives again later. late: others overtake it.
FAULTS = ("cut", "moved", "lost", "repeated", "late")
NEVER_ON_TIME = ("cut", "moved", "lost", "late")
LATE_S = 0.35


@dataclass(frozen=True)
class Conditions:
    """The conditions of a decode: shares from 0 to 1, times in seconds."""

    delay: float = 0.05
    jitter: float = 0.2
    duplicated: float = 0.0
    reordered: bool = False  # verdicts overtake one another
    cuts: float = 0.0  # how often the link breaks, 1/s
    max_cuts: int = 12  # after these it does not break
    outage: float = 0.5  # at most, after each
    moves: float = 0.0  # share of the random cuts after which the robot is at the other verifier
    restart: float = 0.0  # of the server at a cut: it forgets every session
    cloud_job: float = 0.02  # of a job in the cloud
    draft_pass: float = 0.03  # of a pass of the draft model


class InjectedFaults:
    """The impairments of a link under these conditions.

    faults: what happens to a message, by its number in both directions together.
    """

    def __init__(self, random: Random, conditions: Conditions, faults: Mapping[int, str]) -> None:
        self.messages = 0  # sent so far, both ways
        self.cuts = 0
        self.left_out = False  # whether one was lost or late though the link was up
        self._random, self._conditions, self._faults = random, conditions, faults
        self._up_free = self._down_free = 0.0  # when the last message that is in order arrives

    def start(self, link: VirtualLink) -> None:
        """Plan the next cut, unless there were enough."""
        self._link = link
        if self._conditions.cuts and self.cuts < self._conditions.max_cuts:
            link.timeline.after(self._random.expovariate(self._conditions.cuts), self._cut_anywhere)

    def up(self, message: ClientMessage, size: int, now: float) -> Iterable[Arrival]:
        """In order, but for what comes late."""
        fault = self._fault()
        self.left_out |= fault in ("lost", "late")  # what follows cannot be used without it
        arrivals = self._later(fault, now)
        if fault not in NEVER_ON_TIME:
            for _ in range(1 if isinstance(message, Close) else self._copies()):
                self._up_free = max(self._up_free, now + self._delay())
                arrivals.append(Arrival(self._up_free))
        return arrivals

    def down(self, data: bytes, now: float) -> Iterable[Arrival]:
        """In order, but for what comes late; verdicts even over another stream."""
        fault = self._fault()
        self.left_out |= fault == "lost"
        arrivals = self._later(fault, now)
        if fault in NEVER_ON_TIME:
            return arrivals
        is_verdict = isinstance(decode_server(data), Verdict)
        for _ in range(self._copies() if is_verdict else 1):
            time = now + self._delay()
            if not (is_verdict and self._conditions.reordered):
                time = self._down_free = max(self._down_free, time)
            arrivals.append(Arrival(time, on_any_stream=is_verdict))
        return arrivals

    def closed_at(self, now: float) -> float:
        """After what was sent before."""
        return max(self._up_free, now + self._delay())

    def lost_at(self, now: float) -> float:
        """As late as any message."""
        return now + self._delay()

    def clear(self) -> None:
        """Nothing is in flight."""
        self._up_free = self._down_free = 0.0

    def stream_s(self) -> float:
        """At once."""
        return 0.0

    def notice_s(self) -> float:
        """Meanwhile the robot sends on the new stream without knowing that it is one."""
        return 0.05 * self._random.random()

    def _fault(self) -> str:
        """What happens to the next message."""
        self.messages += 1
        fault = self._faults.get(self.messages - 1, "")
        if fault in ("cut", "moved"):
            self._cut(moved=fault == "moved")
        return fault

    def _later(self, fault: str, now: float) -> list[Arrival]:
        if fault not in ("repeated", "late"):
            return []
        return [Arrival(now + self._delay() + LATE_S, on_any_stream=True)]

    def _delay(self) -> float:
        return self._conditions.delay + self._conditions.jitter * self._random.random()

    def _copies(self) -> int:
        return 2 if self._random.random() < self._conditions.duplicated else 1

    def _cut_anywhere(self) -> None:
        """Between two messages."""
        moves = self._conditions.moves
        self._cut(moved=moves > 0 and self._random.random() < moves)

    def _cut(self, *, moved: bool) -> None:
        link = self._link
        if not link.is_up or not link.is_used:
            return
        self.cuts += 1
        link.cut()
        if self._random.random() < self._conditions.restart:
            link.cloud.restart()
        outage = self._conditions.outage * self._random.random()
        link.timeline.after(outage, partial(self._restore, moved))

    def _restore(self, moved: bool) -> None:
        self._link.restore(moved=moved)
        self._link.timeline.after(0.1, lambda: self.start(self._link))
