"""A model's draft and looked-up text, verified in the same pass."""

from __future__ import annotations

from dataclasses import replace

from .draft import Draft, parents_or_none


def with_looked_up(draft: Draft, looked_up: Draft, nodes: int, open_at: int | None = None) -> Draft:
    """A draft with what is looked up for the same prefix, ``nodes`` in all at the most.

    Walking down equal tokens, the looked-up tree's others are appended in their order; the draft's
    own nodes keep their indices. Left out is what no rule could follow: nodes after the leaf
    ``open_at``, whose verdict is left open, and beside a token that is sent with its probability
    alone, since where that is rejected the robot resamples (DSSD).
    """
    tokens = list(draft.tokens)
    parents = [draft.parent(node) for node in range(len(draft))]
    found: dict[tuple[int, int], int] = {}
    for node, token in enumerate(tokens):
        found.setdefault((parents[node], token), node)
    closed = {open_at} if draft.values is None else {open_at, *draft.inner}
    places: dict[int, int | None] = {-1: -1}
    for node, token in enumerate(looked_up.tokens):
        parent = places[looked_up.parent(node)]
        place = None if parent is None else found.get((parent, token))
        if place is None and parent is not None and parent not in closed and len(tokens) < nodes:
            place = found[parent, token] = len(tokens)
            tokens.append(token)
            parents.append(parent)
        places[node] = place
    added = len(tokens) - len(draft)
    return replace(
        draft,
        tokens=tuple(tokens),
        parents=parents_or_none(parents),
        looked_up=draft.looked_up + added,
    )
