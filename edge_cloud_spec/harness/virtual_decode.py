"""One decode in virtual time: the robot's decoder, the cloud's worker and a link that fails.

The worker, the codec and both state machines are the real ones; the models are seeded functions of
the prefix. What the link does to each message is drawn by a `random.Random`, or told message by
message.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from ..cloud.sessions import RobotStream, WorkerLimits
from ..cloud.verification import Verification
from ..cloud.worker import Worker
from ..decoding.policy import GREEDY, SamplingPolicy
from ..decoding.preset import Preset
from ..edge.decoder import EdgeDecoder
from ..edge.events import (
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
from ..models.drafter import Drafter
from ..models.prompt import PromptSpec
from ..presets import load_preset
from ..wire.codec import decode_server, encode_client
from ..wire.messages import Close, Open, Opened, Verdict, spec_digest
from .toy import END, ToyVlm, own_answer, spec_of

# What can happen to one message. cut: the link breaks at it, and it is lost with all that is on its
# way. lost: it alone never comes. repeated: it comes again later. late: others overtake it.
FAULTS = ("cut", "lost", "repeated", "late")
LATE_S = 0.35
MAX_EVENTS = 20_000  # of one decode


class Hung(Exception):
    """Nothing will ever happen, or it goes on for ever."""


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
    draft: float = 0.03  # what a pass of the draft model takes


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
        faults: Mapping[int, str] | None = None,
    ) -> None:
        """faults: what happens to a message, by its number in both directions together."""
        self.preset = load_preset(preset) if isinstance(preset, str) else preset
        self.spec = spec or spec_of()
        vocabulary = self.spec.vocabulary
        self.target = ToyVlm(seed, vocabulary=vocabulary)
        self.draft_model = ToyVlm(seed, stray, vocabulary)
        self.weather, self.random = weather, random
        self.messages = 0  # sent so far, both ways
        self.left_out = False  # whether one is missing in its place though the link stands
        self._faults = faults or {}
        self.now = 0.0
        self.emitted: list[int] = []
        self.finish: Finish | None = None
        self.verdicts_heard = 0
        self.session = ""  # as the robot heard it
        self.losses = 0
        self.sent: list[object] = []
        self.verifications: dict[str, Verification] = {}  # that the cloud held, by session
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
        self._proposal = self.preset.proposal(rule, policy)
        self._drafter: Drafter | None = None
        self._drafting = False
        self._up = True
        self._uplink_free = self._downlink_free = 0.0
        self._known = known
        self._streams: list[RobotStream] = []
        self._serve()
        self._new_stream()

    @property
    def worker(self) -> Worker:
        return self._worker

    @property
    def sessions(self) -> list[Verification]:
        """The cloud's side: of the session that the robot heard of, or of all that there were."""
        named = self.verifications.get(self.session)
        return list(self.verifications.values()) if named is None else [named]

    def own_answer(self) -> tuple[list[int], str]:
        longest = min(self.opening.max_tokens or self.spec.max_tokens, self.spec.max_tokens)
        return own_answer(self.target, self.opening.policy, longest)

    def run(self) -> Finish:
        """Go on until the robot is finished; raises Hung."""
        self._act(self.decoder.start(self.now, self._known))
        if self.weather.losses:
            self._at(self.random.expovariate(self.weather.losses), self._lose)
        for _ in range(MAX_EVENTS):
            if self.finish is not None:
                return self.finish
            deadline = self.decoder.deadline
            if not self._events and deadline is None:
                raise Hung("nothing will ever happen")
            if not self._events or (deadline is not None and deadline < self._events[0][0]):
                assert deadline is not None
                self.now = max(self.now, deadline)
                self.happen(Tick())
            else:
                self.now, _, job = heapq.heappop(self._events)
                job()
        raise Hung(f"no end after {MAX_EVENTS} events")

    def settle(self) -> None:
        """After the end: what is on its way arrives, and the cloud does what it has to do."""
        while self._events:
            self.now, _, job = heapq.heappop(self._events)
            job()

    def happen(self, event: Event) -> None:
        """An event at the robot."""
        if isinstance(event, Received) and self.finish is None:
            self.verdicts_heard += isinstance(event.message, Verdict)
            if isinstance(event.message, Opened):
                self.session = event.message.session
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
            self._proposal,
            (END,),
            guesses=told.guesses,
        )
        self.happen(
            PromptReady(
                prompt.digest, spec_digest(data), spec.end_ids, spec.max_tokens, spec.vocabulary
            )
        )

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
            self._at(self.weather.draft, step)

    # The link

    def _fault(self) -> str:
        """What happens to the next message."""
        self.messages += 1
        return self._faults.get(self.messages - 1, "")

    def _delay(self) -> float:
        return self.weather.delay + self.weather.jitter * self.random.random()

    def _copies(self) -> int:
        return 2 if self.random.random() < self.weather.duplicated else 1

    def _send_up(self, data: bytes, once: bool) -> None:
        if not self._up:
            return
        stream, fault = self._stream, self._fault()
        if fault == "cut":
            self._lose()
        elif fault in ("repeated", "late"):
            self._at(self._delay() + LATE_S, lambda: self._arrive_up(self._stream, data))
        self.left_out |= fault in ("lost", "late")  # what follows it means nothing without it
        if fault in ("cut", "lost", "late"):
            return
        for _ in range(1 if once else self._copies()):
            self._uplink_free = max(self._uplink_free, self.now + self._delay())
            self._when(self._uplink_free, lambda: self._arrive_up(stream, data))

    def _arrive_up(self, stream: RobotStream, data: bytes) -> None:
        if stream is self._stream and self._up:
            self._worker.receive(stream, data)
            self._at(0.0, self._work)

    def _send_down(self, stream: RobotStream, data: bytes | None) -> None:
        if data is None or stream is not self._stream or not self._up:
            return
        message = decode_server(data)
        fault = self._fault()
        if fault == "cut":
            self._lose()
        elif fault in ("repeated", "late"):
            self._at(self._delay() + LATE_S, lambda: self.happen(Received(message)))
        self.left_out |= fault == "lost"
        if fault in ("cut", "lost", "late"):
            return
        if not isinstance(message, Verdict):
            self._downlink_free = max(self._downlink_free, self.now + self._delay())
            self._when(self._downlink_free, lambda: self._arrive_down(stream, message))
            return
        for _ in range(self._copies()):  # a verdict may come late, even over another stream
            time = self.now + self._delay()
            if not self.weather.reordered:
                time = self._downlink_free = max(self._downlink_free, time)
            self._when(time, lambda: self.happen(Received(message)))

    def _arrive_down(self, stream: RobotStream, message: Any) -> None:
        if stream is self._stream and self._up:
            self.happen(Received(message))

    def _lose(self) -> None:
        if self.finish is not None or not self._up:
            return
        self.losses += 1
        self._up = False
        gone = self._stream
        self._at(0.0, lambda: self.happen(LinkLost("weather")))
        self._at(self._delay(), lambda: self._leave(self._worker, gone))
        if self.random.random() < self.weather.restart:
            self._serve()
        self._at(self.weather.outage * self.random.random(), self._restore)

    def _leave(self, worker: Worker, stream: RobotStream) -> None:
        worker.leave(stream)
        self._at(0.0, self._work)

    def _restore(self) -> None:
        self._new_stream()
        self._up = True
        self._at(0.05 * self.random.random(), lambda: self.happen(LinkUp()))
        if self.weather.losses and self.losses < self.weather.most_losses:
            self._at(0.1 + self.random.expovariate(self.weather.losses), self._lose)

    def _new_stream(self) -> None:
        self._uplink_free = self._downlink_free = self.now
        self._stream = RobotStream(lambda data: self._send_down(stream, data))
        stream = self._stream
        self._streams.append(stream)

    # The cloud

    def _serve(self) -> None:
        self._worker = Worker(
            self.target,  # type: ignore[arg-type]
            self.spec,
            ToyVlm(  # type: ignore[arg-type]
                self.target.seed, self.draft_model.stray, self.spec.vocabulary
            ),
            WorkerLimits(sessions=1000),
            clock=lambda: self.now,
        )

    def _work(self) -> None:
        if self._worker.pending:
            self._worker.run_one()
            for served in (stream.session for stream in self._streams):
                if served is not None:
                    self.verifications[served.verification.session] = served.verification
            self._at(self.weather.work, self._work)

    def _at(self, delay: float, job: Callable[[], None]) -> None:
        self._when(self.now + delay, job)

    def _when(self, time: float, job: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), job))
