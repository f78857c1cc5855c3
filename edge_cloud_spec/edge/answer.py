"""The robot's requests to the cloud, and the tokens that a verdict adds to the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft
from ..decoding.noise import Purpose
from ..decoding.random_source import RandomSource
from ..decoding.split import SparseResidual, Split, resample, residual_error
from ..decoding.token_distribution import TokenDistribution
from ..decoding.verified_answer import VerifiedAnswer
from ..errors import first_mistake
from ..wire.messages import (
    ANSWER,
    CANDIDATES,
    NONE,
    DraftMessage,
    Generate,
    Open,
    Residual,
    RowRequest,
    Verdict,
)

Prefix = tuple[int, ...]  # verified tokens, maybe followed by predicted ones


def verdict_error(answer: VerifiedAnswer, verdict: Verdict, tokens: Prefix | None) -> str:
    """Why this verdict cannot be next in the answer; empty if it can.

    ``tokens``: the tokens that ``settled_by`` returned for it.
    """
    if tokens is None:
        return "the cloud accepted tokens that were not drafted"
    return first_mistake(
        (
            not (tokens or verdict.finish or verdict.residual),
            "the cloud's verdict settles nothing",
        ),
        (
            any(token >= answer.vocabulary for token in tokens),
            f"the cloud said a token outside the vocabulary of {answer.vocabulary}",
        ),
        (
            len(tokens) > answer.room,
            "the cloud said more tokens than the answer has room for",
        ),
    )


def log_probs_error(opening: Open, verdict: Verdict, tokens: Prefix) -> str:
    """Why a verdict that adds these tokens does not tell the log probabilities that the opening
    asks for; empty if it does."""
    candidates = len(opening.request.candidates)
    due = {NONE: 0, ANSWER: len(tokens), CANDIDATES: candidates}[opening.log_probs]
    return "" if len(verdict.log_probs) == due else "the cloud does not tell log probabilities"


def settled_by(verdict: Verdict, draft: Draft | None) -> tuple[int, Prefix | None]:
    """The number of tokens that the cloud tested, and the tokens that the verdict adds.

    ``draft`` is the robot's draft with the verdict's prefix, if there is one. A verdict either
    carries its accepted tokens (it is on another draft than the robot's, or is repeated), or names
    the accepted nodes of ``draft``. The tokens are None if ``draft`` lacks one of these nodes.
    """
    last = () if verdict.token is None else (verdict.token,)
    drafted = verdict.drafted if verdict.generated else len(draft or ())
    if len(verdict.tokens) == len(verdict.path):
        return verdict.drafted or drafted, verdict.tokens + last
    accepted = None if draft is None else draft.path_tokens(verdict.path)
    return drafted, None if accepted is None else accepted + last


# Requests to the cloud


@dataclass(frozen=True)
class Rejection:
    """A rejected position where the robot draws the recovered token (split resampling): P's
    ``residual`` and Q."""

    base: PrefixDigest  # the draft's prefix
    residual: Residual  # of P, from the cloud
    row: TokenDistribution  # Q


@dataclass(frozen=True)
class PendingRequest:
    """A request to the cloud without an answer yet.

    For a draft: ``drawn`` is the draft with its distributions Q, which may not be sent, and the
    cloud's pass over it begins at about ``starts`` (s). For a request of the dense P:
    ``rejection``, whose sparse form gave no token.
    """

    message: DraftMessage | Generate | RowRequest
    drawn: Draft | None = None
    starts: float = 0.0
    rejection: Rejection | None = None

    @property
    def draft(self) -> Draft | None:
        """The draft as it was sent; None for another kind of request."""
        return self.message.draft if isinstance(self.message, DraftMessage) else None

    def handed_over(self, here: PrefixDigest) -> PendingRequest:
        """This request for another verifier, which knows the prefix ``here`` only."""
        if isinstance(self.message, DraftMessage):
            return replace(self, message=replace(self.message, resampled=None))
        if self.rejection is not None:
            return row_request(replace(self.rejection, base=here))
        return self


def row_request(rejection: Rejection) -> PendingRequest:
    """A request for the dense P at a rejected position."""
    return PendingRequest(RowRequest(rejection.base), rejection=rejection)


# Split resampling: the robot draws the recovered token


class Resampler:
    """Draws the recovered token of a rejection, from the request's seed."""

    def __init__(self, split: Split | None, random_source: RandomSource) -> None:
        self._split, self._random_source = split, random_source

    def rejection(self, verdict: Verdict, drawn: Draft | None) -> Rejection | None:
        """The distributions for the recovered token: the verdict's residual of P, and the draft's
        Q.

        None if the verdict has no residual, or the draft no Q there.
        """
        path = verdict.path
        if verdict.residual is None or self._split is None:
            return None
        if drawn is None or drawn.rows is None or len(path) == len(drawn):
            return None
        if verdict.tokens and drawn.path_tokens(path) != verdict.tokens:
            return None  # a repeated verdict on another draft
        return Rejection(verdict.base, verdict.residual, drawn.row(path[-1] if path else -1))

    def error(self, verdict: Verdict, rejection: Rejection | None, vocabulary: int) -> str:
        """Why this verdict's residual, with its ``rejection``, does not fit the draft; empty if it
        does."""
        if verdict.residual is None:
            return ""
        settled = verdict.token is not None or bool(verdict.finish)
        if rejection is None or self._split is None or settled:
            return "the cloud wants us to resample what was not drawn, or is settled"
        return residual_error(verdict.residual, self._split, rejection.row, vocabulary)

    def draw(
        self, rejection: Rejection, position: int, dense: TokenDistribution | None = None
    ) -> int | None:
        """The recovered token; None if the sparse P gives none and ``dense`` is missing."""
        target, row, random_source = rejection.residual, rejection.row, self._random_source
        if isinstance(target, SparseResidual):
            return resample(target, row, position, random_source, dense)
        return target.residual(row).draw(random_source, Purpose.RESIDUAL, position)
