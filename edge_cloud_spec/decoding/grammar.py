"""A grammar of answers: which tokens are allowed next, before temperature, top-k and top-p.

P and Q are both renormalized over the allowed tokens, so that an accepted token is always one of
them. Greedy is the argmax over them, and coupled the argmax of log P + G over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Allowed = NDArray[np.bool_]  # [V]: the tokens that may follow, at least one


class Grammar(Protocol):
    """Defines the allowed answers; depends on tokens only, so that both sides agree."""

    def allowed(self, answer: Sequence[int]) -> Allowed:
        """A mask bool [V] of the tokens allowed after ``answer``; raises UserError if the answer
        breaks the grammar."""


def masked(logits: NDArray[np.float32], allowed: Allowed) -> NDArray[np.float32]:
    """Logits [V], -inf where a token is not allowed."""
    return np.where(allowed, logits, np.float32(-np.inf))


def forced_token(allowed: Allowed) -> int | None:
    """The only allowed token; None if there are several."""
    first = int(allowed.argmax())
    return None if allowed[first + 1 :].any() else first


def forced_tokens(
    grammar: Grammar, answer: Sequence[int], end_tokens: Sequence[int], most: int
) -> tuple[int, ...]:
    """The tokens, at most ``most``, that the grammar forces next: P of each is 1."""
    forced: list[int] = []
    while len(forced) < most and not (forced and forced[-1] in end_tokens):
        token = forced_token(grammar.allowed((*answer, *forced)))
        if token is None:
            break
        forced.append(token)
    return tuple(forced)
