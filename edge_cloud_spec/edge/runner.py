"""Runs decodes: connects the edge decoder to a draft model, a stream and a clock.

One thread runs a whole decode. It reads arrived messages between two layers of the draft model,
also during prefill.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty

import numpy as np

from ..candidates import candidates_of
from ..decoding.draft import MAX_NODES
from ..decoding.preset import Preset
from ..decoding.processors import LogitsProcessors
from ..decoding.shape import Branch
from ..decoding.target_rows import LogitRows
from ..errors import UserError
from ..lookup import AnswerLookup, Lookups
from ..models.byte_drafter import BYTES_A_TOKEN, BYTES_DIGEST
from ..models.draft_model import MAX_LOOKED_UP, Drafted, DraftModel
from ..models.drafter import Drafter, DraftPrefill, DraftSession
from ..models.prompt import PromptSpec, logits_processors, text_tokens
from ..models.tokenizer import TextStream
from ..request import Request
from ..wire.codec import decode_server
from ..wire.frames import ServerFrame
from ..wire.messages import (
    CANDIDATES,
    END,
    FAILED,
    TIMEOUT,
    Code,
    Fault,
    Open,
    Opened,
    WireError,
    spec_digest,
)
from .decode_options import DecodeSettings
from .decoder import EdgeDecoder
from .events import (
    ANSWERED,
    Connect,
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
    TimePassed,
    Transport,
    Unusable,
    Work,
)
from .measures import DecodeStats, Measures
from .rounds import server_generation
from .verifier_memory import VerifierMemory

OUT_OF_REACH = (TIMEOUT, Code.LINK_FAILED, Code.TLS, Code.OVERLOADED)  # temporary failures
ROWS_A_STEP = 512  # of a prompt that the robot's model reads at a time; then it looks who waits
LOOKUP_SUFFIXES = 65_536  # suffixes of answers that a robot stores by default
SCORING = Preset("scoring", "the target alone, over candidates", drafter="lookup", lookup=True)
MAX_MESSAGES_BEFORE_PASS = 1024  # of the draft model, which goes on even in a flood

# Called after each step of the draft model: begin and end (s), rows computed (0: no pass was due),
# tokens verified at its begin, and what it added to each branch.
OnPass = Callable[[float, float, int, int, Sequence[Drafted]], None]


@dataclass(frozen=True)
class Outcome:
    """A decode's end: reason, tokens and statistics; ``seconds`` on its own clock.

    ``retry_after_s`` is as in ``Finish``. ``shortened``: a sentence, if the verifier's longest
    answer is shorter than the one asked for, and that was not said before.
    """

    reason: str
    text: str
    tokens: tuple[int, ...]
    seconds: float
    stats: DecodeStats
    retry_after_s: float = 0.0
    shortened: str = ""

    @property
    def completed(self) -> bool:
        """Whether there is an answer: complete, at its limit, or cut on request."""
        return self.reason in ANSWERED

    @property
    def out_of_reach(self) -> bool:
        """Whether the cloud was unreachable or full, which is temporary."""
        return self.reason in OUT_OF_REACH

    @property
    def cautions(self) -> tuple[str, ...]:
        """What a person should know of a decode that went on."""
        failure = self.stats.failure
        alone = f"the cloud went on alone: {failure}" if failure else ""
        return tuple(filter(None, (alone, self.shortened)))


def opening_of(
    request: Request,
    settings: DecodeSettings,
    nonce: int,
    drafter: Drafter,
    known_spec: bytes,
) -> Open:
    """The message that starts this decode, with the whole request. known_spec: the prompt
    specification that is known."""
    preset, rule = settings.preset, settings.rule
    generates = preset.drafter == "lookup" or preset.pacing == "auto"
    return Open(
        nonce=nonce,
        request=request if preset.lookup else replace(request, candidates=()),
        policy=settings.policy,
        rule=rule,
        payload=preset.payload_of(rule),
        tokenizer_digest=drafter.tokenizer_digest,
        draft_identity=drafter.identity if preset.drafts_on_robot else "",
        spec_digest=spec_digest(known_spec),
        max_tokens=settings.max_tokens * ids_per_token(drafter.tokenizer_digest),
        draft_length=preset.draft_length,
        split=preset.split_of(rule),
        replacement=preset.replacement,
        predictions=preset.speculation.exits,
        preset=preset.name,
        generation=server_generation(preset) if generates else None,
        lookup=preset.lookup,
        log_probs=settings.log_probs,
    )


def ids_per_token(tokenizer_digest: bytes) -> int:
    """How many ids count as a token of ``max_tokens``: bytes are shorter."""
    return BYTES_A_TOKEN if tokenizer_digest == BYTES_DIGEST else 1


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
        self._prompt: DraftPrefill | None = None  # under way
        self._end_ids: tuple[int, ...] = ()
        self._processors: LogitsProcessors | None = None
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
                case Prepare(spec):  # the prompt is prefilled from now on, in this thread
                    self._handle(self._prompt_of(spec))
                case Work():  # takes effect after the current pass
                    self._work = effect
                case Emit():
                    self._on_emit(effect)
                case Finish():
                    self._finish = effect
                case _:
                    if self._transport is not None:
                        self._decoder.stats.up_bytes += self._transport.send(effect)

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
        return message

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

    def _prefill_once(self, prompt: DraftPrefill) -> Event | None:
        """Run the vision part, or a step of the prompt, while handling arriving events."""

        def on_layer(layer: int, hidden: object) -> None:
            self._handle_arrived()
            if self._finish is not None or self._prompt is not prompt or self._is_overdue:
                raise _Interrupted

        try:
            if not prompt.step(ROWS_A_STEP, on_layer):
                return None
        except _Interrupted:
            return None
        except UserError as error:
            self._prompt = None
            return DrafterFailed(str(error))
        self._prompt, preset = None, self._settings.preset
        self._session = prompt.session
        self._drafter = DraftModel(
            self._session,
            preset.proposal(self._settings.rule, self._settings.policy),
            self._end_ids,
            with_likelihoods=preset.speculation.predicts,
            processors=self._processors,
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
            self._prompt = model.prefill(prompt)
            self._end_ids, self._processors = spec.end_ids, processors
        except (UserError, ValueError) as error:
            return Unusable(str(error))
        return PromptReady(
            prompt.digest, spec_digest(data), spec.end_ids, spec.max_tokens, spec.vocabulary
        )


class DecodeRunner:
    """Runs decodes one after another with one draft model; remembers the cloud's prompt
    specification.

    ``clock`` returns seconds (real or virtual). ``on_pass``, if set, is called after each pass of
    the draft model, ``on_alive`` also while waiting for one. ``measures`` last from decode to
    decode.
    """

    def __init__(
        self,
        draft_model: Drafter,
        local_spec: PromptSpec,
        clock: Callable[[], float] = time.perf_counter,
        lookup_suffixes: int = LOOKUP_SUFFIXES,
        instructions: re.Pattern[str] | None = None,
    ) -> None:
        """lookup_suffixes: how many suffixes of verified answers are kept for lookups; 0: no
        lookups. instructions: the pattern that the draft model was trained on, if known."""
        self.draft_model = draft_model
        self.clock = clock
        self._local_spec = local_spec  # for edge_only, where no cloud sends one
        self._known_spec = b""
        self._shortened = (0, 0)  # the tokens asked for, and the verifier's limit, as last said
        self.at_verifier = VerifierMemory()
        self.measures = Measures()
        self._make_lookups = partial(
            Lookups,
            lookup_suffixes,
            MAX_LOOKED_UP,
            instructions,
            self.measures.draft_s,
            tokens_of=partial(text_tokens, draft_model),
        )
        self._lookups = self._make_lookups(local_spec.vocabulary)
        self.on_pass: OnPass | None = None
        self.on_alive: Callable[[], object] = lambda: None

    def run(
        self,
        request: Request,
        settings: DecodeSettings,
        nonce: int,
        connect: Connect,
        on_emit: Callable[[Emit], None] = lambda _: None,
        inbox: Inbox | None = None,
    ) -> Outcome:
        """Decode one request to its end, in the calling thread.

        ``connect`` makes the transport to the cloud, which puts received messages into the inbox.
        An Abort or a Cut put there ends the decode. ``on_emit`` is called as soon as there are new
        tokens. Raises UserError for a preset that the draft model cannot follow.
        """
        inbox = Inbox() if inbox is None else inbox
        preset = self.fitted(settings.preset)
        known, settings = self._known_spec, replace(settings, preset=preset)
        opening = opening_of(request, settings, nonce, self.draft_model, known)
        lookup_of = partial(self._lookup_of, opening)
        if preset.pacing == "auto" and not self.measures.decide_lookup():
            opening = replace(opening, lookup=False)
        decoder = self.decoder_of(opening, settings)
        transport = connect(inbox.put) if preset.verified else None
        loop = DecodeLoop(self, decoder, request, settings, lookup_of, inbox, transport, on_emit)
        started = self.clock()
        finish = loop.to_end(known)
        seconds = self.clock() - started
        tokens = tuple(decoder.tokens)
        lookup = lookup_of() if finish.reason in ANSWERED else None
        if lookup is not None:
            lookup.learn(tokens)
        return Outcome(
            finish.reason,
            finish.text,
            tokens,
            seconds,
            decoder.stats,
            finish.retry_after_s,
            self._shortening(opening) if preset.verified else "",
        )

    def _shortening(self, opening: Open) -> str:
        """A sentence, once, if the verifier's answers are shorter than what is asked for."""
        a_token = ids_per_token(opening.tokenizer_digest)
        asked, limit = opening.max_tokens // a_token, self.spec_of(self._known_spec).max_tokens
        limits = (asked, limit // a_token)
        if not self._known_spec or asked <= limits[1] or limits == self._shortened:
            return ""
        self._shortened = limits
        return (
            f"max_tokens asks for answers of {asked} tokens, and the verifier gives {limits[1]} at "
            "most: lower it, or have serve --max-tokens raised"
        )

    def fitted(self, preset: Preset) -> Preset:
        """The preset as this draft model follows it; raises UserError if it cannot."""
        return preset.in_chains() if self.draft_model.chains_only else preset

    def decoder_of(self, opening: Open, settings: DecodeSettings) -> EdgeDecoder:
        """The decoder of one decode, of which ``opening`` says everything."""
        decides = opening.log_probs != CANDIDATES
        request, after = self.at_verifier.shortened(opening.request, decides=decides)
        return EdgeDecoder(
            replace(opening, request=request, after=after),
            settings.preset,
            settings.reply_timeout,
            measures=self.measures,
            planner=settings.planner,
            whole=opening.request,
        )

    def spec_of(self, data: bytes) -> PromptSpec:
        """The prompt specification: the cloud's, or if ``data`` is empty the drafter's."""
        return PromptSpec.from_bytes(data) if data else self._local_spec

    def score_alone(
        self, request: Request, is_wanted: Callable[[], bool] = lambda: True
    ) -> tuple[float, ...]:
        """As ``score``, by the robot's model alone: what nobody verifies; nothing once it is not
        wanted any more. UserError: it has no logits."""
        model, spec = self.draft_model, self._local_spec
        if model.chains_only:
            raise UserError("this drafter tells no log probabilities: take a model of your own")
        tokens_of = partial(text_tokens, model)
        model.crop(spec.vocabulary)
        known = candidates_of(request, tokens_of, spec.end_ids, spec.vocabulary, MAX_NODES)
        prefill = model.prefill(model.prompt(request, spec))
        while not prefill.step(ROWS_A_STEP):
            if not is_wanted():
                return ()
        session, tree = prefill.session, known.tree
        first = session.logits_after(-1)
        rows = np.stack([first, *session.grow(tree.tokens, tree.all_parents)])
        session.close()
        return known.log_probs(LogitRows(rows))

    @property
    def target(self) -> str:
        """The identity of the cloud's target model; empty before its first answer."""
        return PromptSpec.from_bytes(self._known_spec).target if self._known_spec else ""

    def remember(self, spec: bytes) -> None:
        """Remember the cloud's prompt specification, so that the next decode need not wait for
        it."""
        if spec != self._known_spec:
            # another target gives other answers
            self._lookups = self._make_lookups(self.spec_of(spec).vocabulary)
        self._known_spec = spec

    def _lookup_of(self, opening: Open) -> AnswerLookup | None:
        """The lookup for drafts of this request: earlier answers that the same target verified."""
        if not opening.draft_identity:
            return None
        return self._lookups.of("", opening)


def score(
    runner: DecodeRunner,
    request: Request,
    reply_timeout: float,
    nonce: int,
    connect: Connect,
    inbox: Inbox,
) -> tuple[Outcome, tuple[float, ...]]:
    """The log probability of each candidate of the request, if the outcome is complete: that the
    target's answer is it, or begins with it if the request is not ``whole``.

    They are scored in one pass with the prompt; the robot's model does nothing, so that several
    threads may do this at once.
    """
    settings = DecodeSettings(
        SCORING, max_tokens=1, reply_timeout=reply_timeout, log_probs=CANDIDATES
    )
    told: list[float] = []
    outcome = runner.run(
        request, settings, nonce, connect, lambda emit: told.extend(emit.log_probs), inbox
    )
    return outcome, tuple(told)


OnText = Callable[[Emit, str, str, str], None]
"""Called with new tokens, their text, all text so far, and the reason once the decode has ended."""


def decode_text(
    runner: DecodeRunner,
    request: Request,
    settings: DecodeSettings,
    nonce: int,
    connect: Connect,
    on_text: OnText,
    inbox: Inbox,
) -> Outcome:
    """``DecodeRunner.run`` with the answer as text: ``on_text`` is called as soon as there is more
    of it, and once at the end, however that comes."""
    stream, reason = TextStream(runner.draft_model.tokenizer), FAILED
    emit = Emit(0, (), verified=True)  # the last one

    def on_emit(more: Emit, reason: str = "") -> None:
        nonlocal emit
        emit = more
        text = stream.add(more.tokens, ended=reason == END)
        on_text(more, text, stream.text, reason)

    try:
        outcome = runner.run(request, settings, nonce, connect, on_emit, inbox)
        reason = outcome.reason
    finally:
        on_emit(Emit(emit.position + len(emit.tokens), (), emit.verified), reason)
    return outcome
