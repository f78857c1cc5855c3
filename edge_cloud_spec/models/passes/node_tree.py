"""The drafted tokens that a session has computed after its prefix, as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .target_rows import DeviceRows


@dataclass
class NodeTree:
    """Nodes in the order of their cache rows; a node attends to its ancestors and to itself.

    ``parents`` are indices of earlier nodes, -1 for the prefix; ``logits`` are float32 [V] after
    each node that is scored. ValueError: a parent is no earlier node. with_prompt: they were scored
    in the pass over the prompt, and nothing came since.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    logits: list[DeviceRows] = field(default_factory=list, compare=False)
    with_prompt: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        self.depths: list[int] = []
        for index, parent in enumerate(self.parents):
            if not -1 <= parent < index:
                raise ValueError(f"the parent of node {index} is {parent}, not an earlier node")
            self.depths.append(0 if parent < 0 else self.depths[parent] + 1)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether causal attention is right for all nodes."""
        return self.parents == list(range(-1, len(self) - 1))

    def grown(self, tokens: Sequence[int], parents: Sequence[int] | None) -> NodeTree:
        """The tree with more nodes, without logits so far; parents: None is a chain after it."""
        before = len(self)
        chain = range(before - 1, before - 1 + len(tokens))
        more = chain if parents is None else parents
        return NodeTree([*self.tokens, *tokens], [*self.parents, *map(int, more)], [*self.logits])

    def below(self, path: Sequence[int], keep: Sequence[int]) -> NodeTree:
        """The nodes ``keep``, in this order, with the end of ``path`` as their prefix.

        ValueError: ``path`` is not one from the prefix on, or the parent of a kept node is neither
        its end nor kept.
        """
        end = -1
        for index in path:
            if not 0 <= index < len(self) or self.parents[index] != end:
                raise ValueError(f"{list(path)} is not a path of the nodes {self.parents}")
            end = index
        place = {end: -1, **{index: i for i, index in enumerate(keep)}}
        if any(self.parents[index] not in place for index in keep):
            raise ValueError(f"{list(keep)} do not all come after node {end}")
        return NodeTree(
            [self.tokens[index] for index in keep],
            [place[self.parents[index]] for index in keep],
            [self.logits[index] for index in keep],
        )

    def mask(self, count: int, start: int, new: int) -> NDArray[np.float32]:
        """Additive mask [count, start + count] of a pass over ``count`` rows after ``start``.

        The last ``new`` rows are the last nodes and attend to their paths; the rows before those
        are causal.
        """
        total = len(self)
        attends = np.eye(total, dtype=bool)
        for index, parent in enumerate(self.parents):
            if parent >= 0:
                attends[index] |= attends[parent]
        mask = np.zeros((count, start + count), np.float32)
        mask[:, start:] = np.where(np.tri(count, dtype=bool), 0.0, -np.inf)
        mask[count - new :, start + count - total :] = np.where(
            attends[total - new :], 0.0, -np.inf
        )
        return mask
