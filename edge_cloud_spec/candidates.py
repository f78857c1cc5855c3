"""How likely a model is to answer with each candidate of a request, by one pass over all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .decoding.draft import Draft
from .decoding.target_rows import TargetRows
from .errors import UserError, refuse
from .lookup import tree_of
from .request import Request


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidates as a tree of their tokens, and the nodes at which each of them may end."""

    tree: Draft
    ends: tuple[tuple[int, ...], ...]

    def log_probs(self, rows: TargetRows) -> tuple[float, ...]:
        """The log probability of each candidate: of its path, summed over its ends."""
        along = [0.0]  # of the path to each node; the prefix first
        for token, parent in zip(self.tree.tokens, self.tree.all_parents, strict=True):
            along.append(along[parent + 1] + rows.log_prob(parent, token))
        each = (np.logaddexp.reduce([along[node + 1] for node in ends]) for ends in self.ends)
        return tuple(min(0.0, float(log_prob)) for log_prob in each)


def candidates_of(
    request: Request,
    tokens_of: Callable[[str], Sequence[int]],
    end_tokens: Sequence[int],
    vocabulary: int,
    most: int,
) -> Candidates:
    """The candidates of a request, for a vocabulary of this size. A whole one ends with an end
    token, whichever it is. most: nodes of the tree. Raises UserError."""
    written = [tuple(tokens_of(text)) for text in request.candidates]
    refuse(
        (
            not written or not all(written) or max(map(max, written)) >= vocabulary,
            "each candidate must be a text in the common vocabulary: give others",
        ),
        (
            len({*written}) < len(written),
            "two candidates have the same tokens: leave one of them out",
        ),
    )
    ends = [(token,) for token in end_tokens] if request.whole else [()]
    paths = [[(*tokens, *end) for end in ends] for tokens in written]
    tree = tree_of(path for each in paths for path in each)
    if len(tree) > most:
        raise UserError(
            f"the candidates have {len(tree)} tokens, and a verifier scores {most} at most: give "
            "fewer or shorter ones, or serve with --draft-tokens"
        )
    nodes = {tokens: node for node, tokens in enumerate(tree.paths[1:])}
    return Candidates(
        Draft(tree.tokens, tree.parents, looked_up=len(tree)),
        tuple(tuple(nodes[path] for path in each) for each in paths),
    )
