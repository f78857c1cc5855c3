"""Logits of a tree of tokens after a prompt, each computed alone, a token a pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ....models.prompt import Prompt
from ....models.session import Session
from ....models.vlm import Vlm

CHAIN, NODES = 16, 32  # nodes of a tree; the first of them are a chain
PREFIX = -1  # the place of the prompt itself


class KnownRows:
    """A random tree after ``prompt``, and float32 [V] after the prompt and after each node."""

    def __init__(self, vlm: Vlm, prompt: Prompt, rng: np.random.Generator) -> None:
        self.prompt = prompt
        self.tokens = rng.integers(0, vlm.vocabulary, NODES).tolist()
        later = range(CHAIN, NODES)
        self.parents = [*range(-1, CHAIN - 1), *(int(rng.integers(-1, at)) for at in later)]
        session = vlm.open(prompt)
        self._rows = {PREFIX: session.forward(())[0].copy()}
        self._visit(session, PREFIX)

    def _visit(self, session: Session, node: int) -> None:
        """Compute what comes after the node, whose path is the session's prefix."""
        depth = session.length
        for child in self.children(node):
            session.truncate(depth)
            session.extend([self.tokens[child]])
            self._rows[child] = session.forward(())[0].copy()
            self._visit(session, child)

    def children(self, node: int) -> list[int]:
        """The nodes right after this one."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """The nodes from the prompt to this one."""
        path: list[int] = []
        while node != PREFIX:
            path.insert(0, node)
            node = self.parents[node]
        return path

    def differing(self, nodes: Sequence[int], rows: NDArray[np.float32]) -> int:
        """How many of these rows, after these nodes, are not the known ones bit for bit."""
        return sum(
            row.tobytes() != self._rows[node].tobytes()
            for node, row in zip(nodes, rows, strict=True)
        )
