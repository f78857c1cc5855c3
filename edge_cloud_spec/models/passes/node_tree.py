"""The drafted tokens that a session has computed after its prefix, as a tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .target_rows import DeviceRows


class NodeTree:
    """Nodes in the order of their cache rows; a node attends to its ancestors and to itself.

    ``parents`` are indices of earlier nodes, -1 for the prefix; ``logits`` are float32 [V] after
    each node that is scored.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.logits: list[DeviceRows] = []
        self._attends: NDArray[np.bool_] | None = None  # [nodes, nodes]; None: they are a chain

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether causal attention is right for all nodes."""
        return self._attends is None

    def append(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Add nodes, without logits so far; ValueError where a parent is no earlier node."""
        if len(parents) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens but {len(parents)} parents")
        before, chain = len(self.tokens), self._attends is None
        for index, parent in enumerate(parents, before):
            if not -1 <= parent < index:
                raise ValueError(f"the parent of node {index} is {parent}, not an earlier node")
            chain = chain and parent == index - 1
        self.tokens += tokens
        self.parents += [int(parent) for parent in parents]
        for parent in parents:
            self.depths.append(0 if parent < 0 else self.depths[parent] + 1)
        if not chain:
            self._attends = self._attention(before)

    def _attention(self, before: int) -> NDArray[np.bool_]:
        """Which node attends to which [nodes, nodes]; the rows of ``before`` nodes are known."""
        total = len(self.tokens)
        attends = np.tri(total, dtype=bool)  # right for a chain
        if self._attends is not None:
            attends[:before, :before] = self._attends
        for index in range(before if self._attends is not None else 0, total):
            parent = self.parents[index]
            attends[index] = attends[parent] if parent >= 0 else False
            attends[index, index] = True
        return attends

    def without_last(self, count: int, was_chain: bool) -> None:
        """Remove the last ``count`` nodes, which have no logits; before them it was a chain."""
        left = len(self.tokens) - count
        for values in (self.tokens, self.parents, self.depths):
            del values[left:]
        if was_chain:
            self._attends = None
        elif self._attends is not None:
            self._attends = self._attends[:left, :left]

    def below(self, path: Sequence[int], keep: Sequence[int]) -> NodeTree:
        """The nodes ``keep``, in this order, with the end of ``path`` as their prefix.

        ValueError: ``path`` is not one from the prefix on, or the parent of a kept node is neither
        its end nor kept.
        """
        end = -1
        for index in path:
            if not 0 <= index < len(self.tokens) or self.parents[index] != end:
                raise ValueError(f"{list(path)} is not a path of the nodes {self.parents}")
            end = index
        place = {end: -1, **{index: i for i, index in enumerate(keep)}}
        if any(self.parents[index] not in place for index in keep):
            raise ValueError(f"{list(keep)} do not all come after node {end}")
        kept = NodeTree()
        kept.tokens = [self.tokens[index] for index in keep]
        kept.parents = [place[self.parents[index]] for index in keep]
        kept.depths = [self.depths[index] - len(path) for index in keep]
        kept.logits = [self.logits[index] for index in keep]
        if self._attends is not None and keep:
            rest = np.array(keep, int)
            kept._attends = self._attends[np.ix_(rest, rest)]
        return kept

    def mask(self, count: int, start: int, new: int) -> NDArray[np.float32]:
        """Additive mask [count, start + count] of a pass over ``count`` rows after ``start``.

        The last ``new`` rows are the last nodes and attend to their paths; the rows before those
        are causal. Only for what is not a chain.
        """
        assert self._attends is not None
        total = len(self.tokens)
        mask = np.zeros((count, start + count), np.float32)
        mask[:, start:] = np.where(np.tri(count, dtype=bool), 0.0, -np.inf)
        attends = self._attends[total - new :]
        mask[count - new :, start + count - total :] = np.where(attends, 0.0, -np.inf)
        return mask
