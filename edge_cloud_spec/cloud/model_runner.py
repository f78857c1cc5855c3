"""The models that a cloud runs: the target, its early exits, and a drafter for ``cloud_sd``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..decoding.draft import Draft
from ..decoding.propose import ProposalConfig
from ..decoding.shape import Branch, chain
from ..errors import UserError
from ..models.drafter import Drafter
from ..models.prompt import Prompt, PromptSpec, Request
from ..wire.messages import Open
from .events import Predicted
from .sessions import CloudSession

if TYPE_CHECKING:
    from ..models.exit_predictor import ExitPrediction, ExitPredictor
    from ..models.exits import Exits
    from ..models.vlm import Vlm


class ModelRunner:
    """Target and drafter under one prompt specification, which has their common vocabulary."""

    def __init__(
        self, target: Vlm, spec: PromptSpec, drafter: Vlm | None, exits: Exits | None
    ) -> None:
        self.target = target
        self._spec = spec
        self._drafter = drafter
        self._exits = exits
        target.crop(spec.vocabulary)
        if drafter is not None:
            drafter.crop(spec.vocabulary)

    def prompt(self, opening: Open) -> Prompt:
        """The target's prompt of a request."""
        return self.target.prompt(_request(opening), self._spec)

    def predictor(
        self, session: CloudSession, draft: Draft, on_predicted: Callable[[Predicted], None]
    ) -> ExitPredictor | None:
        """The ``on_layer`` of a pass that reports its exits' predictions; None: none are wanted."""
        opening, verification = session.opening, session.verification
        if self._exits is None or not opening.predictions or not len(draft):
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
            end_tokens=self._spec.end_ids,
            open_at=verification.open_at,
        )

    def propose(self, session: CloudSession, prefix: tuple[int, ...], length: int) -> Draft:
        """The drafter's chain after this prefix; raises UserError where there is no drafter."""
        return self._drafter_of(session).finished(Branch(prefix, chain(length))).draft

    def _drafter_of(self, session: CloudSession) -> Drafter:
        if session.drafter is None:
            if self._drafter is None:
                raise UserError("cloud_sd needs a drafter in the cloud; serve with --drafter")
            opening = session.opening
            draft_session = self._drafter.open(self._drafter.prompt(_request(opening), self._spec))
            proposal = ProposalConfig(opening.rule, opening.policy)
            session.drafter = Drafter(draft_session, proposal, self._spec.end_ids)
        return session.drafter


def _request(opening: Open) -> Request:
    return Request(opening.instruction, opening.jpeg, opening.order)
