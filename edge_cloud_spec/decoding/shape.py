"""The shapes of a draft: a chain, a tree of given expansion, or a best-first tree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod


@dataclass(frozen=True)
class Expansion:
    """Every node of level l has ``sizes[l]`` children, <k1..kL> (TSLT 4.1); ones make a chain."""

    sizes: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Levels of the tree."""
        return len(self.sizes)

    @property
    def max_nodes(self) -> int:
        """The most nodes that a draft of this shape has."""
        return sum(prod(self.sizes[: level + 1]) for level in range(len(self.sizes)))

    @property
    def is_chain(self) -> bool:
        """Whether one token follows another."""
        return self.max_nodes == self.depth

    def within(self, depth: int) -> Expansion:
        """The same shape, cut to this depth."""
        return self if depth >= self.depth else Expansion(self.sizes[:depth])


@dataclass(frozen=True)
class BestFirst:
    """The ``nodes`` nodes of highest cumulative probability; nothing is drawn (SpecEdge 4.2).

    They are found in ``depth`` passes over at most ``width`` nodes each (appendix C).
    """

    nodes: int
    depth: int
    width: int

    @property
    def max_nodes(self) -> int:
        """The most nodes that a draft of this shape has."""
        return self.nodes

    @property
    def is_chain(self) -> bool:
        """Whether one token follows another."""
        return self.width == 1

    def within(self, depth: int) -> BestFirst:
        """The same shape, cut to this depth."""
        return self if depth >= self.depth else replace(self, depth=depth)


Shape = Expansion | BestFirst


def chain(length: int) -> Expansion:
    """The shape of a chain of ``length`` tokens."""
    return Expansion((1,) * length)


@dataclass(frozen=True)
class Branch:
    """A draft to make after ``prefix``: verified tokens, maybe followed by predicted ones."""

    prefix: tuple[int, ...]
    shape: Shape
