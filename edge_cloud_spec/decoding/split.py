"""Split resampling: the cloud rejects, and the robot draws the recovered token (DSSD)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .draft import SUM_TOLERANCE, row_error
from .noise import Purpose
from .random_source import RandomSource
from .token_distribution import TokenDistribution

RESIDUALS = ("dense", "top_k", "sparse")
MAX_RESIDUAL_TOKENS = 4096  # tokens of a residual's top or tail


@dataclass(frozen=True)
class Split:
    """What the cloud sends of P at the first rejected position, so that the robot can resample.

    ``dense``: all of it (DSSD). ``top_k``: its largest ``top_k`` values only (PicoSpec 3.3; it
    loses the tail, so it is not exact). ``sparse``: those, and ``tail`` tokens drawn from the rest.
    """

    residual: str
    top_k: int = 0
    tail: int = 0


@dataclass(frozen=True, eq=False)
class SparseResidual:
    """A short form of P: its largest values, the mass of the rest, and tokens drawn from the rest.

    ``top``: ids [K], ascending, with their probabilities [K]; ``tail_mass``: of all other tokens;
    ``tail_tokens`` [m]: drawn from those, each with its probability. All numbers are relative to
    the sum of ``top_probabilities`` and ``tail_mass``.
    """

    top: NDArray[np.int64]
    top_probabilities: NDArray[np.floating]
    tail_mass: float
    tail_tokens: tuple[int, ...]
    tail_probabilities: tuple[float, ...]


def largest(target: TokenDistribution, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The ids, ascending, of P's ``count`` most likely tokens, and their probabilities."""
    places = np.arange(len(target.shares))
    if count < len(places):
        places = np.sort(np.argpartition(target.shares, -count)[-count:])
    ids = places if target.ids is None else target.ids[places]
    return ids, target.shares[places]


def sparse_residual(
    target: TokenDistribution, split: Split, position: int, random_source: RandomSource
) -> SparseResidual:
    """The short form of P that the cloud sends under ``sparse``."""
    top, probabilities = largest(target, split.top_k)
    rest = _outside(target, top)
    if not rest.total:
        return SparseResidual(top, probabilities, 0.0, (), ())
    tail = tuple(
        rest.draw(random_source, Purpose.TAIL, position, trial) for trial in range(split.tail)
    )
    return SparseResidual(top, probabilities, rest.total, tail, tuple(map(target.at, tail)))


def residual_error(
    residual: TokenDistribution | SparseResidual,
    split: Split,
    draft: TokenDistribution,
    vocabulary: int,
) -> str:
    """Why a received residual is not in the form that ``split`` asks for; empty if it is."""
    if isinstance(residual, SparseResidual) != (split.residual == "sparse"):
        return f"a residual is not of the kind {split.residual}"
    if isinstance(residual, SparseResidual):
        return _sparse_error(residual, split, draft, vocabulary)
    if error := _target_error(residual, draft, vocabulary):
        return error
    if split.residual == "top_k":
        fits = residual.ids is not None and len(residual.ids) <= split.top_k
        fits = fits and 0 < residual.total <= 1 + SUM_TOLERANCE
        return "" if fits else f"a residual is not the largest {split.top_k} numbers of P"
    return "" if abs(residual.total - 1) <= SUM_TOLERANCE else "a residual does not sum to 1"


def fallback_error(
    target: TokenDistribution, residual: SparseResidual, draft: TokenDistribution, vocabulary: int
) -> str:
    """Why this cannot be the dense P of the sparse residual ``residual``; empty if it can."""
    if error := _target_error(target, draft, vocabulary):
        return error
    if abs(target.total - 1) > SUM_TOLERANCE:
        return "a row does not sum to 1"
    if target.ids is None and residual.top[-1] >= len(target.probabilities):
        return "a row is too short for what was sent before"
    if not _outside(target, residual.top).total:
        return "a row has nothing outside of what was sent before"
    return ""


def _sparse_error(
    residual: SparseResidual, split: Split, draft: TokenDistribution, vocabulary: int
) -> str:
    top = TokenDistribution(residual.top_probabilities, residual.top)
    if error := _target_error(top, draft, vocabulary):
        return error
    if len(residual.top) > split.top_k or len(residual.tail_tokens) > split.tail:
        return "a residual has more than was asked for"
    if not (residual.tail_mass >= 0 and abs(top.total + residual.tail_mass - 1) <= SUM_TOLERANCE):
        return "a residual and its tail do not sum to 1"
    known = set(residual.top.tolist())
    for token, chance in zip(residual.tail_tokens, residual.tail_probabilities, strict=True):
        if not 0 <= token < _size(draft, vocabulary) or token in known:
            return f"the tail token {token} is one of the top, or outside the vocabulary"
        if not 0 < chance <= 1:
            return f"{chance} is not the probability of a tail token"
    return ""


def _target_error(target: TokenDistribution, draft: TokenDistribution, vocabulary: int) -> str:
    """Why this cannot be a distribution P beside Q; empty if it can."""
    size = _size(draft, vocabulary)
    if target.ids is None and draft.ids is not None:  # then P determines the vocabulary's size
        length = len(target.probabilities)
        size = length if draft.ids[-1] < length <= vocabulary else size
    return row_error(target, size)


def _size(draft: TokenDistribution, vocabulary: int) -> int:
    """The number of ids: for a dense Q all of the vocabulary."""
    return vocabulary if draft.ids is not None else len(draft.probabilities)


def resample(
    residual: SparseResidual,
    draft: TokenDistribution,
    position: int,
    random_source: RandomSource,
    target: TokenDistribution | None = None,
) -> int | None:
    """The recovered token ~ norm(max(0, P - Q)); None if the tail tokens do not suffice.

    Rejection sampling under the envelope {max(0, P - Q) on the top K; the tail's mass}: a token of
    the top K is final, a tail token t is kept with probability max(0, 1 - Q(t) / P(t)), else all is
    drawn again. Exact for every K, m and Q.

    When called again with the dense ``target``, it repeats the same choices (they are a function of
    their keys) and continues within the trial that lacked a tail token: a new trial there would be
    biased. If that trial fails, too, it draws from the dense P - Q itself, so that it ends for
    every P and Q.
    """
    total = float(residual.top_probabilities.sum(dtype=np.float64)) + residual.tail_mass
    above = np.maximum(residual.top_probabilities / total - draft.over(residual.top), 0.0)
    envelope = np.append(above, residual.tail_mass / total)
    if not envelope.any():  # P equals Q up to rounding; resample as ``residual`` does
        envelope[:-1] = residual.top_probabilities / total
    rest = None if target is None else _outside(target, residual.top)
    trial = 0
    while True:
        place = random_source.draw(envelope, Purpose.RESIDUAL, position, trial)
        if place < len(residual.top):
            return int(residual.top[place])
        if trial < len(residual.tail_tokens):
            token, chance = residual.tail_tokens[trial], residual.tail_probabilities[trial] / total
        elif target is None or rest is None:
            return None
        else:
            token = rest.draw(random_source, Purpose.TAIL, position, trial)
            chance = target.at(token)
        if random_source.accept(
            max(0.0, 1.0 - draft.at(token) / chance), Purpose.KEEP, position, trial
        ):
            return token
        trial += 1
        if target is not None and trial > len(residual.tail_tokens):
            return target.residual(draft).draw(random_source, Purpose.RESIDUAL, position, trial)


def _outside(target: TokenDistribution, top: NDArray[np.int64]) -> TokenDistribution:
    """P without its largest tokens."""
    kept = target.shares.copy()
    kept[top if target.ids is None else np.isin(target.ids, top)] = 0.0
    return TokenDistribution(kept, target.ids)
