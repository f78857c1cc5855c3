"""The shapes of a draft, and how it grows: one pass of the draft model a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from .choose import Chooser
from .draft import Draft
from .propose import Recipe, beliefs, candidates, likeliest
from .row import Row


@dataclass(frozen=True)
class Expansion:
    """Every node of level l has ``sizes[l]`` children, <k1..kL> (TSLT 4.1); ones make a chain."""

    sizes: tuple[int, ...]

    @property
    def depth(self) -> int:
        return len(self.sizes)

    @property
    def most(self) -> int:
        """Nodes at most."""
        return sum(prod(self.sizes[: level + 1]) for level in range(len(self.sizes)))

    def within(self, depth: int) -> Expansion:
        """The same, no deeper than this."""
        return Expansion(self.sizes[:depth])


@dataclass(frozen=True)
class BestFirst:
    """The ``nodes`` of the highest cumulative probability, found in ``depth`` passes over at most

    ``width`` nodes each (SpecEdge 4.2 and appendix C). Nothing is drawn.
    """

    nodes: int
    depth: int
    width: int

    @property
    def most(self) -> int:
        """Nodes at most."""
        return self.nodes

    def within(self, depth: int) -> BestFirst:
        """The same, no deeper than this."""
        return replace(self, depth=min(depth, self.depth))


Shape = Expansion | BestFirst


def chain(length: int) -> Expansion:
    """One token after another."""
    return Expansion((1,) * length)


@dataclass(frozen=True, eq=False)
class Level:
    """Nodes to be scored in one pass; parents are indices in order of growth, -1 for the prefix."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    rows: tuple[Row, ...] = ()


class Growth:
    """One draft in the making. ``grow`` takes the logits after the frontier and gives new nodes."""

    def __init__(
        self,
        shape: Shape,
        recipe: Recipe,
        position: int,
        end_tokens: Sequence[int],
        chooser: Chooser,
    ) -> None:
        """position: of the first drafted token in the answer. Nothing follows an end token."""
        self._shape, self._recipe, self._position = shape, recipe, position
        self._ends, self._chooser = frozenset(end_tokens), chooser
        self._frontier: list[int] = [-1]
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._rows: list[Row] = []
        self._likelihood: list[float] = []  # cumulative, of each node
        self._level = 0

    @property
    def done(self) -> bool:
        """Whether there is nothing left to grow."""
        return self._level == self._shape.depth or not self._frontier

    @property
    def frontier(self) -> tuple[int, ...]:
        """The nodes (-1: the prefix) whose logits the next ``grow`` needs, in this order."""
        return tuple(self._frontier)

    def grow(self, logits: NDArray[np.float32]) -> Level:
        """The next level's nodes; ``logits`` [m, V] are those after the m nodes of the frontier."""
        begin = len(self._tokens)
        level = (
            self._expand(logits, self._shape.sizes[self._level])
            if isinstance(self._shape, Expansion)
            else self._best(logits, self._shape)
        )
        self._tokens += level.tokens
        self._parents += level.parents
        self._rows += level.rows
        self._level += 1
        grown = range(begin, len(self._tokens))
        self._frontier = [node for node in grown if self._tokens[node] not in self._ends]
        return level

    def draft(self) -> Draft:
        """All of it as it is sent: a chain without parents, a best-first tree within its budget."""
        tokens, parents = self._tokens, self._parents
        if isinstance(self._shape, BestFirst) and len(tokens) > self._shape.nodes:
            order = np.argsort(-np.array(self._likelihood), kind="stable")  # parents come first
            kept = sorted(order[: self._shape.nodes].tolist())
            place = {-1: -1, **{node: i for i, node in enumerate(kept)}}
            tokens, parents = [tokens[i] for i in kept], [place[parents[i]] for i in kept]
        is_chain = parents == list(range(-1, len(tokens) - 1))
        return Draft(tuple(tokens), None if is_chain else tuple(parents), tuple(self._rows) or None)

    def _expand(self, logits: NDArray[np.float32], count: int) -> Level:
        at = self._position + self._level
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[Row] = []
        for i, (node, row) in enumerate(zip(self._frontier, logits, strict=True)):
            found, drawn = candidates(row, self._recipe, at, count, self._chooser, i * count)
            tokens += found
            parents += [node] * len(found)
            rows += [drawn] if drawn is not None else []
        return Level(tuple(tokens), tuple(parents), tuple(rows))

    def _best(self, logits: NDArray[np.float32], shape: BestFirst) -> Level:
        at = self._position + self._level
        found: list[tuple[float, int, int]] = []
        for node, row in zip(self._frontier, logits, strict=True):
            before = 1.0 if node < 0 else self._likelihood[node]
            chances = beliefs(row, self._recipe, at)
            found += [
                (before * float(chances[token]), node, token)
                for token in likeliest(chances, shape.width)
            ]
        found.sort(key=lambda one: (-one[0], one[1], one[2]))
        best = found[: shape.width]
        self._likelihood += [chance for chance, _, _ in best]
        return Level(tuple(t for _, _, t in best), tuple(node for _, node, _ in best))
