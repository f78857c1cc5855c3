"""One decode as it runs: its decoder's events are read, its actions are carried out.

One thread runs it all: between two layers of the draft model it reads what arrived, while it reads
the prompt, too.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from queue import Empty
from typing import TYPE_CHECKING

from ..decoding.grammar import Grammar
from ..decoding.propose import ProposalConfig
from ..decoding.shape import Branch
from ..errors import UserError
from ..models.draft_model import Drafted, DraftModel
from ..models.prompt import PromptSpec, Request
from ..wire.codec import decode_server
from ..wire.messages import ClientMessage, Opened, WireError, spec_digest
from .decoder import EdgeDecoder
from .events import (
    Emit,
    Event,
    Finish,
    Prefilled,
    PromptReady,
    Received,
    TimePassed,
    Unusable,
    Work,
)
from .perform import perform
from .transport import Inbox, Item, Transport

if TYPE_CHECKING:
    from ..lookup import AnswerLookup
    from ..models.prefill import Prefill
    from ..models.session import Session
    from ..models.vlm import Vlm

MAX_HEARD = 1024  # messages, before the draft model goes on: a flood does not keep it from its work
ALL_ROWS = 1 << 30  # a step of as many rows as there are

# Called after each step of the draft model: begin and end (s), rows computed (0: no pass was due),
# tokens verified when it began, and what it added to each branch.
OnPass = Callable[[float, float, int, int, Sequence[Drafted]], None]


@dataclass(frozen=True)
class DecodePorts:
    """What a running decode reads from and acts on.

    ``clock`` gives seconds. ``spec_of`` gives the prompt specification of the bytes that name it;
    ``remember`` is called with those that the cloud sent. ``lookup_of`` gives what the
    draft model may look up, once the cloud's specification is known.
    """

    request: Request
    draft_model: Vlm
    proposal: ProposalConfig
    with_likelihoods: bool  # of possible verdicts, for predictions
    clock: Callable[[], float]
    inbox: Inbox
    transport: Transport | None
    spec_of: Callable[[bytes], PromptSpec]
    remember: Callable[[bytes], None]
    lookup_of: Callable[[], AnswerLookup | None]
    on_emit: Callable[[Emit], None]
    on_pass: OnPass | None


@dataclass(frozen=True)
class PromptPass:
    """The draft model's pass over a prompt, whose answers end with one of these tokens."""

    prefill: Prefill[Session]
    end_ids: tuple[int, ...]
    grammar: Grammar | None


class _Interrupted(Exception):
    """The pass under way is not needed any more."""


class RunningDecode:
    """The state of one decode around its decoder."""

    def __init__(self, decoder: EdgeDecoder, ports: DecodePorts) -> None:
        self._decoder = decoder
        self._ports = ports
        self._prompt: PromptPass | None = None  # under way
        self._drafter: DraftModel | None = None
        self._drafted: deque[Event] = deque()  # by the last pass, one for each of its branches
        self._work: Work | None = None  # for the draft model, when the pass under way has ended
        self._in_pass: Iterable[Branch] = ()  # what the pass under way is for
        self._finish: Finish | None = None
        self._heard = 0  # messages since the draft model's last pass or layer

    def to_end(self, known_spec: bytes) -> Finish:
        """Handle events until the decoder is finished."""
        try:
            perform(self._decoder.start(self._ports.clock(), known_spec), self)
            while self._finish is None:
                event = self._next_event()
                if event is not None:
                    self._handle(event)
        finally:
            if self._ports.transport is not None:
                self._ports.transport.close()
        return self._finish

    def _handle(self, event: Event) -> None:
        perform(self._decoder.handle(event, self._ports.clock()), self)

    def _next_event(self) -> Event | None:
        if self._drafted:
            return self._drafted.popleft()
        if self._is_overdue:
            return self._read_late()
        if self._prompt is not None and self._decoder.width:
            item = self._arrived()
            return self._prefill_once(self._prompt) if item is None else self._read(item)
        if self._work is not None and self._drafter is not None:
            self._drafter.follow(self._work.verified)
            self._drafter.want(self._work.branches)
            self._work = None
        if self._drafter is not None and not self._drafter.idle:
            item = self._arrived()
            if item is not None:
                return self._read(item)
            self._drafted += self._draft_once(self._drafter)
            return None
        deadline = self._decoder.deadline
        wait = None if deadline is None else max(0.0, deadline - self._ports.clock())
        try:
            return self._read(self._ports.inbox.get(timeout=wait))
        except Empty:
            return TimePassed()

    @property
    def _is_overdue(self) -> bool:
        deadline = self._decoder.deadline
        return deadline is not None and self._ports.clock() >= deadline

    def _read_late(self) -> TimePassed | None:
        """What was here at the deadline is handled first: it may be the reply."""
        for _ in range(self._ports.inbox.qsize()):
            event = self._read(self._ports.inbox.get_nowait())
            if event is not None:
                self._handle(event)
            if not self._is_overdue:
                return None
        return TimePassed()

    def _arrived(self) -> Item | None:
        """The next of what arrived; None: nothing, or a pass of the draft model is due."""
        self._heard += 1
        if self._heard <= MAX_HEARD:
            with contextlib.suppress(Empty):
                return self._ports.inbox.get_nowait()
        self._heard = 0
        return None

    def _read(self, item: Item) -> Event | None:
        if not isinstance(item, bytes):
            return item
        self._decoder.stats.down_bytes += len(item)
        try:
            message = decode_server(item)
        except WireError:
            self._decoder.stats.stale += 1
            return None
        if isinstance(message, Opened) and message.spec:
            self._ports.remember(message.spec)
        return Received(message)

    def _draft_once(self, drafter: DraftModel) -> Sequence[Event]:
        """One pass of the draft model; its time counts for the first branch."""
        ports = self._ports
        started, verified = ports.clock(), len(self._decoder.tokens)
        width = self._decoder.width
        self._in_pass = drafter.next(width)
        try:
            grown = drafter.step(width, self._on_layer)
        except _Interrupted:
            grown = []
        except UserError as error:  # verified tokens against the grammar
            return [Unusable(str(error))]
        self._in_pass = ()
        ended = ports.clock()
        rows = drafter.rows
        if ports.on_pass is not None:
            ports.on_pass(started, ended, rows, verified, grown)
        seconds = ended - started if rows else 0.0
        return [
            replace(one, seconds=0.0 if i else seconds, nodes=rows) for i, one in enumerate(grown)
        ]

    def _on_layer(self, layer: int, hidden: object) -> None:
        """Between two layers: handle what arrived, and end a pass that is not needed any more."""
        self._handle_arrived()
        work = self._work
        unneeded = work is not None and not any(branch in work.branches for branch in self._in_pass)
        if unneeded or self._finish is not None:
            raise _Interrupted

    def _handle_arrived(self) -> None:
        """Handle the messages that are here."""
        while self._finish is None and (item := self._arrived()) is not None:
            event = self._read(item)
            if event is not None:
                self._handle(event)

    def _prefill_once(self, prompt: PromptPass) -> Event | None:
        """The vision part, or the rest of the prompt's pass; what arrives meanwhile is handled."""

        def on_layer(layer: int, hidden: object) -> None:
            self._handle_arrived()
            if self._finish is not None or self._prompt is not prompt:
                raise _Interrupted

        try:
            if not prompt.prefill.step(ALL_ROWS, on_layer):
                return None
        except _Interrupted:
            return None
        except UserError as error:
            return Unusable(str(error))
        self._prompt = None
        self._drafter = DraftModel(
            prompt.prefill.session,
            self._ports.proposal,
            prompt.end_ids,
            with_likelihoods=self._ports.with_likelihoods,
            grammar=prompt.grammar,
            lookup=self._ports.lookup_of(),
        )
        return Prefilled()

    # The decoder's actions (``perform``)

    def send(self, message: ClientMessage) -> None:
        """Send this to the cloud."""
        if self._ports.transport is not None:
            self._decoder.stats.up_bytes += self._ports.transport.send(message)

    def prepare(self, spec: bytes) -> None:
        """Make the prompt; it is prefilled from now on, in this thread."""
        self._handle(self._prompt_of(spec))

    def work(self, work: Work) -> None:
        """Draft this when the pass under way has ended."""
        self._work = work

    def emit(self, emit: Emit) -> None:
        """These tokens are settled."""
        self._ports.on_emit(emit)

    def finish(self, finish: Finish) -> None:
        """The decode is over."""
        self._finish = finish

    def _prompt_of(self, data: bytes) -> PromptReady | Unusable:
        ports, model = self._ports, self._ports.draft_model
        self._in_pass = ()  # a pass over another prompt is not needed
        self._drafter = None
        try:
            spec = ports.spec_of(data)
            model.crop(spec.vocabulary)
            prompt = model.prompt(ports.request, spec)
            text = ports.proposal.policy.grammar
            grammar = model.grammar(text, spec) if text else None
            self._prompt = PromptPass(model.prefill(prompt), spec.end_ids, grammar)
        except (UserError, ValueError) as error:
            return Unusable(str(error))
        return PromptReady(
            prompt.digest,
            spec_digest(data),
            spec.end_ids,
            spec.max_tokens,
            spec.vocabulary,
            prefilled=False,
        )
