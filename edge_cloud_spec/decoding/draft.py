"""A draft: a chain or tree of tokens, proposed after a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import refuse
from .token_distribution import TokenDistribution
from .token_tree import TokenTree


class BadDraft(ValueError):
    """A draft that cannot be verified; the text names what is wrong with it."""


MAX_NODES = 1024  # of any draft
MAX_DRAFTED = 128  # the largest draft of a preset, and a verifier's default limit
MAX_PUSHED = 32  # drafts per decode that the cloud stores for predicted prefixes
MAX_PUSHED_BYTES = 2**24  # of their distributions
SUM_TOLERANCE = 1e-3  # deviation of a distribution's sum from 1, since float32 rounds


@dataclass(frozen=True)
class Draft(TokenTree):
    """Proposed tokens, a chain or a tree, and the distributions they were drawn from.

    ``rows`` are the distributions Q of the nodes that have drawn children, in order (the prefix is
    -1): a chain has one per token. ``values`` are Q(x) of each token only (DSSD). Both are None if
    the acceptance rule needs neither, or if the tokens were not drawn but are the most likely. The
    last ``looked_up`` nodes come from a lookup (see ``SuffixIndex``), and have neither.
    """

    rows: tuple[TokenDistribution, ...] | None = None
    values: tuple[float, ...] | None = None
    looked_up: int = 0

    @property
    def drafted(self) -> int:
        """How many nodes, counted from the first, a model drafted."""
        return len(self.tokens) - self.looked_up

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """The nodes with drafted children, the prefix (-1) first."""
        return tuple(sorted(set(self.all_parents[: self.drafted])))

    def row(self, node: int) -> TokenDistribution:
        """The distribution that this node's drafted children were drawn from."""
        assert self.rows is not None
        return self.rows[self.inner.index(node)]

    @property
    def nbytes(self) -> int:
        """Bytes of the distributions in ``rows``."""
        return sum(row.nbytes for row in self.rows or ())

    def below(self, tokens: Sequence[int]) -> Draft | None:
        """The subtree below this path; None if empty, or the draft has rows or values of Q."""
        root = self.node_of(tokens)
        if root is None or self.rows is not None or self.values is not None:
            return None
        nodes = self.descendants(root)
        if not nodes:
            return None
        tree = self.subtree(root, nodes)
        looked_up = sum(node >= self.drafted for node in nodes)
        return Draft(tree.tokens, tree.parents, looked_up=looked_up)


def check_draft(draft: Draft, vocabulary: int) -> None:
    """Raise BadDraft if a draft cannot be verified with a vocabulary of this size."""
    not_a_tree = draft.error
    outside = next((token for token in draft.tokens if not 0 <= token < vocabulary), None)
    refuse(
        (not len(draft), "a draft has at least one token"),
        (len(draft) > MAX_NODES, f"a draft has at most {MAX_NODES} tokens, not {len(draft)}"),
        (outside is not None, f"token {outside} is outside the vocabulary of {vocabulary}"),
        (not_a_tree, not_a_tree),
        (
            not 0 <= draft.looked_up <= len(draft),
            f"{len(draft)} tokens, of which {draft.looked_up} were looked up",
        ),
        error=BadDraft,
    )
    _check_q(draft, vocabulary)


def _check_q(draft: Draft, vocabulary: int) -> None:
    """Check the probabilities Q of a draft: of the drawn tokens, or whole distributions."""
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
            if error := row_error(row, vocabulary):
                raise BadDraft(error)
            if abs(row.total - 1) > SUM_TOLERANCE:
                raise BadDraft("a row does not sum to 1")
        for node, token in enumerate(draft.tokens[: draft.drafted]):
            if not draft.row(draft.parent(node)).at(token):
                raise BadDraft(f"token {token} has no probability in the row it was drawn from")


def check_distinct(draft: Draft) -> None:
    """Raise BadDraft for equal siblings, impossible if they were drawn without replacement.

    After the first is rejected, Q has no probability left for the second. A lookup node may equal a
    drawn one: it is verified by what is left of P.
    """
    drawn = draft.tokens[: draft.drafted]
    if len({(draft.parent(node), token) for node, token in enumerate(drawn)}) < len(drawn):
        raise BadDraft("a token is proposed twice for one place, though without replacement")


def row_error(row: TokenDistribution, vocabulary: int) -> str:
    """Why these are not probabilities over a vocabulary of this size; empty if they are.

    Their sum is not checked: they may be part of a distribution.
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
