"""A draft: tokens proposed for the positions after a prefix, a chain or a token tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .token_distribution import TokenDistribution


class BadDraft(ValueError):
    """A draft that cannot be verified; the text names what is wrong with it."""


MAX_NODES = 1024  # of any draft
MAX_DRAFTED = 128  # of a preset's draft, and of those that a verifier accepts by default
MAX_PUSHED = 32  # drafts of one decode that the cloud keeps for predicted prefixes
MAX_PUSHED_BYTES = 2**24  # of their rows
SUM_TOLERANCE = 1e-3  # of a row's sum; float32 numbers sum to 1 only up to their rounding


@dataclass(frozen=True, eq=False)
class Draft:
    """Proposed tokens; ``parents[i]`` is the index of an earlier node or -1 for the prefix.

    ``parents`` None is a chain. ``rows`` are the distributions Q that children were drawn from,
    one for each node that has some, in order (the prefix is -1): a chain has one for each token.
    ``values`` are Q(x) of each token alone (DSSD). Neither is there where the acceptance rule needs
    none, or where the tokens were not drawn but are the likeliest. The last ``looked_up`` nodes
    are no model's: they were said before (see ``SuffixIndex``), and have neither.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    rows: tuple[TokenDistribution, ...] | None = None
    values: tuple[float, ...] | None = None
    looked_up: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def drafted(self) -> int:
        """How many of its nodes, the first ones, are a model's."""
        return len(self.tokens) - self.looked_up

    def parent(self, node: int) -> int:
        """The node before this one, -1 for the prefix."""
        return node - 1 if self.parents is None else self.parents[node]

    def children(self, node: int) -> Iterator[int]:
        """The nodes right after this one (-1: after the prefix), in the order proposed."""
        if self.parents is None:
            if node + 1 < len(self.tokens):
                yield node + 1
            return
        yield from self._children.get(node, ())

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents or ()):
            found.setdefault(parent, []).append(node)
        return found

    @cached_property
    def depth(self) -> int:
        """Tokens of the longest path."""
        if self.parents is None:
            return len(self.tokens)
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=0)

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """The nodes that have drafted children, the prefix (-1) first."""
        if self.parents is None:
            return tuple(range(-1, self.drafted - 1))
        return tuple(sorted(set(self.parents[: self.drafted])))

    def row(self, node: int) -> TokenDistribution:
        """The distribution that this node's drafted children were drawn from."""
        assert self.rows is not None
        return self.rows[node + 1 if self.parents is None else self.inner.index(node)]

    @property
    def nbytes(self) -> int:
        """Bytes of its rows."""
        return sum(row.nbytes for row in self.rows or ())

    def path_tokens(self, path: tuple[int, ...]) -> tuple[int, ...] | None:
        """The tokens of these nodes, root to leaf; None where they are no path of the draft."""
        node = -1
        for step in path:
            if not 0 <= step < len(self.tokens) or self.parent(step) != node:
                return None
            node = step
        return tuple(self.tokens[step] for step in path)

    def node_of(self, path: Sequence[int]) -> int | None:
        """The node that a path of tokens from the prefix leads to; None: there is none.

        Of equal siblings the first one is followed, as every rule does.
        """
        node = -1
        for token in path:
            equal = (child for child in self.children(node) if self.tokens[child] == token)
            found = next(equal, None)
            if found is None:
                return None
            node = found
        return node

    def below(self, tokens: Sequence[int]) -> Draft | None:
        """The subtree below this path; None if empty, or the draft has rows or values of Q."""
        root = self.node_of(tokens)
        if root is None or self.rows is not None or self.values is not None:
            return None
        places = {root: -1}
        for node in range(root + 1, len(self)):
            if self.parent(node) in places:
                places[node] = len(places) - 1
        del places[root]
        if not places:
            return None
        above = [self.parent(node) for node in places]
        parents = [-1 if parent == root else places[parent] for parent in above]
        return Draft(
            tuple(self.tokens[node] for node in places),
            parents_or_none(parents),
            looked_up=sum(node >= self.drafted for node in places),
        )


def parents_or_none(parents: Sequence[int]) -> tuple[int, ...] | None:
    """A draft's ``parents``: None where these are a chain's."""
    return None if list(parents) == list(range(-1, len(parents) - 1)) else tuple(parents)


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
        _check_parents(draft.parents, len(draft))
    if not 0 <= draft.looked_up <= len(draft):
        raise BadDraft(f"{len(draft)} tokens, of which {draft.looked_up} were looked up")
    _check_q(draft, vocabulary)


def _check_parents(parents: Sequence[int], nodes: int) -> None:
    if len(parents) != nodes:
        raise BadDraft(f"{nodes} tokens but {len(parents)} parents")
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise BadDraft(f"the parent of node {node} must be an earlier node, not {parent}")


def _check_q(draft: Draft, vocabulary: int) -> None:
    """The numbers of Q that come with a draft: of the drawn tokens, or rows of it."""
    if draft.values is not None:
        if len(draft.values) != draft.drafted:
            raise BadDraft(f"{draft.drafted} tokens but {len(draft.values)} probabilities")
        for value in draft.values:
            if not 0 < value <= 1:
                raise BadDraft(f"{value} is not the probability of a token that was drawn")
    if draft.rows is not None:
        if len(draft.rows) != len(draft.inner):
            raise BadDraft(f"the draft needs {len(draft.inner)} rows, not {len(draft.rows)}")
        for row in draft.rows:
            _check_row(row, vocabulary)
        for node, token in enumerate(draft.tokens[: draft.drafted]):
            if not draft.row(draft.parent(node)).at(token):
                raise BadDraft(f"token {token} has no probability in the row it was drawn from")


def check_distinct(draft: Draft) -> None:
    """Refuse equal siblings, which cannot be where they were drawn without replacement.

    A second one would be judged by what is left of Q without it: by nothing. A looked-up one may
    equal a drawn one: it is judged by what is left of P. Raises BadDraft.
    """
    drawn = draft.tokens[: draft.drafted]
    if len({(draft.parent(node), token) for node, token in enumerate(drawn)}) < len(drawn):
        raise BadDraft("a token is proposed twice for one place, though without replacement")


def _check_row(row: TokenDistribution, vocabulary: int) -> None:
    if error := row_error(row, vocabulary):
        raise BadDraft(error)
    if abs(row.total - 1) > SUM_TOLERANCE:
        raise BadDraft("a row does not sum to 1")


def row_error(row: TokenDistribution, vocabulary: int) -> str:
    """Why these are no probabilities over a vocabulary of this size; empty where they are.

    Their sum is not looked at: a row may be a part of a distribution.
    """
    size = vocabulary if row.ids is None else len(row.ids)
    if row.probabilities.shape != (size,) or not size:
        return f"a row has shape {row.probabilities.shape}, not ({size},)"
    ids = row.ids
    if ids is not None and not (ids[0] >= 0 and ids[-1] < vocabulary and (np.diff(ids) > 0).all()):
        return f"a row's ids do not ascend within the vocabulary of {vocabulary}"
    if not (np.isfinite(row.probabilities).all() and (row.probabilities >= 0).all()):
        return "a row holds something that is not a probability"
    return ""
