"""The history of a run, assembled from the messages of its topics. Imports no ROS.

Times are seconds since the instruction was published, on the observing process's clock.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar

from edge_cloud_spec.nav.free_space import NOTHING_SEEN, FreeSpace
from edge_cloud_spec.nav.status import GoalStatus, NavCode, NavigatorStatus
from edge_cloud_spec.observe.decision import ShownDecision, ShownRound
from edge_cloud_spec.observe.word_log import OPEN_KIND, WordLog

OPENED_KIND, FAULT_KIND, LINK_LOST_KIND = 1, 3, 4  # kinds of the message Verdict
STATS = (
    *("preset", "rule", "seed", "tokens", "rounds", "drafted", "accepted", "stale"),
    *("finish_reason", "up_bytes", "down_bytes", "tokens_per_second"),
    *("draft_ms", "verify_ms", "link_ms", "total_ms"),
)


@dataclass
class Decision(ShownDecision):
    """One frame, its answer, and the motion that followed."""

    number: int
    request: str
    begun: float
    stamp: int = 0  # of the frame, ns
    seed: int = 0  # of its sampling
    instruction: str = ""
    preset: str = ""
    opening: bytes = b""  # the serialized Open; empty where no cloud was asked
    free_space: FreeSpace = NOTHING_SEEN  # when its frame was taken
    pose: dict[str, Any] = field(default_factory=dict)  # the simulator's outcome as it began
    answer: str = ""
    ended: float = math.nan
    action: str = ""
    acting: float = math.nan  # when the action began
    where: dict[str, Any] = field(default_factory=dict)  # the simulator's outcome at that time
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether both its end and its statistics have arrived."""
        return bool(self.finish and self.stats)


@dataclass(frozen=True)
class RoundSettled:
    """A round's verdict and words have arrived."""

    decision: Decision
    round: ShownRound


@dataclass(frozen=True)
class ActionStarted:
    """The navigator began an action."""

    decision: Decision


@dataclass(frozen=True)
class DecisionFinished:
    """A decision's answer is complete and its statistics have arrived."""

    decision: Decision


@dataclass(frozen=True)
class ProblemReported:
    """A node reported a problem."""

    text: str


RunEvent = RoundSettled | ActionStarted | DecisionFinished | ProblemReported


class RunLog(WordLog[Decision]):
    """The run so far; ``on_message`` extends it. Read it under the observer's lock, or after the
    run.

    ``keep``: how many of the newest decisions (and entries of other lists) are kept.
    """

    LATEST: ClassVar = {
        **WordLog.LATEST,
        "instruction_status": GoalStatus.read,
        "run_info": lambda message: message.data,
    }

    def __init__(self, keep: int = sys.maxsize) -> None:
        super().__init__(self._begun, keep)
        self._keep, self._count = keep, 0
        self._events: list[RunEvent] = []  # of the message that is being taken in
        self.outcomes: list[tuple[float, dict[str, Any]]] = []
        self.frames: list[tuple[float, bytes]] = []
        self.opened: list[bytes] = []  # payloads of the cloud's Opened messages
        self.run_info = ""  # what the drafter says of models, preset and rule, as JSON
        self.problem = ""  # the last fault of the cloud, or loss of the link to it
        self.instruction_status: GoalStatus | None = None
        self.statuses: list[tuple[float, NavigatorStatus]] = []
        self._handlers |= {
            "nav_command": self._on_command,
            "nav_status": self._on_nav_status,
            "decode_stats": self._on_stats,
            "sim/outcome": self._on_outcome,
            "camera/image_raw/compressed": self._on_frame,
        }

    @property
    def outcome(self) -> dict[str, Any]:
        """The simulator's latest outcome; empty before the first."""
        return self.outcomes[-1][1] if self.outcomes else {}

    def on_message(self, topic: str, message: Any, now: float) -> list[RunEvent]:
        """Add a message of ``topic`` (a relative name) received at ``now``; returns new run
        events."""
        self._events = []
        self.hear(topic, message, now)
        entries: tuple[list[Any], ...] = (self.outcomes, self.frames, self.opened, self.statuses)
        for entry in entries:
            del entry[: -self._keep]
        return self._events

    def _begun(self, message: Any, now: float) -> Decision:
        self._count, stamp = self._count + 1, message.header.stamp
        return Decision(
            self._count,
            message.request_id,
            now,
            stamp=stamp.sec * 10**9 + stamp.nanosec,
            pose=dict(self.outcome),
        )

    def _on_request(self, message: Any, now: float) -> None:
        super()._on_request(message, now)
        if message.kind == OPEN_KIND:
            decision = self._decision(message, now)
            decision.seed, decision.preset = message.seed, message.preset
            decision.opening = bytes(message.payload)
            if hasattr(message, "free_space"):  # not of an earlier version, in its bag
                decision.free_space = FreeSpace.read(message.free_space)

    def _on_verdict(self, message: Any, now: float) -> None:
        if message.kind in (FAULT_KIND, LINK_LOST_KIND):
            self.problem = message.text
            self._events.append(ProblemReported(message.text))
        if message.kind == OPENED_KIND:
            self.opened.append(bytes(message.payload))
        super()._on_verdict(message, now)

    def _on_round(self, decision: Decision, round_: ShownRound) -> None:
        if round_.complete:
            self._events.append(RoundSettled(decision, round_))

    def _on_words(self, message: Any, now: float) -> None:
        decision = self._decision(message, now)
        decision.answer, decision.instruction = message.answer, message.instruction
        super()._on_words(message, now)
        if message.finished:
            decision.ended = now
            self._tell_end(decision)

    def _tell_end(self, decision: Decision) -> None:
        if decision.complete:
            self._events.append(DecisionFinished(decision))

    def _on_command(self, message: Any, now: float) -> None:
        decision = self._decision(message, now)
        decision.action, decision.acting = message.text, now
        decision.where = dict(self.outcome)
        self._events.append(ActionStarted(decision))

    def _on_stats(self, message: Any, now: float) -> None:
        decision = self._decision(message, now)
        decision.seed, decision.preset = message.seed, message.preset
        decision.stats = {name: getattr(message, name) for name in STATS}
        self._tell_end(decision)

    def _on_nav_status(self, message: Any, now: float) -> None:
        assert self.nav_status is not None
        self.statuses.append((now, self.nav_status))
        if self.nav_status.code is NavCode.REFUSED:
            self._events.append(ProblemReported(f"the navigator {self.nav_status.detail}"))

    def _on_outcome(self, message: Any, now: float) -> None:
        self.outcomes.append((now, json.loads(message.data)))

    def _on_frame(self, message: Any, now: float) -> None:
        self.frames.append((now, bytes(message.data)))
