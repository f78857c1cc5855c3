"""The models of a verifier: the target, its early exits, and maybe a draft model."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from ...decoding.accept import ExitPrediction
from ...decoding.draft import Draft
from ...decoding.grammar import Grammar
from ...decoding.processors import AdjustmentAfter, LogitsProcessors, adjustment_after
from ...decoding.propose import ProposalConfig
from ...decoding.shape import Branch, chain
from ...decoding.target_rows import TargetRows
from ...errors import MemoryFull, UserError
from ...models.draft_model import DraftModel
from ...models.drafter import ALL_ROWS
from ...models.kv_memory import KvMemory
from ...models.pass_request import PassRequest, target_rows
from ...models.prompt import Prompt, PromptSpec, logits_processors, text_tokens
from ...request import Request
from ...wire.messages import Open
from ..session.validation import check_opening
from .sessions import HeldSession
from .target_session import TargetSession

if TYPE_CHECKING:
    from ...models.byte_drafter import ByteDrafter
    from ...models.draft_head import DraftHead
    from ...models.exits import ExitPredictor, Exits
    from ...models.processor import Processor
    from ...models.session import Prefill, Session
    from ...models.vlm import Vlm

log = logging.getLogger(__name__)

OnPredicted = Callable[[HeldSession, ExitPrediction], None]

NO_DRAFTER = "cloud_sd needs a drafter in the cloud, or a target with a head; serve with --drafter"


class Unsupported(UserError):
    """The target cannot do what a request asks for; another verifier's may."""


def refuse_log_probs(opening: Open, where: str) -> None:
    """Raise Unsupported if a request asks for log probabilities; where: the target is."""
    if opening.log_probs:
        raise Unsupported(
            f"this verifier's target is {where}, which tells no log probabilities: take a verifier "
            "with a checkpoint (serve --target DIRECTORY)"
        )


class ModelRunner(ABC):
    """Runs a verifier's target, here or on another server, under one prompt specification.

    ``drafts_by``: what drafts in the cloud, a drafter or a head of the target; empty: nothing.
    ``on_news`` is called, from any thread, with a session whose pass raised NotArrived and may be
    tried again.
    """

    drafts_by: Literal["", "drafter", "head"] = ""
    on_news: Callable[[HeldSession], None] = staticmethod(lambda _: None)

    def __init__(
        self,
        speaker: Processor | ByteDrafter,
        spec: PromptSpec,
        kv_bytes: int = 1,
    ) -> None:
        """speaker: makes the target's prompts and tokens.

        kv_bytes: the limit of keys and values in its models.
        """
        self.speaker, self.spec = speaker, spec
        self.memory = KvMemory(kv_bytes)

    @abstractmethod
    def open(self, opening: Open, prompt: Prompt) -> TargetSession:
        """Start the target's state for a session. UserError: unavailable."""

    @abstractmethod
    def forward(
        self, batch: Sequence[HeldSession], on_predicted: OnPredicted
    ) -> list[TargetRows | Exception]:
        """One pass over the due drafts of these sessions; returns logits or an exception for each.

        An error of the pass as a whole is raised; then no session has a result.
        """

    def propose(self, session: HeldSession, prefix: tuple[int, ...], length: int) -> Draft:
        """A chain of ``length`` tokens by the cloud's draft model; UserError: there is none."""
        raise UserError(NO_DRAFTER)

    def check(self, opening: Open) -> None:
        """Raise UserError if the target cannot serve this request."""
        check_opening(opening, self.speaker.tokenizer_digest)

    def decode_one(self, request: Request) -> bool:
        """Decode the next picture of a request; True: there are more that its prompt would have to
        decode."""
        decode = getattr(self.speaker, "decode_one", None)  # others decode none
        return bool(decode and decode(request, self.spec))

    def processors(self, opening: Open, prompt: Prompt) -> LogitsProcessors | None:
        """What changes the target's logits, None if nothing does; UserError: no such grammar."""
        return logits_processors(self.spec, prompt, _grammar(self.speaker, opening, self.spec))

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """A text in the target's tokens; empty for a target that scores nothing in advance."""
        return text_tokens(self.speaker, text)


class CachedTarget(TargetSession):
    """A session of a local model: prefilled in chunks, and again after an eviction."""

    def __init__(self, model: Vlm, prompt: Prompt, verified: tuple[int, ...]) -> None:
        """verified: tokens that another verifier verified, before the decode came here."""
        self._model, self.prompt, self._verified = model, prompt, verified
        self._steps: Prefill | None = None
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The model's session after prompt and verified tokens; computes what is missing."""
        while self._session is None:
            self.read(ALL_ROWS, None)
        return self._session

    @property
    def ready(self) -> bool:
        return self._session is not None and self._session.cache is not None

    @property
    def holds(self) -> bool:
        return self._steps is not None or (self._session is not None and self._session.waits)

    @property
    def scored_with_prompt(self) -> bool:
        return self.session.scored_with_prompt

    def read(self, rows: int, due: Draft | None) -> bool:
        """As ``TargetSession.read``; scores ``due`` in the same pass as the prompt's last
        tokens."""
        session, steps = self._session, self._steps
        if steps is None:
            steps = self._model.prefill(self.prompt) if session is None else session.restore()
        self._steps = None  # also where a step fails: its memory is given back
        if due is not None and session is None and not self._verified:
            steps.draft(due.tokens, due.parents)
        if not steps.step(rows):
            self._steps = steps
            return False
        if session is None:
            self._session = steps.session
            if self._verified:  # nodes that were scored with the prompt would go
                self._session.extend(self._verified)
        return True

    def pin(self, pinned: bool) -> None:
        self.session.waits = pinned

    def evict(self) -> None:
        self._steps = None
        if self._session is not None:
            self._session.evict()

    def close(self) -> None:
        self._steps = None
        if self._session is not None:
            self._session.close()

    def commit(self, path: Sequence[int]) -> None:
        self.session.commit(path)

    def extend(self, tokens: Sequence[int]) -> None:
        self.session.extend(tokens)


class LocalModels(ModelRunner):
    """Models in this process: the target, its early exits, and what drafts for it: a drafter, with
    their common vocabulary, or a head of its own."""

    def __init__(
        self,
        target: Vlm,
        spec: PromptSpec,
        drafter: Vlm | None,
        exits: Exits | None,
        kv_bytes: int = 0,
        head: DraftHead | None = None,
    ) -> None:
        """kv_bytes: the limit of keys and values; 0: the device's default."""
        super().__init__(target, spec, kv_bytes or target.default_kv_bytes)
        self.target, self.drafter, self._exits, self._head = target, drafter, exits, head
        self.drafts_by = "drafter" if drafter else "head" if head else ""
        for model in (target, drafter):
            if model is not None:
                model.crop(spec.vocabulary)
                model.use_memory(self.memory)

    def open(self, opening: Open, prompt: Prompt) -> TargetSession:
        return CachedTarget(self.target, prompt, opening.verified)

    def forward(
        self, batch: Sequence[HeldSession], on_predicted: OnPredicted
    ) -> list[TargetRows | Exception]:
        requests = []
        for session in batch:
            draft, on_layer = session.due.draft, self.predictor(session, on_predicted)
            requests.append(
                PassRequest(_cached(session).session, draft.tokens, draft.parents, on_layer)
            )
        results = self.target.forward_together(requests)
        return [
            each if isinstance(each, Exception) else target_rows(each, adjustments_of(session))
            for session, each in zip(batch, results, strict=True)
        ]

    def predictor(self, session: HeldSession, on_predicted: OnPredicted) -> ExitPredictor | None:
        """The ``on_layer`` that reports a pass's predictions; None if they are not wanted."""
        opening, due = session.opening, session.due
        wanted = opening.predictions and due.exits and len(due.draft)
        if self._exits is None or not wanted or opening.rule == "rejection":  # which is random
            return None
        from ...models.exits import ExitPredictor

        return ExitPredictor(
            self._exits,
            due.draft,
            opening.policy,
            len(session.tokens),
            partial(on_predicted, session),
            first=_cached(session).session.known_row,
            end_tokens=self.spec.end_ids,
            open_at=due.open_at,
            adjusted=adjustments_of(session),
        )

    def propose(self, session: HeldSession, prefix: tuple[int, ...], length: int) -> Draft:
        if not self.drafts_by:
            return super().propose(session, prefix, length)
        if self.drafts_by == "head":
            return self._propose_by_head(session, prefix, length)
        return self._finished(session, prefix, length)

    def _propose_by_head(self, session: HeldSession, prefix: tuple[int, ...], length: int) -> Draft:
        """As ``propose``; empty where the head cannot draft now, or has failed in this session: the
        target goes on without it."""
        target = _cached(session)
        if session.head_failed or not target.ready or target.session.pending_rows > 1:
            return Draft(())  # the head reads rows of the target, which its next pass computes
        target.pin(True)  # the head's rows are in the target's cache
        try:
            return self._finished(session, prefix, length)
        except MemoryFull:
            return Draft(())
        except Exception:
            log.exception("the head of the target failed, and a session is done without")
            session.head_failed, session.drafter = True, None
            return Draft(())
        finally:
            target.pin(False)

    def _finished(self, session: HeldSession, prefix: tuple[int, ...], length: int) -> Draft:
        if session.drafter is None:
            session.drafter = self._draft_model(session)
        return session.drafter.finished(Branch(prefix, chain(length))).draft

    def _draft_model(self, session: HeldSession) -> DraftModel:
        opening = session.opening
        proposal, ends = ProposalConfig(opening.rule, opening.policy), self.spec.end_ids
        if self.drafter is None:
            assert self._head is not None
            target = _cached(session)
            drafts = self._head.beside(target.session, target.prompt)
            return DraftModel(drafts, proposal, ends, processors=session.processors)
        prompt = self.drafter.prompt(opening.request, self.spec)
        processors = logits_processors(
            self.spec, prompt, _grammar(self.drafter, opening, self.spec)
        )
        return DraftModel(self.drafter.open(prompt), proposal, ends, processors=processors)


def _cached(session: HeldSession) -> CachedTarget:
    assert isinstance(session.target, CachedTarget)
    return session.target


def _grammar(model: Processor | ByteDrafter, opening: Open, spec: PromptSpec) -> Grammar | None:
    text = opening.policy.grammar
    return model.grammar(text, spec, opening.request.owner) if text else None


def adjustments_of(session: HeldSession) -> AdjustmentAfter | None:
    """How the target's logits change after each node of the due draft."""
    return adjustment_after(session.processors, session.tokens, session.due.draft)
