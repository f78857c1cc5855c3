"""A session, of a draft model or a target, that is driven at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class DrivenSession:
    """``check`` is told of rows: the tokens after the prompt that each follows, and the row."""

    def __init__(
        self,
        session: Any,
        check: Callable[[Sequence[int], Any], None],
        dice: np.random.Generator,
        vocabulary: int = 251,
    ) -> None:
        self.session, self.check = session, check
        self.dice, self.vocabulary = dice, vocabulary
        self.nodes: list[tuple[int, int]] = []  # token and parent

    def path(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.insert(0, node)
            node = self.nodes[node][1]
        return path

    def check_at(self, node: int, row: Any = None) -> None:
        """The row after a node, or after the prefix (-1)."""
        tokens = [*self.session.tokens, *(self.nodes[each][0] for each in self.path(node))]
        self.check(tokens, self.session.logits_after(node) if row is None else row)

    def tokens(self, least: int, most: int) -> list[int]:
        count = self.dice.integers(least, most + 1)
        return self.dice.integers(0, self.vocabulary, count).tolist()

    def node(self, nodes: int) -> int:
        """One of so many, or -1."""
        return int(self.dice.integers(-1, nodes))

    def drafted(self, before: int, least: int = 0) -> tuple[list[int], list[int]]:
        """Tokens and parents of nodes after so many."""
        tokens = self.tokens(least, 5)
        return tokens, [self.node(place) for place in range(before, before + len(tokens))]

    def grow(self) -> None:
        self.add(*self.drafted(len(self.nodes), 1))

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        first, rows = len(self.nodes), self.session.grow(tokens, parents)
        assert len(rows) == len(tokens)
        self.nodes += zip(tokens, parents, strict=True)
        for node, row in reversed([*enumerate(rows, first)]):  # what is known of one is of those
            self.check_at(node, row)  # before it

    def commit(self) -> None:
        path = self.path(self.node(len(self.nodes)))
        place = {path[-1] if path else -1: -1}
        for node, (_, parent) in enumerate(self.nodes):
            if parent in place and node not in path and self.dice.random() < 0.5:
                place[node] = len(place) - 1
        keep = list(place)[1:]
        tokens = self.session.tokens + tuple(self.nodes[node][0] for node in path)
        self.session.commit(path, keep)
        assert self.session.tokens == tokens
        self.nodes = [(self.nodes[node][0], place[self.nodes[node][1]]) for node in keep]

    def extend(self) -> None:
        self.session.extend(self.tokens(0, 3))
        self.nodes = []

    def truncate(self) -> None:
        """A little, mostly."""
        length = len(self.session.tokens)
        left = 0 if self.dice.random() < 0.1 else length - int(self.dice.integers(1, 3))
        self.session.truncate(max(0, left))
        self.nodes = []

    def look(self) -> None:
        self.check_at(self.node(len(self.nodes)))

    def act(self, acts: Sequence[Callable[[], None]]) -> None:
        acts[self.dice.integers(len(acts))]()

    def turn(self) -> None:
        often, seldom = [self.grow, self.commit, self.look], [self.extend, self.truncate]
        self.act([*often, *often, *seldom])
