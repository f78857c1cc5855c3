"""The acceptance rules: which path of a draft the target accepts, and the token after it.

A drafted token is *accepted* if the rule keeps it; the *recovered* token replaces the first
rejected one; the *bonus* token follows a draft that is accepted whole. A verdict is *open* if it
has neither: all is accepted, and another draft continues there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .draft import Draft
from .noise import Purpose
from .policy import SamplingPolicy
from .random_source import RandomSource
from .target_rows import TargetRow, TargetRows
from .token_distribution import TokenDistribution


@dataclass(frozen=True)
class ExitPrediction:
    """An early exit's prediction of the verdict; no motion follows from it.

    path: accepted nodes, root to leaf. token: the recovered or bonus token; None if the answer ends
    with the path or the verdict is open. confidence: probability, 0 to 1, that path and token are
    right. layer: how many of the target's layers are before the exit; 0: unknown.
    """

    path: tuple[int, ...]
    token: int | None
    confidence: float
    layer: int = 0


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Indices of the accepted nodes, root to leaf, and the recovered or bonus token after them.

    ``token`` is None if the verdict is open, or if the robot resamples: then ``rejected`` is P at
    the first rejected position.
    """

    path: tuple[int, ...]
    token: int | None
    rejected: TokenDistribution | None = None


def follow(
    draft: Draft, target_token: Callable[[int], int], open_at: int | None = None
) -> Acceptance:
    """Greedy and coupled: walk down the draft along the target's tokens.

    ``target_token(node)`` is the target's token after this node (-1: after the prefix). The output
    does not depend on the draft. Another draft continues after the leaf ``open_at``, so the verdict
    has no bonus token there.
    """
    path: list[int] = []
    node = -1
    while node != open_at:
        token = target_token(node)
        child = next((c for c in draft.children(node) if draft.tokens[c] == token), None)
        if child is None:
            return Acceptance(tuple(path), token)
        path.append(child)
        node = child
    return Acceptance(tuple(path), None)


def rejection(
    draft: Draft,
    target_row: Callable[[int], TargetRow],
    position: int,
    random_source: RandomSource,
    *,
    replacement: bool = True,
    open_at: int | None = None,
) -> Acceptance:
    """Speculative sampling of a chain or a tree (Leviathan et al. 2023; MCVeri, TSLT algorithm 5).

    A candidate x is accepted with probability min(1, P(x) / Q(x)); after each rejection P becomes
    norm(max(0, P - Q)) for the next candidate, and at last for the recovered token. Drawn without
    ``replacement``, a rejected candidate is also removed from Q. ``target_row(node)`` is P after
    this node; ``position`` is that of the first drafted token in the answer.

    If no drawn candidate is accepted, x is drawn from what is left of P, and an undrawn child with
    token x is followed. Lookup nodes are undrawn, and so is all of a draft with neither rows nor
    values. The robot resamples after a draft with values only (DSSD algorithm 2).
    (DSSD and TSLT print the ratio upside down.)
    """
    path: list[int] = []
    node = -1
    values = draft.values or ()
    drafted = draft.drafted if draft.rows or values else 0
    while node != open_at:
        at = position + len(path)
        children = list(draft.children(node))
        candidates = [child for child in children if child < drafted]
        target = target_row(node)
        drawn = draft.row(node) if draft.rows and candidates else None
        for trial, child in enumerate(candidates):
            token = draft.tokens[child]
            chance = values[child] if drawn is None else drawn.at(token)
            if chance and random_source.accept(
                min(1.0, target.at(token) / chance), Purpose.ACCEPT, at, trial
            ):
                node = child
                break
            if drawn is None:
                return Acceptance(tuple(path), None, target.dense())
            target = target.residual(drawn)
            if not replacement:
                drawn = drawn.without(token)
        else:
            token = target.draw(random_source, Purpose.RESIDUAL, at)
            others = children[len(candidates) :]
            found = next((child for child in others if draft.tokens[child] == token), None)
            if found is None:
                return Acceptance(tuple(path), token)
            node = found
        path.append(node)
    return Acceptance(tuple(path), None)


def accept(
    rule: str,
    draft: Draft,
    rows: TargetRows,
    policy: SamplingPolicy,
    position: int,
    random_source: RandomSource,
    *,
    replacement: bool = True,
    open_at: int | None = None,
) -> Acceptance:
    """Apply the rule to a draft and the target's logits after its prefix and its nodes."""
    if rule == "rejection":
        return rejection(
            draft,
            lambda node: rows.row(node, policy),
            position,
            random_source,
            replacement=replacement,
            open_at=open_at,
        )

    def target_token(node: int) -> int:
        return rows.token(node, policy, position + len(draft.path(node)))

    return follow(draft, target_token, open_at)
