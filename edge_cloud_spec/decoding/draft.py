"""A draft: tokens proposed for the positions after a prefix, a chain or a token tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class BadDraft(ValueError):
    """A draft that cannot be verified; the text says what is wrong with it."""


MAX_NODES = 1024


@dataclass(frozen=True, eq=False)
class Draft:
    """Proposed tokens; ``parents[i]`` is the index of an earlier node or -1 for the prefix.

    ``parents`` None is a chain. ``rows`` are the distributions that the tokens were drawn from,
    float32 [n, V], the very numbers, where the acceptance rule needs them.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    rows: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def parent(self, node: int) -> int:
        """The node before this one, -1 for the prefix."""
        return node - 1 if self.parents is None else self.parents[node]

    def children(self, node: int) -> Iterator[int]:
        """The nodes right after this one (-1: after the prefix), in the order proposed."""
        if self.parents is None:
            if node + 1 < len(self.tokens):
                yield node + 1
            return
        for child in range(node + 1, len(self.tokens)):
            if self.parents[child] == node:
                yield child


def check_draft(draft: Draft, vocabulary: int) -> None:
    """Refuse what cannot be verified against a vocabulary of this size; raises BadDraft."""
    if not len(draft):
        raise BadDraft("a draft has at least one token")
    if len(draft) > MAX_NODES:
        raise BadDraft(f"a draft has at most {MAX_NODES} tokens, not {len(draft)}")
    for token in draft.tokens:
        if not 0 <= token < vocabulary:
            raise BadDraft(f"token {token} is outside the vocabulary of {vocabulary}")
    if draft.parents is not None:
        if len(draft.parents) != len(draft.tokens):
            raise BadDraft(f"{len(draft)} tokens but {len(draft.parents)} parents")
        for node, parent in enumerate(draft.parents):
            if not -1 <= parent < node:
                raise BadDraft(f"the parent of node {node} must be an earlier node, not {parent}")
    if draft.rows is not None:
        if draft.rows.shape != (len(draft), vocabulary):
            expected = (len(draft), vocabulary)
            raise BadDraft(f"the draft's rows have shape {draft.rows.shape}, not {expected}")
        if not (np.isfinite(draft.rows).all() and (draft.rows >= 0).all()):
            raise BadDraft("the draft's rows hold something that is not a probability")
        if len(draft) and np.abs(draft.rows.sum(-1, dtype=np.float64) - 1).max() > 1e-3:
            raise BadDraft("a row of the draft does not sum to 1")
