"""What is asked of the cloud, and what a verdict settles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft
from ..decoding.random_source import RandomSource
from ..decoding.split import (
    SparseResidual,
    Split,
    fallback_error,
    resample,
    resample_from,
    residual_error,
)
from ..decoding.token_distribution import TokenDistribution
from ..decoding.verified_answer import VerifiedAnswer
from ..wire.messages import DraftMessage, Generate, Residual, RowRequest, Verdict

MAX_EARLY = 64  # verdicts that overtook an earlier one

Prefix = tuple[int, ...]  # verified tokens, and perhaps those that a verdict would add


def verdict_error(answer: VerifiedAnswer, verdict: Verdict, tokens: Prefix | None) -> str:
    """Why this verdict cannot come next in the answer; empty if it can.

    ``tokens``: what ``settled_by`` returned for it.
    """
    if tokens is None:
        return "the cloud accepted tokens that were not drafted"
    if not (tokens or verdict.finish or verdict.residual):
        return "the cloud's verdict settles nothing"
    if any(token >= answer.vocabulary for token in tokens):
        return f"the cloud said a token outside the vocabulary of {answer.vocabulary}"
    if len(tokens) > answer.room:
        return "the cloud said more tokens than the answer has room for"
    return ""


def settled_by(verdict: Verdict, draft: Draft | None) -> tuple[int, Prefix | None]:
    """The number of tokens that the cloud tested, and the tokens that the verdict adds.

    ``draft`` is the robot's draft with the verdict's prefix, if there is one. A verdict either
    carries its accepted tokens (it is on another draft than the robot's, or is repeated), or the
    nodes of ``draft`` that were accepted. The tokens are None if it names nodes that ``draft`` does
    not have.
    """
    last = () if verdict.token is None else (verdict.token,)
    drafted = 0 if draft is None else len(draft)
    if verdict.generated:
        drafted = verdict.drafted
    if len(verdict.tokens) == len(verdict.path):
        return verdict.drafted or drafted, verdict.tokens + last
    accepted = None if draft is None else draft.path_tokens(verdict.path)
    return drafted, None if accepted is None else accepted + last


class EarlyVerdicts:
    """Verdicts on pushed drafts that arrived before the verdict on an earlier draft.

    Each is kept by its prefix, until the answer reaches that prefix.
    """

    def __init__(self) -> None:
        self._kept: dict[PrefixDigest, Verdict] = {}

    def keep(self, verdict: Verdict, passed: int) -> bool:
        """Keep a verdict on what follows more tokens than the robot has ``passed``.

        False: one is kept for its prefix, or MAX_EARLY are.
        """
        for old in [old for old in self._kept if old.length < passed]:
            del self._kept[old]
        if verdict.base in self._kept or len(self._kept) >= MAX_EARLY:
            return False
        self._kept[verdict.base] = verdict
        return True

    def take(self, here: PrefixDigest) -> Verdict | None:
        """The verdict on what follows ``here``, if it arrived already."""
        return self._kept.pop(here, None)


# What the cloud is asked for


@dataclass(frozen=True)
class Rejection:
    """A rejected place where the robot draws the recovered token (split resampling)."""

    base: PrefixDigest  # of the draft
    residual: Residual  # what the cloud sent of P
    row: TokenDistribution  # Q


@dataclass(frozen=True)
class PendingRequest:
    """A request to the cloud that is not answered yet.

    For a draft: ``drawn`` is the draft with the rows of Q that it was drawn from, which may not be
    sent, and the cloud's pass over it begins at about ``starts`` (s). For a dense row P:
    ``rejection`` whose short form gave no token.
    """

    message: DraftMessage | Generate | RowRequest
    drawn: Draft | None = None
    starts: float = 0.0
    rejection: Rejection | None = None

    @property
    def draft(self) -> Draft | None:
        """The draft whose verdict is awaited, as it was sent."""
        return self.message.draft if isinstance(self.message, DraftMessage) else None

    def handed_over(self, here: PrefixDigest) -> PendingRequest:
        """This request for another verifier, which knows only the prefix ``here``."""
        if isinstance(self.message, DraftMessage):
            return replace(self, message=replace(self.message, resampled=None))
        if self.rejection is not None:
            return row_request(replace(self.rejection, base=here))
        return self


def row_request(rejection: Rejection) -> PendingRequest:
    """Ask for all of P at a rejected place."""
    return PendingRequest(RowRequest(rejection.base), rejection=rejection)


# Split resampling: the robot draws the recovered token where the cloud rejects


class Resampler:
    """Draws the recovered token of a rejection, with the request's own randomness."""

    def __init__(self, split: Split | None, random_source: RandomSource) -> None:
        self._split, self._random_source = split, random_source

    def rejection(self, verdict: Verdict, drawn: Draft | None) -> Rejection | None:
        """The recovered token's distributions: the verdict's residual of P, and the draft's Q."""
        path = verdict.path
        if verdict.residual is None or self._split is None:
            return None
        if drawn is None or drawn.rows is None or len(path) == len(drawn):
            return None
        if verdict.tokens and drawn.path_tokens(path) != verdict.tokens:
            return None  # it is repeated, and on another draft
        return Rejection(verdict.base, verdict.residual, drawn.row(path[-1] if path else -1))

    def error(self, verdict: Verdict, drawn: Draft | None, vocabulary: int) -> str:
        """Why this verdict's residual cannot be one of the draft; else empty."""
        if verdict.residual is None:
            return ""
        rejection = self.rejection(verdict, drawn)
        settled = verdict.token is not None or bool(verdict.finish)
        if rejection is None or self._split is None or settled:
            return "the cloud wants us to resample what was not drawn, or is settled"
        return residual_error(verdict.residual, self._split, rejection.row, vocabulary)

    def draw(
        self, rejection: Rejection, position: int, dense: TokenDistribution | None = None
    ) -> int | None:
        """The recovered token; None where the short form of P gives none without ``dense``."""
        target, row, random_source = rejection.residual, rejection.row, self._random_source
        if isinstance(target, SparseResidual):
            return resample(target, row, position, random_source, dense)
        return resample_from(target, row, position, random_source)


def dense_row_error(rejection: Rejection, dense: TokenDistribution, vocabulary: int) -> str:
    """Why this cannot be the P that a rejection awaits; else empty."""
    assert isinstance(rejection.residual, SparseResidual)
    return fallback_error(dense, rejection.residual, rejection.row, vocabulary)
