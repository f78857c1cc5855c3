"""A tree of tokens after a prefix: what is proposed, and what a pass of a model scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenTree:
    """Nodes in the order proposed, each a token after its parent.

    ``parents[i]`` is the index of an earlier node, or -1 for the prefix. A chain has None; parents
    that form a chain are replaced by None. A peer may have sent it: check it with ``error``.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.parents == _chain(len(self.tokens)):
            object.__setattr__(self, "parents", None)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def error(self) -> str:
        """Why these are no tree; empty where they are one."""
        parents = self.all_parents
        if len(parents) != len(self):
            return f"{len(self)} tokens but {len(parents)} parents"
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                return f"the parent of node {node} must be an earlier node, not {parent}"
        return ""

    @cached_property
    def all_parents(self) -> tuple[int, ...]:
        """The parent of each node, those of a chain, too."""
        return _chain(len(self)) if self.parents is None else self.parents

    def parent(self, node: int) -> int:
        """The node before this one, -1 for the prefix."""
        return self.all_parents[node]

    def children(self, node: int) -> Iterator[int]:
        """The nodes right after this one (-1: after the prefix), in the order proposed."""
        return iter(self._children.get(node, ()))

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.all_parents):
            found.setdefault(parent, []).append(node)
        return found

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The number of tokens on the path to each node, its own among them."""
        depths: list[int] = []
        for parent in self.all_parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return tuple(depths)

    @property
    def depth(self) -> int:
        """Tokens of the longest path."""
        return max(self.depths, default=0)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the prefix to this one, itself the last; none for the prefix (-1)."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = self.all_parents[node]
        return tuple(reversed(nodes))

    def tokens_to(self, node: int) -> tuple[int, ...]:
        """The tokens of the path to this node."""
        return tuple(self.tokens[each] for each in self.path(node))

    def path_tokens(self, path: Sequence[int]) -> tuple[int, ...] | None:
        """The tokens of these nodes, root to leaf; None where they are no path from the prefix."""
        end = path[-1] if path else -1
        if not -1 <= end < len(self) or self.path(end) != tuple(path):
            return None
        return self.tokens_to(end)

    def node_of(self, tokens: Iterable[int]) -> int | None:
        """The node that a path of tokens from the prefix leads to; None: there is none.

        Of equal siblings the first one is followed, as every rule does.
        """
        node = -1
        for token in tokens:
            equal = (child for child in self.children(node) if self.tokens[child] == token)
            found = next(equal, None)
            if found is None:
                return None
            node = found
        return node

    def extend(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> TokenTree:
        """The tree with more nodes; parents None: a chain after its last. ValueError: see error."""
        last = len(self) - 1
        more = range(last, last + len(tokens)) if parents is None else parents
        return _checked(TokenTree((*self.tokens, *tokens), (*self.all_parents, *more)))

    def subtree(self, root: int, nodes: Sequence[int]) -> TokenTree:
        """These nodes, in this order, after ``root`` (-1: the prefix).

        ValueError: the parent of one of them is neither the root nor before it among them.
        """
        place = {root: -1, **{node: i for i, node in enumerate(nodes)}}
        if any(self.parent(node) not in place for node in nodes):
            raise ValueError(f"{list(nodes)} do not all come after node {root}")
        parents = tuple(place[self.parent(node)] for node in nodes)
        return _checked(TokenTree(tuple(self.tokens[node] for node in nodes), parents))

    def descendants(self, root: int) -> tuple[int, ...]:
        """The nodes below this one (-1: all), in order."""
        below = {root}
        for node in range(root + 1, len(self)):
            if self.parent(node) in below:
                below.add(node)
        return tuple(sorted(below - {root}))

    def mask(self, count: int, start: int, new: int) -> NDArray[np.float32]:
        """The attention mask of a pass over ``count`` tokens after ``start`` cached ones.

        The last ``new`` rows are the last nodes and attend to their paths; the rows before those
        are causal. 0 where a row attends, else -inf.
        """
        total = len(self)
        attends = np.eye(total, dtype=bool)  # [nodes, nodes]
        for node, parent in enumerate(self.all_parents):
            if parent >= 0:
                attends[node] |= attends[parent]
        allowed = np.tri(count, start + count, start, dtype=bool)  # [count, start + count]
        allowed[count - new :, start + count - total :] = attends[total - new :]
        return np.where(allowed, np.float32(0), np.float32(-np.inf))


def _chain(length: int) -> tuple[int, ...]:
    return tuple(range(-1, length - 1))


def _checked(tree: TokenTree) -> TokenTree:
    if error := tree.error:
        raise ValueError(error)
    return tree
