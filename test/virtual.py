"""One decode in virtual time: the robot's decoder, the cloud's worker and a link between them.

The worker, the codec and both state machines are the real ones; the models are seeded functions of
the prefix, and a `random.Random` decides what the link does to each message.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np

from edge_cloud_spec.cloud.sessions import Stream, WorkerLimits
from edge_cloud_spec.cloud.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset, load_preset
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import (
    Action,
    Drafted,
    Emit,
    Event,
    Finish,
    LinkLost,
    LinkUp,
    Prepare,
    PromptReady,
    Received,
    Send,
    Tick,
    Work,
)
from edge_cloud_spec.models.drafter import Drafter
from edge_cloud_spec.models.image import ImageSpec
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.models.scripted import ScriptedSession
from edge_cloud_spec.wire.codec import decode_server, encode_client
from edge_cloud_spec.wire.messages import Close, Open, Verdict, spec_digest

VOCABULARY = 7
END = 0
MAX_TOKENS = 14
IMAGE = ImageSpec(784, 784, 14, 2, 2)


def spec_of(max_tokens: int = MAX_TOKENS) -> PromptSpec:
    return PromptSpec("template", "rules", IMAGE, (END,), max_tokens, "toy", VOCABULARY)


@cache
def _row(seed: int, prefix: tuple[int, ...]) -> np.ndarray:
    row = np.random.default_rng((seed, 5, *prefix)).standard_normal(VOCABULARY)
    row[END] -= 1.5
    return row.astype(np.float32)


class ToyVlm:
    """Logits are a function of seed and prefix; ``stray`` is how far a drafter is off."""

    identity = "toy"
    tokenizer_digest = b"toy tokenizer"

    def __init__(self, seed: int, stray: float = 0.0) -> None:
        self.seed, self.stray = seed, stray

    def logits(self, prefix: tuple[int, ...]) -> np.ndarray:
        row = _row(self.seed, prefix)
        return row + np.float32(self.stray) * _row(self.seed + 1, prefix) if self.stray else row

    def crop(self, vocabulary: int) -> None:
        assert vocabulary == VOCABULARY

    def prompt(self, request: Any, spec: PromptSpec) -> Any:
        @dataclass
        class _Prompt:
            digest: bytes

        return _Prompt(hashlib.blake2b(request.instruction.encode(), digest_size=16).digest())

    def open(self, prompt: Any) -> ScriptedSession:
        return ScriptedSession(self, ())

    def after(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        return (*state, token)

    def row(self, state: tuple[int, ...]) -> np.ndarray:
        return self.logits(state)

    def spend(self, rows: int) -> None:
        """A pass costs nothing here; the link and the worker have their times."""


def toy_worker(limits: WorkerLimits | None = None) -> Worker:
    """A worker whose answers have up to 60 tokens."""
    return Worker(ToyVlm(1), spec_of(60), ToyVlm(1, 0.5), limits)  # type: ignore[arg-type]


def own_answer(model: ToyVlm, policy: SamplingPolicy, longest: int) -> tuple[list[int], str]:
    """The target's own tokens under greedy or coupled, and why they end."""
    tokens: list[int] = []
    while len(tokens) < longest:
        tokens.append(coupled_token(model.logits(tuple(tokens)), policy, len(tokens)))
        if tokens[-1] == END:
            return tokens, "end"
    return tokens, "length"


@dataclass(frozen=True)
class Weather:
    """What the link does: shares of 1, times in seconds."""

    delay: float = 0.05
    jitter: float = 0.2
    duplicated: float = 0.0
    reordered: bool = False  # verdicts overtake one another
    losses: float = 0.0  # how often the link breaks, 1/s
    most_losses: int = 12  # then it holds
    outage: float = 0.5
    restart: float = 0.0  # of the server at a loss: it forgets every session
    work: float = 0.02  # what the cloud takes for a job


class Decode:
    """The whole of it; ``run`` goes on until the robot is finished."""

    def __init__(
        self,
        random: Random,
        preset: Preset | str,
        rule: str = "greedy",
        policy: SamplingPolicy = GREEDY,
        *,
        weather: Weather = Weather(),
        seed: int = 0,
        stray: float = 0.5,
        known_spec: bytes | None = None,
        patience: float = 1e6,
        max_tokens: int = 0,
        spec: PromptSpec | None = None,
    ) -> None:
        self.preset = load_preset(preset) if isinstance(preset, str) else preset
        self.spec = spec or spec_of()
        self.target, self.draft_model = ToyVlm(seed), ToyVlm(seed, stray)
        self.weather, self.random = weather, random
        self.now = 0.0
        self.emitted: list[int] = []
        self.finish: Finish | None = None
        self.verdicts_heard = 0
        self.losses = 0
        self.sent: list[object] = []
        known = self.spec.to_bytes() if known_spec is None else known_spec
        payload = self.preset.payload_of(rule)
        self.opening = Open(
            7,
            "find",
            b"jpeg",
            "action first",
            policy,
            rule,
            payload,
            ToyVlm.tokenizer_digest,
            "toy draft",
            spec_digest(known),
            max_tokens,
            self.preset.draft_length,
            split=self.preset.split_of(rule),
            replacement=self.preset.replacement,
        )
        self.decoder = EdgeDecoder(self.opening, self.preset, patience)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._recipe = self.preset.recipe(rule, policy)
        self._drafter: Drafter | None = None
        self._drafting = False
        self._up = True
        self._uplink_free = self._downlink_free = 0.0
        self._known = known
        self._serve()
        self._new_stream()

    @property
    def worker(self) -> Worker:
        return self._worker

    def own_answer(self) -> tuple[list[int], str]:
        longest = min(self.opening.max_tokens or self.spec.max_tokens, self.spec.max_tokens)
        return own_answer(self.target, self.opening.policy, longest)

    def run(self) -> Finish:
        self._act(self.decoder.start(self.now, self._known))
        if self.weather.losses:
            self._at(self.random.expovariate(self.weather.losses), self._lose)
        while self.finish is None:
            assert self._events or self.decoder.deadline is not None, "nothing will ever happen"
            deadline = self.decoder.deadline
            if not self._events or (deadline is not None and deadline < self._events[0][0]):
                assert deadline is not None
                self.now = max(self.now, deadline)
                self.happen(Tick())
            else:
                self.now, _, job = heapq.heappop(self._events)
                job()
            assert self.now < 1e7
        return self.finish

    def happen(self, event: Event) -> None:
        """An event at the robot."""
        if isinstance(event, Received) and isinstance(event.message, Verdict):
            self.verdicts_heard += self.finish is None
        self._act(self.decoder.handle(event, self.now))

    def at(self, delay: float, job: Callable[[], None]) -> None:
        self._at(delay, job)

    # The robot

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(message):
                    self.sent.append(message)
                    self._send_up(encode_client(message), isinstance(message, Close))
                case Prepare(data):
                    self._at(0.1, lambda data=data: self._prepare(data))
                case Work(verified, branches):
                    assert self._drafter is not None
                    self._drafter.follow(verified)
                    self._drafter.want(branches)
                    self._draft_next()
                case Emit(position, tokens):
                    assert position == len(self.emitted), "emitted twice, or a gap"
                    assert self.finish is None
                    self.emitted += tokens
                case Finish():
                    assert self.finish is None
                    self.finish = action

    def _prepare(self, data: bytes) -> None:
        spec = PromptSpec.from_bytes(data) if data else self.spec
        request = self.opening
        prompt = self.draft_model.prompt(request, spec)
        told = self.preset.speculation
        self._drafter = Drafter(
            self.draft_model.open(prompt),  # type: ignore[arg-type]
            self._recipe,
            (END,),
            guesses=told.guesses,
        )
        self.happen(PromptReady(prompt.digest, spec_digest(data), spec.end_ids, spec.max_tokens))

    def _draft_next(self) -> None:
        """A pass takes its time; what is wanted when it ends is what it worked on."""

        def step() -> None:
            self._drafting = False
            assert self._drafter is not None
            if self.finish is not None or self._drafter.idle:
                return
            for one in self._drafter.step(self.decoder.width):
                self.happen(Drafted(one.branch, one.level.tokens, one.whole, one.done))
            self._draft_next()

        assert self._drafter is not None
        if not self._drafting and not self._drafter.idle:
            self._drafting = True
            self._at(0.03, step)

    # The link

    def _delay(self) -> float:
        return self.weather.delay + self.weather.jitter * self.random.random()

    def _copies(self) -> int:
        return 2 if self.random.random() < self.weather.duplicated else 1

    def _send_up(self, data: bytes, once: bool) -> None:
        if not self._up:
            return
        stream = self._stream
        for _ in range(1 if once else self._copies()):
            self._uplink_free = max(self._uplink_free, self.now + self._delay())
            self._when(self._uplink_free, lambda: self._arrive_up(stream, data))

    def _arrive_up(self, stream: Stream, data: bytes) -> None:
        if stream is self._stream and self._up:
            self._worker.receive(stream, data)
            self._at(0.0, self._work)

    def _send_down(self, stream: Stream, data: bytes | None) -> None:
        if data is None or stream is not self._stream or not self._up:
            return
        message = decode_server(data)
        if not isinstance(message, Verdict):
            self._downlink_free = max(self._downlink_free, self.now + self._delay())
            self._when(self._downlink_free, lambda: self._arrive_down(stream, message))
            return
        for _ in range(self._copies()):  # a verdict may come late, even over another stream
            time = self.now + self._delay()
            if not self.weather.reordered:
                time = self._downlink_free = max(self._downlink_free, time)
            self._when(time, lambda: self.happen(Received(message)))

    def _arrive_down(self, stream: Stream, message: Any) -> None:
        if stream is self._stream and self._up:
            self.happen(Received(message))

    def _lose(self) -> None:
        if self.finish is not None:
            return
        self.losses += 1
        self._up = False
        gone = self._stream
        self.happen(LinkLost("weather"))
        self._at(self._delay(), lambda: self._leave(self._worker, gone))
        if self.random.random() < self.weather.restart:
            self._serve()
        self._at(self.weather.outage * self.random.random(), self._restore)

    def _leave(self, worker: Worker, stream: Stream) -> None:
        worker.leave(stream)
        self._at(0.0, self._work)

    def _restore(self) -> None:
        self._new_stream()
        self._up = True
        self._at(0.05 * self.random.random(), lambda: self.happen(LinkUp()))
        if self.losses < self.weather.most_losses:
            self._at(0.1 + self.random.expovariate(self.weather.losses), self._lose)

    def _new_stream(self) -> None:
        self._uplink_free = self._downlink_free = self.now
        self._stream = Stream(lambda data: self._send_down(stream, data))
        stream = self._stream

    # The cloud

    def _serve(self) -> None:
        self._worker = Worker(
            self.target,  # type: ignore[arg-type]
            self.spec,
            ToyVlm(self.target.seed, self.draft_model.stray),  # type: ignore[arg-type]
            WorkerLimits(sessions=1000),
            clock=lambda: self.now,
        )

    def _work(self) -> None:
        if self._worker.pending:
            self._worker.run_one()
            self._at(self.weather.work, self._work)

    def _at(self, delay: float, job: Callable[[], None]) -> None:
        self._when(self.now + delay, job)

    def _when(self, time: float, job: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), job))
