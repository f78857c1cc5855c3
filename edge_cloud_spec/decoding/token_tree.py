"""A tree of tokens after a prefix: a draft, or the nodes that a model's pass scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenTree:
    """A tree of tokens; each node comes after its parent.

    ``parents[i]`` is the index of an earlier node, or -1 for the prefix. For a chain ``parents`` is
    None; parents that form a chain are replaced by None. A tree from a peer must be checked with
    ``error``.
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
        """Why this is not a valid tree; empty if it is."""
        parents = self.all_parents
        if len(parents) != len(self):
            return f"{len(self)} tokens but {len(parents)} parents"
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                return f"the parent of node {node} must be an earlier node, not {parent}"
        return ""

    @cached_property
    def all_parents(self) -> tuple[int, ...]:
        """The parent of each node, also for a chain."""
        return _chain(len(self)) if self.parents is None else self.parents

    def parent(self, node: int) -> int:
        """The parent of this node, -1 for the prefix."""
        return self.all_parents[node]

    def children(self, node: int) -> Iterator[int]:
        """The children of this node (-1: of the prefix), in the order proposed."""
        return iter(self._children.get(node, ()))

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.all_parents):
            found.setdefault(parent, []).append(node)
        return found

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The depth of each node; children of the prefix have depth 1."""
        depths: list[int] = []
        for parent in self.all_parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return tuple(depths)

    @property
    def depth(self) -> int:
        """The number of tokens on the longest path."""
        return max(self.depths, default=0)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the prefix to this node, inclusive; empty for the prefix (-1)."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = self.all_parents[node]
        return tuple(reversed(nodes))

    def tokens_to(self, node: int) -> tuple[int, ...]:
        """The tokens of the path to this node; () for the prefix (-1)."""
        return self.paths[node + 1]

    @cached_property
    def paths(self) -> list[tuple[int, ...]]:
        """The tokens of the path to the prefix (-1), and to each node."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.tokens, self.all_parents, strict=True):
            paths.append((*paths[parent + 1], token))
        return paths

    def path_tokens(self, path: Sequence[int]) -> tuple[int, ...] | None:
        """The tokens of these nodes, root to leaf; None if they are not a path from the prefix."""
        end = path[-1] if path else -1
        if not -1 <= end < len(self) or self.path(end) != tuple(path):
            return None
        return tuple(self.tokens[node] for node in path)

    def along(self, tokens: Iterable[int]) -> tuple[int, ...]:
        """The nodes of the longest path from the prefix that agrees with these tokens.

        Among equal siblings the first is followed, as by every rule.
        """
        path = [-1]
        for token in tokens:
            equal = (child for child in self.children(path[-1]) if self.tokens[child] == token)
            child = next(equal, None)
            if child is None:
                break
            path.append(child)
        return tuple(path[1:])

    def node_of(self, tokens: Sequence[int]) -> int | None:
        """The node at the end of this path of tokens from the prefix; None if there is none."""
        path = (-1, *self.along(tokens))
        return path[-1] if len(path) == 1 + len(tokens) else None

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> tuple[tuple[int, ...], TokenTree]:
        """The tokens of these nodes, root to leaf, and the tree of ``keep`` below the last.

        ValueError: they are not a path from the prefix, or ``keep`` does not descend from it.
        """
        tokens = self.path_tokens(path)
        if tokens is None:
            raise ValueError(f"{list(path)} is not a path of the nodes {self.parents}")
        return tokens, self.subtree(path[-1] if path else -1, keep)

    def extend(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> TokenTree:
        """The tree with more nodes; parents None: a chain after its last node. ValueError: see
        ``error``."""
        last = len(self) - 1
        more = range(last, last + len(tokens)) if parents is None else parents
        return _checked(TokenTree((*self.tokens, *tokens), (*self.all_parents, *more)))

    def subtree(self, root: int, nodes: Sequence[int]) -> TokenTree:
        """The tree of these nodes, in this order, below ``root`` (-1: the prefix).

        ValueError: a node's parent is neither the root nor an earlier one of the nodes.
        """
        place = {root: -1, **{node: i for i, node in enumerate(nodes)}}
        if any(self.parent(node) not in place for node in nodes):
            raise ValueError(f"{list(nodes)} do not all come after node {root}")
        parents = tuple(place[self.parent(node)] for node in nodes)
        return _checked(TokenTree(tuple(self.tokens[node] for node in nodes), parents))

    def descendants(self, root: int) -> tuple[int, ...]:
        """The nodes below this one (-1: all), in ascending order."""
        below = {root}
        for node in range(root + 1, len(self)):
            if self.parent(node) in below:
                below.add(node)
        return tuple(sorted(below - {root}))

    def mask(self, count: int, start: int, new: int) -> NDArray[np.float32]:
        """The additive attention mask of a pass over ``count`` tokens after ``start`` cached ones.

        The last ``new`` tokens are the tree's last nodes and attend to their paths; those before
        are causal. 0 where a token attends, else -inf.
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
