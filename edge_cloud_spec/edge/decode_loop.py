"""One running decode: connects the edge decoder to a draft model, a stream and a clock.

One thread runs a whole decode. It reads arrived messages between two layers of the draft model,
also during prefill.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from queue import Empty
from typing import TYPE_CHECKING

from ..decoding.processors import LogitsProcessors
from ..decoding.shape import Branch
from ..errors import UserError
from ..models.draft_model import DraftModel
from ..models.drafter import ALL_ROWS
from ..models.prompt import logits_processors
from ..request import Request
from ..wire.codec import decode_server
from ..wire.frames import ServerFrame
from ..wire.messages import Code, Fault, Opened, WireError, spec_digest
from .decode_options import DecodeSettings
from .decoder import EdgeDecoder
from .events import (
    DrafterFailed,
    Effect,
    Emit,
    Event,
    Finish,
    Inbox,
    Item,
    LinkUp,
    Prefilled,
    Prepare,
    PromptReady,
    Received,
    Send,
    TimePassed,
    Transport,
    Unusable,
    Work,
)

if TYPE_CHECKING:
    from ..lookup import AnswerLookup
    from ..models.drafter import DraftPrefill, DraftSession
    from .runner import DecodeRunner

MAX_MESSAGES_BEFORE_PASS = 1024  # of the draft model, which goes on even in a flood


@dataclass(frozen=True)
class PromptPass:
    """The draft model's prefill of a prompt, with end tokens and logits processors."""

    prefill: DraftPrefill
    end_ids: tuple[int, ...]
    processors: LogitsProcessors | None


class _Interrupted(Exception):
    """The current pass is no longer needed."""


class DecodeLoop:
    """A running decode: reads events for its decoder and performs the decoder's effects."""

    def __init__(
        self,
        robot: DecodeRunner,
        decoder: EdgeDecoder,
        request: Request,
        settings: DecodeSettings,
        lookup_of: Callable[[], AnswerLookup | None],
        inbox: Inbox,
        transport: Transport | None,
        on_emit: Callable[[Emit], None],
    ) -> None:
        """lookup_of: makes the lookup for drafts, once the cloud's specification is known.
        transport: None if the decode needs no cloud."""
        self._robot, self._decoder = robot, decoder
        self._request, self._settings, self._lookup_of = request, settings, lookup_of
        self._inbox, self._transport, self._on_emit = inbox, transport, on_emit
        self._prompt: PromptPass | None = None  # under way
        self._session: DraftSession | None = None  # of the drafter
        self._drafter: DraftModel | None = None
        self._drafted: deque[Event] = deque()  # events of the last pass, one per branch
        self._work: Work | None = None  # for the draft model, after the current pass
        self._in_pass: Iterable[Branch] = ()  # branches of the current pass
        self._finish: Finish | None = None
        self._handled = 0  # messages handled since the last pass or layer of the draft model

    def to_end(self, known_spec: bytes) -> Finish:
        """Handle events until the decoder is finished."""
        try:
            self._perform(self._decoder.start(self._robot.clock(), known_spec))
            while self._finish is None:
                event = self._next_event()
                if event is not None:
                    self._handle(event)
        finally:
            if self._transport is not None:
                self._transport.close()
            self._close_session()
        return self._finish

    def _close_session(self) -> None:
        """Let the draft model keep what the mission's next prompt begins with."""
        if self._drafter is not None and self._session is not None:
            with contextlib.suppress(UserError, ValueError):  # of a draft model that has failed
                self._drafter.follow(self._decoder.tokens)
                self._session.close()

    def _handle(self, event: Event) -> None:
        self._perform(self._decoder.handle(event, self._robot.clock()))

    def _perform(self, effects: Iterable[Effect]) -> None:
        """Perform the effects in order."""
        for effect in effects:
            match effect:
                case Send(message):
                    if self._transport is not None:
                        self._decoder.stats.up_bytes += self._transport.send(message)
                case Prepare(spec):  # the prompt is prefilled from now on, in this thread
                    self._handle(self._prompt_of(spec))
                case Work():  # takes effect after the current pass
                    self._work = effect
                case Emit():
                    self._on_emit(effect)
                case Finish():
                    self._finish = effect

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
        wait = None if deadline is None else max(0.0, deadline - self._robot.clock())
        try:
            return self._read(self._inbox.get(timeout=wait))
        except Empty:
            return TimePassed()

    @property
    def _is_overdue(self) -> bool:
        deadline = self._decoder.deadline
        return deadline is not None and self._robot.clock() >= deadline

    def _read_late(self) -> TimePassed | None:
        """Handle the messages that arrived before the deadline, as one may be the reply."""
        for _ in range(self._inbox.qsize()):
            event = self._read(self._inbox.get_nowait())
            if event is not None:
                self._handle(event)
            if not self._is_overdue:
                return None
        return TimePassed()

    def _arrived(self) -> Item | None:
        """The next arrived event; None if there is none, or a draft pass is due."""
        self._robot.on_alive()
        self._handled += 1
        if self._handled <= MAX_MESSAGES_BEFORE_PASS and not self._inbox.empty():
            return self._inbox.get_nowait()
        self._handled = 0
        return None

    def _read(self, item: Item) -> Event | None:
        if not isinstance(item, ServerFrame):
            if item == LinkUp(moved=True):
                self._robot.at_verifier.clear()
            return item
        self._decoder.stats.down_bytes += len(item)
        try:
            message = decode_server(item)
        except WireError:
            self._decoder.stats.stale += 1
            return None
        match message:
            case Opened():
                if message.keeps:
                    self._robot.at_verifier.add(self._request)
                if message.spec:
                    self._robot.remember(message.spec)
            case Fault(Code.UNKNOWN_MESSAGES):
                self._robot.at_verifier.clear()
        return Received(message)

    def _draft_once(self, drafter: DraftModel) -> Sequence[Event]:
        """Run one pass of the draft model; its time is attributed to the first branch."""
        robot = self._robot
        started, verified = robot.clock(), len(self._decoder.tokens)
        width = self._decoder.width
        self._in_pass = drafter.next(width)
        try:
            grown = drafter.step(width, self._on_layer)
        except _Interrupted:
            grown = []
        except (UserError, ValueError) as error:  # from the library, or because of NaN logits
            self._drafter = None
            return [DrafterFailed(str(error))]
        self._in_pass = ()
        ended = robot.clock()
        rows = drafter.rows
        if robot.on_pass is not None:
            robot.on_pass(started, ended, rows, verified, grown)
        seconds = ended - started if rows else 0.0
        return [
            replace(one, seconds=0.0 if i else seconds, nodes=rows) for i, one in enumerate(grown)
        ]

    def _on_layer(self, layer: int, hidden: object) -> None:
        """Between two layers: handle arrived events, and end a pass that is no longer needed."""
        self._handle_arrived()
        work = self._work
        unneeded = work is not None and not any(branch in work.branches for branch in self._in_pass)
        if unneeded or self._finish is not None or self._is_overdue:
            raise _Interrupted

    def _handle_arrived(self) -> None:
        """Handle all events that have arrived."""
        while self._finish is None and (item := self._arrived()) is not None:
            event = self._read(item)
            if event is not None:
                self._handle(event)

    def _prefill_once(self, prompt: PromptPass) -> Event | None:
        """Run the vision part, or the rest of the prompt's pass, while handling arriving events."""

        def on_layer(layer: int, hidden: object) -> None:
            self._handle_arrived()
            if self._finish is not None or self._prompt is not prompt or self._is_overdue:
                raise _Interrupted

        try:
            if not prompt.prefill.step(ALL_ROWS, on_layer):
                return None
        except _Interrupted:
            return None
        except UserError as error:
            self._prompt = None
            return DrafterFailed(str(error))
        self._prompt, preset = None, self._settings.preset
        self._session = prompt.prefill.session
        self._drafter = DraftModel(
            self._session,
            preset.proposal(self._settings.rule, self._settings.policy),
            prompt.end_ids,
            with_likelihoods=preset.speculation.predicts,
            processors=prompt.processors,
            lookup=None if self._robot.draft_model.chains_only else self._lookup_of(),
        )
        return Prefilled()

    def _prompt_of(self, data: bytes) -> PromptReady | Unusable:
        model = self._robot.draft_model
        self._in_pass = ()  # a pass over another prompt is not needed
        self._drafter = None
        try:
            spec = self._robot.spec_of(data)
            model.crop(spec.vocabulary)
            prompt = model.prompt(self._request, spec)
            self._decoder.stats.prompt_tokens = len(prompt.input_ids)
            text = self._settings.policy.grammar
            grammar = model.grammar(text, spec) if text else None
            processors = logits_processors(spec, prompt, grammar)
            self._prompt = PromptPass(model.prefill(prompt), spec.end_ids, processors)
        except (UserError, ValueError) as error:
            return Unusable(str(error))
        return PromptReady(
            prompt.digest, spec_digest(data), spec.end_ids, spec.max_tokens, spec.vocabulary
        )
