"""P over a whole vocabulary, and what rejections leave of it, of which no row is made.

Memory for 151,936 float64 numbers is in no core's own cache and mapped page by page each time it
is had: that costs more than the differences. So only the sums of blocks are kept, and the numbers
of a block are made again where one of them is asked for. They come out the same each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .noise import Purpose
from .random_source import BLOCK, RandomSource, block_sums
from .token_distribution import TokenDistribution

PART = 32 * BLOCK  # tokens at a time: their numbers stay in a core's own cache
DEEP = 4  # Qs taken, after which what is left becomes a row: k of them cost k squared


class LongRow(TokenDistribution):
    """A dense row of P, float32 [V], of which rejections leave a ``LongResidual``."""

    def residual(self, draft: TokenDistribution) -> TokenDistribution | LongResidual:  # type: ignore[override]
        """See ``TargetRow``."""
        left = LongResidual(self, ((draft, self.total / draft.total),))
        return left if left.total else self


@dataclass(frozen=True, eq=False)
class LongResidual:
    """A ``TargetRow``: twice max(0, P - f1 Q1 - f2 Q2 ...) after as many rejections.

    As no Q is below 0, that is max(0, ... max(0, P - f1 Q1) - f2 Q2 ...), of which each rejection
    adds one step. taken: each Q and its factor; a Q that was rejected twice is there once.
    """

    target: TokenDistribution
    taken: tuple[tuple[TokenDistribution, float], ...]

    @cached_property
    def _sums(self) -> NDArray[np.float64]:
        size, workspace = len(self.target.probabilities), _workspace(PART)
        parts = (self._part(start, PART, workspace) for start in range(0, size, PART))
        return np.concatenate([block_sums(part) for part in parts])

    @cached_property
    def total(self) -> float:
        """The float64 sum of the numbers."""
        return float(self._sums.sum())

    def at(self, token: int) -> float:
        """See ``TargetRow``."""
        return float(self._block(token // BLOCK)[token % BLOCK]) / self.total

    def residual(self, draft: TokenDistribution) -> TokenDistribution | LongResidual:
        """See ``TargetRow``."""
        taken, factor = self.taken, self.total / 2 / draft.total
        if taken[-1][0] is draft:
            factor += taken[-1][1]
            taken = taken[:-1]
        elif len(taken) == DEEP:
            return self.told().residual(draft)
        left = LongResidual(self.target, (*taken, (draft, factor)))
        return left if left.total else self

    def draw(
        self, random_source: RandomSource, purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        """See ``TargetRow``."""
        return random_source.draw_from_blocks(self._sums, self._block, purpose, position, trial)

    def told(self) -> TokenDistribution:
        """See ``TargetRow``."""
        size = len(self.target.probabilities)
        return TokenDistribution(self._part(0, size, _workspace(size)))

    def _block(self, index: int) -> NDArray[np.float64]:
        return self._part(index * BLOCK, BLOCK, _workspace(BLOCK))

    def _part(self, start: int, count: int, workspace: NDArray[np.float64]) -> NDArray[np.float64]:
        """The numbers of so many tokens from ``start`` on, fewer at the end, in the workspace."""
        target = self.target.probabilities[start : start + count]
        left: NDArray[np.float64] = workspace[0, : len(target)]
        amount: NDArray[np.float64] = workspace[1, : len(target)]
        np.copyto(left, target)
        for draft, factor in self.taken:
            if draft.ids is None:
                np.copyto(amount, draft.probabilities[start : start + count])
                amount *= factor
                left -= amount
            else:
                first, end = np.searchsorted(draft.ids, (start, start + len(left)))
                left[draft.ids[first:end] - start] -= draft.probabilities[first:end] * factor
        left += np.abs(left, out=amount)  # twice the maximum with 0, in half of that one's time
        return left


def _workspace(count: int) -> NDArray[np.float64]:
    """What is left, and what is taken, of so many tokens."""
    return np.empty((2, count))
