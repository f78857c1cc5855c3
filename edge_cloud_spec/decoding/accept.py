"""The acceptance rules: which path of a draft the target keeps, and the token after it.

Words: a drafted token is *accepted* when the rule lets it stand; the *recovered* token replaces
the first rejected one; the *bonus* token follows a draft that was accepted whole. A verdict is
*open* when it has neither: all is accepted, and the draft goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .draft import Draft
from .noise import Purpose
from .policy import SamplingPolicy
from .propose import coupled_token
from .random_source import RandomSource
from .token_distribution import TokenDistribution, distribution_of, residual


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Indices of the accepted nodes, root to leaf, and the recovered or bonus token after them.

    Without a token the verdict is open, or ``rejected`` is P at the first rejected place, where
    the robot resamples.
    """

    path: tuple[int, ...]
    token: int | None
    rejected: TokenDistribution | None = None


def follow(
    draft: Draft, target_token: Callable[[int], int], open_at: int | None = None
) -> Acceptance:
    """Greedy and coupled: walk down the draft along the target's own tokens.

    ``target_token(node)`` is the target's token after this node (-1: after the prefix). The
    output is the target's own, whatever was drafted. The draft goes on
    after the leaf ``open_at``, so that gets no bonus.
    """
    path: list[int] = []
    node = -1
    while True:
        if node == open_at:
            return Acceptance(tuple(path), None)
        children = list(draft.children(node))
        token = target_token(node)
        child = next((c for c in children if draft.tokens[c] == token), None)
        if child is None:
            return Acceptance(tuple(path), token)
        path.append(child)
        node = child


def rejection(
    draft: Draft,
    target_row: Callable[[int], TokenDistribution],
    position: int,
    random_source: RandomSource,
    *,
    replacement: bool = True,
    open_at: int | None = None,
) -> Acceptance:
    """Speculative sampling of a chain or a tree (Leviathan et al. 2023; MCVeri, TSLT algorithm 5).

    A candidate x stands with probability min(1, P(x) / Q(x)); with each that does not, P becomes
    norm(max(0, P - Q)) for the next one, and in the end for the recovered token. Drawn without
    ``replacement``, a rejected candidate leaves Q, too. ``target_row(node)`` is P after this node;
    ``position`` is that of the first drafted token in the answer.

    A draft with neither rows nor values was not drawn: each candidate's Q is all on itself, which
    comes to drawing x from P and following the child that equals it. One with values only is
    judged, and resampled by the robot (DSSD algorithm 2). (DSSD and TSLT print the ratio upside
    down.)
    """
    path: list[int] = []
    node = -1
    while True:
        at = position + len(path)
        if node == open_at:
            return Acceptance(tuple(path), None)
        children = list(draft.children(node))
        target = target_row(node)
        drawn = draft.row(node) if draft.rows and children else None
        for trial, child in enumerate(children):
            token = draft.tokens[child]
            if draft.values is not None:
                chance = draft.values[child]
            else:
                chance = 1.0 if drawn is None else drawn.at(token)
            if chance and random_source.accept(
                min(1.0, target.at(token) / chance), Purpose.ACCEPT, at, trial
            ):
                path.append(child)
                node = child
                break
            if draft.values is not None:
                return Acceptance(tuple(path), None, target)
            target = residual(target, drawn or _only(token))
            if drawn is not None and not replacement:
                drawn = drawn.without(token)
        else:
            return Acceptance(tuple(path), target.draw(random_source, Purpose.RESIDUAL, at))


def _only(token: int) -> TokenDistribution:
    return TokenDistribution(np.ones(1), np.array([token]))


def accept(
    rule: str,
    draft: Draft,
    logits: NDArray[np.float32],
    policy: SamplingPolicy,
    position: int,
    random_source: RandomSource,
    *,
    replacement: bool = True,
    open_at: int | None = None,
) -> Acceptance:
    """Apply the rule to a draft and the target's logits [1 + n, V] (row 0: after the prefix)."""
    if rule == "rejection":
        return rejection(
            draft,
            lambda node: distribution_of(logits[node + 1], policy),
            position,
            random_source,
            replacement=replacement,
            open_at=open_at,
        )
    depth = {-1: 0}
    for node in range(len(draft)):
        depth[node] = depth[draft.parent(node)] + 1
    return follow(
        draft, lambda node: coupled_token(logits[node + 1], policy, position + depth[node]), open_at
    )
