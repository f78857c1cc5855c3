"""Runs decodes: the edge decoder with a draft model, a stream and a clock around it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..decoding.policy import GREEDY, SamplingPolicy, check_rule
from ..decoding.preset import Preset
from ..lookup import Lookups
from ..models.draft_model import MAX_LOOKED_UP
from ..models.prompt import PromptSpec, Request, instruction_tokens
from ..wire.messages import Open, spec_digest
from .decoder import EdgeDecoder
from .drafting import alone_of
from .events import ANSWERED, Emit
from .measures import Measures
from .rounds import DecodeStats
from .running_decode import DecodePorts, OnPass, RunningDecode
from .transport import Connect, Inbox

if TYPE_CHECKING:
    from ..lookup import AnswerLookup
    from ..models.vlm import Vlm

OUT_OF_REACH = ("timeout", "link_failed", "overloaded")  # reasons that pass by themselves
LOOKUP_SUFFIXES = 65_536  # of the answers that a robot keeps, by default


@dataclass(frozen=True)
class DecodeSettings:
    """What a robot asks of every decode; ``patience`` (s) is as in ``EdgeDecoder``.

    ``max_tokens``: 0 leaves the length to the prompt's specification. Raises UserError.
    """

    preset: Preset
    rule: str = "greedy"
    policy: SamplingPolicy = GREEDY
    max_tokens: int = 0
    patience: float = 10.0

    def __post_init__(self) -> None:
        check_rule(self.rule, self.policy.temperature)


@dataclass(frozen=True)
class Outcome:
    """How a decode ended, with the answer's tokens and what it cost (seconds on its own clock).

    ``retry_after_s`` is as in ``Finish``.
    """

    reason: str
    text: str
    tokens: tuple[int, ...]
    seconds: float
    stats: DecodeStats
    retry_after_s: float = 0.0

    @property
    def completed(self) -> bool:
        """Whether there is an answer: to its end or limit, or as much of it as was wanted."""
        return self.reason in ANSWERED

    @property
    def out_of_reach(self) -> bool:
        """Whether the cloud could not be reached, or takes no more: that passes by itself."""
        return self.reason in OUT_OF_REACH


class DrafterNames(Protocol):
    """What names a draft model to the cloud."""

    identity: str
    tokenizer_digest: bytes


def opening_of(
    request: Request,
    settings: DecodeSettings,
    nonce: int,
    drafter: DrafterNames,
    known_spec: bytes,
) -> Open:
    """The message that starts this decode; known_spec: the prompt specification that is known."""
    preset, rule = settings.preset, settings.rule
    return Open(
        nonce=nonce,
        instruction=request.instruction,
        jpeg=request.jpeg,
        order=request.order,
        policy=settings.policy,
        rule=rule,
        payload=preset.payload_of(rule),
        tokenizer_digest=drafter.tokenizer_digest,
        draft_identity=drafter.identity if preset.drafts_on_robot else "",
        spec_digest=spec_digest(known_spec),
        max_tokens=settings.max_tokens,
        draft_length=preset.draft_length,
        split=preset.split_of(rule),
        replacement=preset.replacement,
        predictions=preset.speculation.exits,
        preset=preset.name,
        alone=alone_of(preset) if preset.drafter == "lookup" or preset.pacing == "auto" else None,
        lookup=preset.lookup,
    )


class DecodeRunner:
    """Runs decodes one after another with one draft model; keeps the cloud's prompt specification.

    ``clock`` gives seconds, in virtual time another than the machine's. ``on_pass``, where it is
    set, is called after each pass of the draft model. ``measures`` last from decode to decode.
    """

    def __init__(
        self,
        draft_model: Vlm,
        local_spec: PromptSpec,
        clock: Callable[[], float] = time.perf_counter,
        lookup_suffixes: int = LOOKUP_SUFFIXES,
        instructions: re.Pattern[str] | None = None,
    ) -> None:
        """lookup_suffixes: of verified answers, that drafts are looked up in; 0: they are not.
        instructions: that the draft model was trained on, if it says so."""
        self.draft_model = draft_model
        self.clock = clock
        self._local_spec = local_spec  # for edge_only, where no cloud sends one
        self._known_spec = b""
        self.measures = Measures()
        self._make_lookups = partial(
            Lookups, lookup_suffixes, MAX_LOOKED_UP, instructions, self.measures.draft_s
        )
        self._lookups = self._make_lookups(local_spec.vocabulary)
        self.on_pass: OnPass | None = None

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

        ``connect`` makes the transport to the cloud, which puts what it receives into the inbox. An
        Abort or a Cut put there ends the decode. ``on_emit`` is called as soon as tokens are
        settled.
        """
        inbox = Inbox() if inbox is None else inbox
        known, preset = self._known_spec, settings.preset
        opening = opening_of(request, settings, nonce, self.draft_model, known)
        lookup_of = partial(self._lookup_of, opening)
        if preset.pacing == "auto" and not self.measures.wants_lookup():
            opening = replace(opening, lookup=False)
        decoder = self.decoder_of(opening, settings)
        ports = DecodePorts(
            request=request,
            draft_model=self.draft_model,
            proposal=preset.proposal(settings.rule, settings.policy),
            with_likelihoods=preset.speculation.predicts,
            clock=self.clock,
            inbox=inbox,
            transport=connect(inbox.put) if preset.uses_cloud else None,
            spec_of=self.spec_of,
            remember=self.remember,
            lookup_of=lookup_of,
            on_emit=on_emit,
            on_pass=self.on_pass,
        )
        started = self.clock()
        finish = RunningDecode(decoder, ports).to_end(known)
        seconds = self.clock() - started
        tokens = tuple(decoder.tokens)
        lookup = lookup_of() if finish.reason in ANSWERED else None
        if lookup is not None:
            lookup.learn(tokens)
        stats, retry_after_s = decoder.stats, finish.retry_after_s
        return Outcome(finish.reason, finish.text, tokens, seconds, stats, retry_after_s)

    def decoder_of(self, opening: Open, settings: DecodeSettings) -> EdgeDecoder:
        """The decoder of one decode."""
        return EdgeDecoder(opening, settings.preset, settings.patience, measures=self.measures)

    def spec_of(self, data: bytes) -> PromptSpec:
        """The prompt specification to use: the cloud's, else the drafter's own."""
        return PromptSpec.from_bytes(data) if data else self._local_spec

    @property
    def target(self) -> str:
        """The identity of the cloud's target model; empty before its first answer."""
        return PromptSpec.from_bytes(self._known_spec).target if self._known_spec else ""

    def remember(self, spec: bytes) -> None:
        """Keep the cloud's prompt specification, so that the next decode need not wait for it."""
        if spec != self._known_spec:
            # another target has other answers
            self._lookups = self._make_lookups(self.spec_of(spec).vocabulary)
        self._known_spec = spec

    def _lookup_of(self, opening: Open) -> AnswerLookup | None:
        """What a draft for this request may look up: answers that the same target verified."""
        if not opening.draft_identity:
            return None
        words = instruction_tokens(self.draft_model, opening.instruction)
        return self._lookups.of("", opening, words)
