"""Split resampling on the robot: the recovered token is ours to draw where the cloud rejects."""

from __future__ import annotations

from dataclasses import dataclass

from ..decoding.choose import Chooser
from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft
from ..decoding.row import Row
from ..decoding.split import (
    SparseResidual,
    Split,
    fallback_flaw,
    resample,
    resample_from,
    residual_flaw,
)
from ..wire.messages import Residual, Verdict


@dataclass(frozen=True)
class Rejection:
    """A rejected place where the recovered token is ours to draw."""

    base: PrefixDigest  # of the draft
    residual: Residual  # what the cloud told of P
    row: Row  # Q


class Resampling:
    """Draws recovered tokens; holds the rejection that waits for all of P."""

    def __init__(self, split: Split | None, chooser: Chooser) -> None:
        self.unresolved: Rejection | None = None
        self._split = split
        self._chooser = chooser

    def rejection(self, verdict: Verdict, drawn: Draft | None) -> Rejection | None:
        """What is ours to draw upon this verdict, with Q there as it was when we drew from it."""
        path = verdict.path
        if verdict.residual is None or self._split is None:
            return None
        if drawn is None or drawn.rows is None or len(path) == len(drawn):
            return None
        if verdict.tokens and drawn.path_tokens(path) != verdict.tokens:
            return None  # it is said again, and on another draft
        return Rejection(verdict.base, verdict.residual, drawn.row(path[-1] if path else -1))

    def flaw(self, verdict: Verdict, drawn: Draft | None, vocabulary: int) -> str:
        """Why this verdict's residual cannot be one of our draft; else empty."""
        if verdict.residual is None:
            return ""
        rejection = self.rejection(verdict, drawn)
        settled = verdict.token is not None or bool(verdict.finish)
        if rejection is None or self._split is None or settled:
            return "the cloud wants us to resample what was not drawn, or is settled"
        return residual_flaw(verdict.residual, self._split, rejection.row, vocabulary)

    def draw(self, rejection: Rejection, position: int, dense: Row | None = None) -> int | None:
        """The recovered token; None where the short form of P ends, and ``dense`` is needed."""
        token: int | None
        told, row, chooser = rejection.residual, rejection.row, self._chooser
        if isinstance(told, SparseResidual):
            token = resample(told, row, position, chooser, dense)
        else:
            token = resample_from(told, row, position, chooser)
        self.unresolved = rejection if token is None else None
        return token


def row_flaw(waiting: Rejection, dense: Row, vocabulary: int) -> str:
    """Why this cannot be the P that a rejection waits for; else empty."""
    assert isinstance(waiting.residual, SparseResidual)
    return fallback_flaw(dense, waiting.residual, waiting.row, vocabulary)
