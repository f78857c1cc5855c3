"""The acceptance rules: which path of a draft the target keeps, and the token after it.

Words: a drafted token is *accepted* when the rule lets it stand; the *recovered* token replaces
the first rejected one; the *bonus* token follows a draft that was accepted whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .choose import Chooser
from .draft import BadDraft, Draft
from .noise import Purpose
from .policy import SamplingPolicy, distribution
from .propose import coupled_token

RULES = ("greedy", "coupled", "rejection")


@dataclass(frozen=True)
class Acceptance:
    """Indices of the accepted nodes, root to leaf, and the recovered or bonus token after them."""

    path: tuple[int, ...]
    token: int


def follow(draft: Draft, target_token: Callable[[int], int]) -> Acceptance:
    """Greedy and coupled: walk down the draft along the target's own tokens.

    ``target_token(node)`` is the target's token after this node (-1: after the prefix). The
    output is the target's own, whatever was drafted.
    """
    path: list[int] = []
    node = -1
    while True:
        token = target_token(node)
        child = next((c for c in draft.children(node) if draft.tokens[c] == token), None)
        if child is None:
            return Acceptance(tuple(path), token)
        path.append(child)
        node = child


def normalized(row: NDArray[np.float32]) -> NDArray[np.float64]:
    """A row [V] in float64, summing to 1: fp32 rows are off by their rounding."""
    probabilities = row.astype(np.float64)
    probabilities /= probabilities.sum()
    return probabilities


def residual(target: NDArray[np.float64], draft: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights max(0, P - Q) [V] of the recovered token, not normalized."""
    weights: NDArray[np.float64] = np.maximum(target - draft, 0.0)
    return weights


def rows_of_chain(draft: Draft) -> NDArray[np.float32]:
    """The rows that a chain was sampled from; BadDraft where ``rejection`` cannot judge it."""
    if draft.rows is None or draft.parents is not None:
        raise BadDraft("rejection needs a chain and the rows that it was sampled from")
    return draft.rows


def rejection(
    draft: Draft, target_rows: NDArray[np.float32], position: int, chooser: Chooser
) -> Acceptance:
    """Speculative sampling of a chain (Leviathan et al. 2023, algorithm 1).

    A drafted x stands with probability min(1, P(x) / Q(x)); after the first that does not, the
    token is drawn from norm(max(0, P - Q)). ``target_rows`` are P, float32 [1 + n, V];
    ``position`` is that of the first drafted token in the answer.
    (DSSD and TSLT print the ratio upside down.)
    """
    rows = rows_of_chain(draft)
    for i, token in enumerate(draft.tokens):
        p, q = normalized(target_rows[i]), normalized(rows[i])
        if not chooser.accept(min(1.0, p[token] / q[token]) if q[token] else 0.0, position + i):
            weights = residual(p, q)
            # P <= Q everywhere means P = Q up to rounding: then P itself is what is left.
            weights = weights if weights.any() else p
            return Acceptance(
                tuple(range(i)), chooser.draw(weights, Purpose.RESIDUAL, position + i)
            )
    bonus = normalized(target_rows[len(draft)])
    token = chooser.draw(bonus, Purpose.RESIDUAL, position + len(draft))
    return Acceptance(tuple(range(len(draft))), token)


def accept(
    rule: str,
    draft: Draft,
    logits: NDArray[np.float32],
    policy: SamplingPolicy,
    position: int,
    chooser: Chooser,
) -> Acceptance:
    """Apply the rule to a draft and the target's logits [1 + n, V] (row 0: after the prefix)."""
    if rule == "rejection":
        if policy.temperature == 0:
            raise BadDraft("rejection needs a temperature above 0; use greedy")
        return rejection(draft, distribution(logits, policy), position, chooser)
    depth = {-1: 0}
    for node in range(len(draft)):
        depth[node] = depth[draft.parent(node)] + 1
    return follow(
        draft, lambda node: coupled_token(logits[node + 1], policy, position + depth[node])
    )
