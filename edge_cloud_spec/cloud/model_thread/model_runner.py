"""The models that a cloud runs: the target, its early exits, and a drafter of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...decoding.draft import Draft
from ...decoding.grammar import AllowedAfter, Grammar, allowed_after
from ...decoding.propose import ProposalConfig
from ...decoding.shape import Branch, chain
from ...decoding.target_rows import TargetRows
from ...errors import UserError
from ...models.draft_model import DraftModel
from ...models.kv_memory import KvMemory
from ...models.prompt import Prompt, PromptSpec, Request, instruction_tokens
from ...nav.answer import CLAUSES_FORM, Dialect
from ...wire.messages import Open
from ..session.events import Predicted
from ..session.validation import check_opening
from .sessions import CloudSession, DuePass

if TYPE_CHECKING:
    from ...models.exits import ExitPrediction, ExitPredictor, Exits
    from ...models.session import Prefill
    from ...models.vlm import Vlm

OnPredicted = Callable[[CloudSession, Predicted], None]


class ModelRunner:
    """Target and drafter under one prompt specification, which has their common vocabulary."""

    # Called, from any thread, with a session whose pass raised NotArrived and may be tried again.
    on_news: Callable[[CloudSession], None] = staticmethod(lambda _: None)

    def __init__(
        self,
        target: Vlm,
        spec: PromptSpec,
        drafter: Vlm | None,
        exits: Exits | None,
        dialect: Dialect,
        kv_bytes: int = 0,
    ) -> None:
        """dialect: of the target's answers.
        kv_bytes: bound for the keys and values of both models; 0 for the device's default."""
        self.target = target
        self.memory = KvMemory(kv_bytes or target.default_kv_bytes)
        self.spec = spec
        self.drafter = drafter
        self._dialect = dialect
        self._exits = exits
        for model in (target, drafter):
            if model is not None:
                model.crop(spec.vocabulary)
                model.use_memory(self.memory)

    def check(self, opening: Open) -> None:
        """Raise UserError where the target cannot serve this request."""
        check_opening(opening, self.target.tokenizer_digest)

    def begin(self, opening: Open, prompt: Prompt, credential: str) -> Callable[[], Prefill]:
        """What begins to compute this prompt for a robot with this credential; raises UserError
        where it may not now."""
        return lambda: self.target.prefill(prompt)

    def prompt(self, opening: Open) -> Prompt:
        """The target's prompt of a request."""
        return self.target.prompt(request_of(opening), self.spec)

    def grammar(self, opening: Open) -> Grammar | None:
        """The grammar of a request, in the target's tokens; raises UserError."""
        return _grammar(self.target, opening, self.spec)

    def instruction_tokens(self, opening: Open) -> tuple[int, ...]:
        """The instruction's own tokens, as the target writes them."""
        return instruction_tokens(self.target, opening.instruction)

    def actions(self) -> list[tuple[int, ...]]:
        """Every action as an answer begins with it, as the target writes it; of those that it
        cannot write none. An answer that is no clause ends there."""
        end = () if self._dialect.form == CLAUSES_FORM else self.spec.end_ids[:1]
        written = [instruction_tokens(self.target, words) for words in self._dialect.answers]
        known = self.spec.vocabulary
        return [(*each, *end) for each in written if each and max(each) < known]

    def predictor(
        self, session: CloudSession, draft: Draft, on_predicted: Callable[[Predicted], None]
    ) -> ExitPredictor | None:
        """The ``on_layer`` of a pass that reports its exits' predictions; None: none are wanted."""
        opening, verification = session.opening, session.verification
        scored = verification.scoring
        if self._exits is None or not opening.predictions or scored is None or not scored.exits:
            return None

        def report(prediction: ExitPrediction) -> None:
            path, token = prediction.path, prediction.token
            if token is not None:
                on_predicted(Predicted(path, token, prediction.confidence, prediction.layer))

        return self._exits.predictor(
            draft,
            opening.rule,
            opening.policy,
            len(verification.tokens),
            report,
            first=session.target.known_row,
            end_tokens=self.spec.end_ids,
            open_at=scored.open_at,
            allowed=allowed_after_draft(session, draft),
        )

    def forward(
        self, batch: Sequence[DuePass], on_predicted: OnPredicted
    ) -> list[TargetRows | Exception]:
        """One pass over all requests; for each its rows, or what it raised.

        Raises what the pass itself raises; then none has a result.
        """
        from ...models.passes.target_rows import target_rows
        from ...models.session import PassRequest  # torch

        requests = []
        for due in batch:
            report = partial(on_predicted, due.session)
            predictor = self.predictor(due.session, due.draft, report)
            draft, session = due.draft, due.session.target
            requests.append(PassRequest(session, draft.tokens, draft.parents, predictor))
        results = self.target.forward_together(requests)
        return [
            each
            if isinstance(each, Exception)
            else target_rows(each, allowed_after_draft(due.session, due.draft))
            for due, each in zip(batch, results, strict=True)
        ]

    def propose(self, session: CloudSession, prefix: tuple[int, ...], length: int) -> Draft:
        """The drafter's chain after this prefix; raises UserError where there is no drafter."""
        return self._drafter_of(session).finished(Branch(prefix, chain(length))).draft

    def _drafter_of(self, session: CloudSession) -> DraftModel:
        if session.drafter is None:
            if self.drafter is None:
                raise UserError("cloud_sd needs a drafter in the cloud; serve with --drafter")
            opening = session.opening
            draft_session = self.drafter.open(self.drafter.prompt(request_of(opening), self.spec))
            proposal = ProposalConfig(opening.rule, opening.policy)
            session.drafter = DraftModel(
                draft_session,
                proposal,
                self.spec.end_ids,
                grammar=_grammar(self.drafter, opening, self.spec),
            )
        return session.drafter


def _grammar(model: Vlm, opening: Open, spec: PromptSpec) -> Grammar | None:
    text = opening.policy.grammar
    return model.grammar(text, spec) if text else None


def allowed_after_draft(session: CloudSession, draft: Draft) -> AllowedAfter | None:
    """What the request's grammar allows after each node of a draft for this session."""
    verification = session.verification
    return allowed_after(verification.grammar, verification.tokens, draft)


def request_of(opening: Open) -> Request:
    return Request(opening.instruction, opening.jpeg, opening.order)
