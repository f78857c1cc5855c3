"""The embedded target for a fleet whose drafts are recorded, so that no drafter eats its cores.

What a draft model would say after the target's own tokens is known once those are: under ``greedy``
no other prefix is ever verified, and what follows a wrong token is rejected with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....cloud.model_thread.sessions import WorkerLimits
from ....cloud.model_thread.worker import Worker
from ....models import EMBEDDED
from ....models.prompt import PromptSpec, Request
from ....share import rules_text
from ..scripted.model import FakeVlm

if TYPE_CHECKING:
    from ....models.vlm import Vlm

LIKELY = 8.0  # the logit of what the draft model says; the others have 0


@dataclass(frozen=True)
class RecordedDecode:
    """A request, the target's own greedy answer, and the draft model's token before each of it."""

    request: Request
    prompt_digest: bytes
    own: tuple[int, ...]
    drafted: tuple[int, ...]

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that are the target's."""
        pairs = zip(self.own, self.drafted, strict=True)
        return sum(one == other for one, other in pairs) / len(self.own)


def record(target: Vlm, drafter: Vlm, spec: PromptSpec, request: Request) -> RecordedDecode:
    """The answer of this request, and the drafts along it, by both models."""
    session = target.open(target.prompt(request, spec))
    own: list[int] = []
    while len(own) < spec.max_tokens and not (own and own[-1] in spec.end_ids):
        own.append(int(session.logits_after(-1).argmax()))
        session.extend(own[-1:])
    prompt = drafter.prompt(request, spec)
    rows = drafter.open(prompt).forward(own[:-1])
    drafted = tuple(int(row.argmax()) for row in rows)
    return RecordedDecode(request, prompt.digest, tuple(own), drafted)


class RecordedDrafter(FakeVlm):
    """What a robot asks of its draft model, out of recordings; a pass takes ``pass_s``."""

    def __init__(
        self,
        recordings: Sequence[RecordedDecode],
        identity: str,
        tokenizer_digest: bytes,
        vocabulary: int,
        pass_s: float,
        sleep: Callable[[float], None],
    ) -> None:
        self.identity, self.tokenizer_digest = identity, tokenizer_digest
        self.vocabulary, self._pass_s, self._sleep = vocabulary, pass_s, sleep
        self._recordings = {recording.request.jpeg: recording for recording in recordings}

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        """The prompt of a recorded request."""
        recording = self._recordings[request.jpeg]
        return SimpleNamespace(digest=recording.prompt_digest, recording=recording)

    def start(self, prompt: Any) -> tuple[RecordedDecode, int]:
        """The beginning of the recorded answer."""
        return prompt.recording, 0

    def after(self, state: tuple[RecordedDecode, int], token: int) -> tuple[RecordedDecode, int]:
        """The next place of the answer, whatever the token is."""
        return (state[0], state[1] + 1)

    def row(self, state: tuple[RecordedDecode, int]) -> np.ndarray:
        """Logits float32 [V]."""
        recording, place = state
        row = np.zeros(self.vocabulary, np.float32)
        row[recording.drafted[min(place, len(recording.drafted) - 1)]] = LIKELY
        return row

    def spend(self, rows: int) -> None:
        """A pass takes its time, whatever its rows."""
        self._sleep(self._pass_s)


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
        """The request of this number, and the target's own answer."""
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
