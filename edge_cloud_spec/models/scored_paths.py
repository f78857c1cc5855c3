"""A draft session's verified prefix, and the paths after it whose rows are computed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..decoding.digest import common_prefix

if TYPE_CHECKING:
    from .passes.transformer import OnLayer
    from .session import Session

Path = tuple[int, ...]  # tokens after the verified prefix


class ScoredPaths:
    """Finds the session's nodes by the tokens that lead to them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.verified: tuple[int, ...] = ()
        self._nodes: dict[Path, int] = {(): -1}

    def follow(self, prefix: Sequence[int]) -> None:
        """Make these verified tokens the prefix; what is computed of and after them is kept."""
        verified = tuple(prefix)
        before = self._session.tokens
        shared = common_prefix(before, verified)
        after: dict[Path, int] = {}
        if shared < len(before):
            self._session.truncate(shared)
        else:
            fresh = verified[shared:]
            path = self._nodes_along(fresh)
            shared += len(path)
            if shared == len(verified):
                size = len(fresh)
                after = {
                    tokens[size:]: node
                    for tokens, node in self._nodes.items()
                    if tokens[:size] == fresh and len(tokens) > size
                }
            self._session.commit(path, sorted(after.values()))
        if shared < len(verified):
            self._session.extend(verified[shared:])
        order = {node: place for place, node in enumerate(sorted(after.values()))}
        self.verified = verified
        self._nodes = {(): -1, **{tokens: order[node] for tokens, node in after.items()}}

    def _nodes_along(self, tokens: Path) -> list[int]:
        """The nodes along these tokens, until there is none."""
        ends = (self._nodes.get(tokens[: end + 1]) for end in range(len(tokens)))
        return [node for node in takewhile(lambda node: node is not None, ends) if node is not None]

    def rows_due(self, paths: Sequence[Path]) -> int:
        """How many rows a pass computes for what follows these paths; 0: it is known."""
        missing = len(self._missing(paths))
        return missing + (self._session.pending_rows if missing or () in paths else 0)

    def score(self, paths: Sequence[Path], on_layer: OnLayer | None = None) -> None:
        """Compute what is not known along these paths, in one pass."""
        missing = self._missing(paths)
        if not missing:
            if () in paths:
                self._session.logits_after(-1, on_layer)
            return
        first = len(self._nodes) - 1  # the prefix itself is in there, too
        places = {path: first + number for number, path in enumerate(missing)}
        known = self._nodes | places
        parents = [known[path[:-1]] for path in missing]
        self._session.grow([path[-1] for path in missing], parents, on_layer)
        self._nodes = known

    def row(self, path: Path) -> NDArray[np.float32]:
        """The logits [V] after a path that is scored."""
        return self._session.logits_after(self._nodes[path])

    def _missing(self, paths: Sequence[Path]) -> list[Path]:
        """The nodes along these paths that are not computed, each after its parent."""
        ends = (path[:end] for path in paths for end in range(1, len(path) + 1))
        return [path for path in dict.fromkeys(ends) if path not in self._nodes]
