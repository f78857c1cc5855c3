"""A decode in earnest: the edge decoder with a draft model, a stream and a clock around it.

One thread runs it all: between two drafted tokens it looks whether something arrived.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from ..decoding.policy import GREEDY, SamplingPolicy
from ..decoding.preset import Preset
from ..decoding.propose import ProposalConfig
from ..decoding.rule import check_rule
from ..decoding.shape import Branch
from ..errors import UserError
from ..models.drafter import Drafter, Grown
from ..models.prompt import PromptSpec, Request
from ..wire.codec import decode_server
from ..wire.messages import ClientMessage, Open, Opened, WireError, spec_digest
from .decoder import EdgeDecoder
from .events import (
    Abort,
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
    Unusable,
    Work,
)
from .measures import Measures
from .rounds import DecodeStats

if TYPE_CHECKING:
    from ..models.vlm import Vlm

Item = bytes | LinkLost | LinkUp | Abort
Inbox = SimpleQueue[Item]
OnReceive = Callable[[bytes | LinkLost | LinkUp], None]
# Told of each pass of the draft model: begin, end, nodes, tokens verified meanwhile, what it grew.
OnPass = Callable[[float, float, int, int, Sequence[Grown]], None]


class Transport(Protocol):
    """Where a decode's messages go: a gRPC stream, or the topics of the ROS bridge."""

    def send(self, message: ClientMessage) -> int:
        """Send it; the bytes that it takes on the wire."""

    def close(self) -> None:
        """Nothing more is sent or wanted."""


@dataclass(frozen=True)
class DecodeSettings:
    """What a robot asks of every decode; ``patience`` in seconds."""

    preset: Preset
    rule: str = "greedy"
    policy: SamplingPolicy = GREEDY
    max_tokens: int = 0
    patience: float = 10.0

    def __post_init__(self) -> None:
        check_rule(self.rule, self.policy.temperature)


@dataclass(frozen=True)
class Outcome:
    """How a decode ended, with the answer's tokens and what it cost (seconds on its own clock)."""

    reason: str
    text: str
    tokens: tuple[int, ...]
    seconds: float
    ledger: DecodeStats

    @property
    def completed(self) -> bool:
        """Whether the answer is whole (ended by the model, or at the length limit)."""
        return self.reason in ("end", "length")


class DecodeRunner:
    """Runs decodes one after another with one draft model; remembers the cloud's prompt form.

    ``clock`` gives seconds; in virtual time, another than the machine's.
    """

    def __init__(
        self,
        draft_model: Vlm,
        local_spec: PromptSpec,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.draft_model = draft_model
        self.clock = clock
        self._local_spec = local_spec  # for edge_only, where no cloud says how to prompt
        self._known_spec = b""
        self.measures = Measures()
        self.on_pass: OnPass | None = None

    def run(
        self,
        request: Request,
        settings: DecodeSettings,
        nonce: int,
        connect: Callable[[OnReceive], Transport],
        on_emit: Callable[[Emit], None] = lambda _: None,
        inbox: Inbox | None = None,
    ) -> Outcome:
        """Decode one request to its end, in the calling thread.

        ``connect`` gives the way to the cloud, whose bytes go to the inbox; an Abort put there ends
        the decode. ``on_emit`` is called as soon as tokens are settled.
        """
        inbox = inbox if inbox is not None else SimpleQueue()
        model = self.draft_model
        known = self._known_spec
        opening = Open(
            nonce,
            request.instruction,
            request.jpeg,
            request.order,
            settings.policy,
            settings.rule,
            settings.preset.payload_of(settings.rule),
            model.tokenizer_digest,
            model.identity if settings.preset.drafts_on_robot else "",
            spec_digest(known),
            settings.max_tokens,
            settings.preset.draft_length,
            split=settings.preset.split_of(settings.rule),
            replacement=settings.preset.replacement,
            predictions=settings.preset.speculation.exits,
        )
        decoder = EdgeDecoder(opening, settings.preset, settings.patience, measures=self.measures)
        run = _Decode(self, request, decoder, inbox)
        run.proposal = settings.preset.proposal(settings.rule, settings.policy)
        run.guesses = settings.preset.speculation.guesses
        run.on_emit = on_emit
        if settings.preset.uses_cloud:
            run.transport = connect(inbox.put)
        return run.to_end(known)

    def spec_of(self, data: bytes) -> PromptSpec:
        """The prompt specification to use: the cloud's, else the drafter's own."""
        return PromptSpec.from_bytes(data) if data else self._local_spec

    def remember(self, spec: bytes) -> None:
        """Keep what the cloud said of prompts, so that the next decode need not wait for it."""
        self._known_spec = spec


class _Interrupted(Exception):
    """The pass under way is for nothing any more."""


class _Decode:
    """The state of one decode around its decoder."""

    proposal: ProposalConfig
    guesses: bool
    on_emit: Callable[[Emit], None]

    def __init__(
        self, runner: DecodeRunner, request: Request, decoder: EdgeDecoder, inbox: Inbox
    ) -> None:
        self._runner = runner
        self._clock = runner.clock
        self._request = request
        self._decoder = decoder
        self._inbox = inbox
        self.transport: Transport | None = None
        self._drafter: Drafter | None = None
        self._late: deque[Event] = deque()  # of a pass that worked on several branches
        self._work: Work | None = None  # wanted of the draft model, when a pass has ended
        self._begun: Iterable[Branch] = ()  # what the pass under way is for
        self._finish: Finish | None = None

    def to_end(self, known_spec: bytes) -> Outcome:
        """Handle events until the decoder is finished."""
        started = self._clock()
        try:
            self._perform(self._decoder.start(started, known_spec))
            while self._finish is None:
                event = self._next_event()
                if event is not None:
                    self._perform(self._decoder.handle(event, self._clock()))
        finally:
            if self.transport is not None:
                self.transport.close()
        seconds = self._clock() - started
        assert self._finish is not None
        return Outcome(
            self._finish.reason,
            self._finish.text,
            tuple(self._decoder.tokens),
            seconds,
            self._decoder.ledger,
        )

    def _next_event(self) -> Event | None:
        if self._late:
            return self._late.popleft()
        if self._work is not None and self._drafter is not None:
            self._drafter.follow(self._work.verified)
            self._drafter.want(self._work.branches)
            self._work = None
        if self._drafter is not None and not self._drafter.idle:
            try:
                return self._read(self._inbox.get_nowait())
            except Empty:
                self._late += self._draft_once()
                return None
        deadline = self._decoder.deadline
        wait = None if deadline is None else max(0.0, deadline - self._clock())
        try:
            return self._read(self._inbox.get(timeout=wait))
        except Empty:
            return Tick()

    def _read(self, item: Item) -> Event | None:
        if not isinstance(item, bytes):
            return item
        self._decoder.ledger.down_bytes += len(item)
        try:
            message = decode_server(item)
        except WireError:
            self._decoder.ledger.stale += 1
            return None
        if isinstance(message, Opened) and message.spec:
            self._runner.remember(message.spec)
        return Received(message)

    def _draft_once(self) -> list[Drafted]:
        """One pass of the draft model; its time counts for the first branch."""
        drafter = self._drafter
        assert drafter is not None
        started, verified = self._clock(), len(self._decoder.tokens)
        width = self._decoder.width
        nodes = drafter.cost(width)
        self._begun = drafter.next(width)
        try:
            grown = drafter.step(width, self._listen)
        except _Interrupted:
            grown = []
        self._begun = ()
        ended = self._clock()
        if self._runner.on_pass is not None:
            self._runner.on_pass(started, ended, nodes, verified, grown)
        seconds = ended - started
        return [
            Drafted(one.branch, one.level.tokens, one.whole, one.done, 0 if i else seconds, nodes)
            for i, one in enumerate(grown)
        ]

    def _listen(self, layer: int, hidden: object) -> None:
        """Between two layers: do what messages ask for, and end a pass that is for nothing now."""
        while not self._inbox.empty() and self._finish is None:
            event = self._read(self._inbox.get_nowait())
            if event is not None:
                self._perform(self._decoder.handle(event, self._clock()))
        work = self._work
        void = work is not None and not any(branch in work.branches for branch in self._begun)
        if void or self._finish is not None:
            raise _Interrupted

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(message):
                    if self.transport is not None:
                        self._decoder.ledger.up_bytes += self.transport.send(message)
                case Work():
                    self._work = action
                case Emit():
                    self.on_emit(action)
                case Prepare(spec):
                    ready = self._prepare(spec)
                    self._perform(self._decoder.handle(ready, self._clock()))
                case Finish():
                    self._finish = action

    def _prepare(self, data: bytes) -> PromptReady | Unusable:
        model = self._runner.draft_model
        self._begun = ()  # a pass over another prompt is for nothing
        try:
            spec = self._runner.spec_of(data)
            model.crop(spec.vocabulary)
            prompt = model.prompt(self._request, spec)
        except (UserError, ValueError) as error:
            return Unusable(str(error))
        self._drafter = Drafter(
            model.open(prompt), self.proposal, spec.end_ids, guesses=self.guesses
        )
        return PromptReady(
            prompt.digest, spec_digest(data), spec.end_ids, spec.max_tokens, spec.vocabulary
        )
