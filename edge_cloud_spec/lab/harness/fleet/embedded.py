"""The embedded target for a fleet whose drafts are recorded, so that no drafter eats its cores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....cloud.model_thread.sessions import WorkerLimits
from ....cloud.model_thread.worker import Worker
from ....models import EMBEDDED
from ....models.prompt import PromptSpec, Request
from ....share import rules_text
from .recording import RecordedDecode, RecordedDrafter, record

if TYPE_CHECKING:
    from ....models.vlm import Vlm

MAX_TOKENS = 48


@dataclass(frozen=True)
class RecordedRobots:
    """What the robots' processes need to replay: recordings, and what names the draft model."""

    spec: bytes
    identity: str
    tokenizer_digest: bytes
    vocabulary: int
    pass_s: float
    recordings: tuple[RecordedDecode, ...]


def record_robots(requests: Sequence[Request]) -> RecordedRobots:
    """Record answers and drafts of the embedded pair."""
    from ....models.load import load

    target, drafter = (load(EMBEDDED / name, threads=1) for name in ("target", "drafter"))
    spec = target.spec(rules_text(), MAX_TOKENS)
    for model in (target, drafter):
        model.crop(spec.vocabulary)
    recordings = tuple(record(target, drafter, spec, request) for request in requests)
    session = drafter.open(drafter.prompt(requests[0], spec))
    started = time.perf_counter()
    for token in recordings[0].own:
        session.extend([token])
        session.logits_after(-1)
    pass_s = (time.perf_counter() - started) / len(recordings[0].own)
    return RecordedRobots(
        spec.to_bytes(),
        drafter.identity,
        drafter.tokenizer_digest,
        spec.vocabulary,
        pass_s,
        recordings,
    )


class RecordedAnswers:
    """One robot's draft model and requests: the recorded ones from ``first`` on, or only some."""

    def __init__(self, robots: RecordedRobots, first: int, count: int = 0) -> None:
        """count: how many requests it repeats; 0: all."""
        self.spec = PromptSpec.from_bytes(robots.spec)
        self._recordings, self._first = robots.recordings, first
        self._count = count or len(robots.recordings)
        self.draft_model = RecordedDrafter(
            robots.recordings,
            robots.identity,
            robots.tokenizer_digest,
            robots.vocabulary,
            robots.pass_s,
            time.sleep,
        )

    def next(self, number: int) -> tuple[Request, tuple[int, ...]]:
        """See ``Answers``."""
        place = self._first + number % self._count
        recording = self._recordings[place % len(self._recordings)]
        return recording.request, recording.own


def embedded_worker(limits: WorkerLimits, with_drafter: bool = False) -> Worker:
    """The embedded target's worker, on one thread of torch."""
    from ....models.load import load

    target = load(EMBEDDED / "target", threads=1)
    drafter = load(EMBEDDED / "drafter", threads=1) if with_drafter else None
    return Worker(target, target.spec(rules_text(), MAX_TOKENS), drafter, limits)


def session_bytes(requests: Sequence[Request], target: Vlm | None = None) -> int:
    """The most bytes that a session of these requests takes in the embedded target's caches."""
    from ....models.kv_memory import KvMemory
    from ....models.load import load

    target = target or load(EMBEDDED / "target", threads=1)
    spec = target.spec(rules_text(), MAX_TOKENS)
    most = 0
    for request in requests:
        memory = KvMemory()
        target.use_memory(memory)
        session = target.open(target.prompt(request, spec))
        session.extend([0] * MAX_TOKENS)
        session.forward([0] * 16)
        most = max(most, memory.peak)
    return most
