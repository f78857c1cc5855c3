"""Split resampling on the robot, which draws the recovered token where the cloud rejects."""

from __future__ import annotations

from dataclasses import dataclass

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
from ..wire.messages import Residual, Verdict


@dataclass(frozen=True)
class Rejection:
    """A rejected place where the robot draws the recovered token."""

    base: PrefixDigest  # of the draft
    residual: Residual  # what the cloud sent of P
    row: TokenDistribution  # Q


class Resampling:
    """Draws the recovered token of a rejection, with the request's own randomness."""

    def __init__(self, split: Split | None, random_source: RandomSource) -> None:
        self._split = split
        self._random_source = random_source

    def rejection(self, verdict: Verdict, drawn: Draft | None) -> Rejection | None:
        """What this verdict leaves the robot to draw, with the Q that the draft was drawn from."""
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
