"""The draft model at work: tokens proposed after a verified prefix, one pass a level."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..decoding.choose import Chooser, SeededChooser
from ..decoding.draft import Draft
from ..decoding.propose import Recipe
from ..decoding.shape import Growth, Level, Shape

if TYPE_CHECKING:
    from .session import Session


class Drafter:
    """A draft session that follows the verified prefix, whatever was drafted beyond it."""

    def __init__(self, session: Session, recipe: Recipe, chooser: Chooser | None = None) -> None:
        self._session = session
        self._recipe = recipe
        self._chooser = chooser or SeededChooser(recipe.policy.seed)
        self._growth: Growth | None = None
        self._tokens: list[int] = []  # of the nodes in the session, and their parents
        self._parents: list[int] = []
        self._fresh: Level | None = None  # the last level, not yet in the session

    def begin(self, prefix: Sequence[int], shape: Shape, end_tokens: Sequence[int]) -> None:
        """Start a draft of this shape after these tokens; what the cache shares is kept."""
        self._follow(tuple(prefix))
        position = len(prefix)
        self._growth = Growth(shape, self._recipe, position, end_tokens, self._chooser)

    @property
    def done(self) -> bool:
        """Whether the draft is whole."""
        return self._growth is None or self._growth.done

    def step(self) -> Level:
        """Grow the draft by one level: one pass, and the proposals from its logits."""
        assert self._growth is not None
        self._fresh = self._growth.grow(self._score(self._growth.frontier))
        return self._fresh

    def whole(self) -> Draft:
        """The draft as it is to be sent."""
        assert self._growth is not None
        return self._growth.draft()

    def draft(self, prefix: Sequence[int], shape: Shape, end_tokens: Sequence[int]) -> Draft:
        """A whole draft at once."""
        self.begin(prefix, shape, end_tokens)
        while not self.done:
            self.step()
        return self.whole()

    def _score(self, frontier: tuple[int, ...]) -> NDArray[np.float32]:
        """Logits [m, V] after the frontier, which is the last level without its end tokens."""
        if self._fresh is None:
            return self._session.forward(())
        level, begin = self._fresh, len(self._tokens)
        self._tokens += level.tokens
        self._parents += level.parents
        logits = self._session.grow(level.tokens, level.parents)
        return logits[[node - begin for node in frontier]]

    def _follow(self, prefix: tuple[int, ...]) -> None:
        """Bring the session to this prefix, committing the nodes that lie on it."""
        held = self._session.tokens
        pairs = zip(held, prefix, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if shared < len(held):
            self._session.truncate(shared)
        else:
            path = self._path(prefix[shared:])
            self._session.commit(path)
            shared += len(path)
        self._session.extend(prefix[shared:])
        self._tokens, self._parents, self._fresh = [], [], None

    def _path(self, tokens: tuple[int, ...]) -> list[int]:
        """The nodes in the session along these tokens, as far as there are any."""
        path: list[int] = []
        for token in tokens:
            above = path[-1] if path else -1
            found = (
                node
                for node, parent in enumerate(self._parents)
                if parent == above and self._tokens[node] == token
            )
            node = next(found, None)
            if node is None:
                break
            path.append(node)
        return path
