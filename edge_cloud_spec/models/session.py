"""One decode's state over a model: the rows that are computed, and the logits after them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from .cache import KeyValueCache
from .forward_pass import PassRows, run_pass
from .node_tree import NodeTree
from .transformer import OnLayer, Segment, Transformer


class Session:
    """Scores chains and trees after a prefix; owns its cache and positions; one owner thread.

    The prefix is the prompt and the tokens after it. Its last tokens may not be computed yet
    (`extend`); the next pass computes them together with its nodes. Nodes stay until `commit`,
    `extend`, `truncate` or another `forward`.
    """

    def __init__(
        self,
        transformer: Transformer,
        cache: KeyValueCache,
        rows: int,
        delta: int,
        row: NDArray[np.float32],
    ) -> None:
        """rows: of the prompt, in the cache. delta: position of a row minus its index, after the
        image (its tokens share positions). row: logits [V] after the prompt."""
        self._transformer, self._cache = transformer, cache
        self._prompt_rows, self._delta, self._prompt_row = rows, delta, row
        self._vocabulary = len(row)
        self._tokens: list[int] = []  # the prefix after the prompt
        self._computed = 0  # how many of them are in the cache
        self._row: NDArray[np.float32] | None = row  # logits after the computed tokens, if known
        self._nodes = NodeTree()

    @property
    def length(self) -> int:
        """Tokens of the prefix after the prompt."""
        return len(self._tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prefix after the prompt."""
        return tuple(self._tokens)

    def forward(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        on_layer: OnLayer | None = None,
    ) -> NDArray[np.float32]:
        """Logits [1 + n, V]: row 0 follows the prefix, row i + 1 follows node i.

        parents[i] < i is the index of node i's parent, or -1 for the prefix; None is a chain.
        on_layer(layer, hidden): hidden rows [m, hidden_size] of the computed tail of what is
        returned (all but row 0, or all, when the prefix had tokens to compute). What it raises ends
        the pass; there are no nodes then. ValueError: a token or a parent that there is not.
        """
        part = self._forward_rows(tokens, parents)
        if part is None:
            assert self._row is not None
            return self._row[None]
        try:
            logits = run_pass(self._transformer, [part], self._vocabulary, on_layer)[0]
        except BaseException:
            self._nodes = NodeTree()
            raise
        return self._store(logits)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: OnLayer | None = None
    ) -> NDArray[np.float32]:
        """Logits [n, V] of more nodes, after those that are there already.

        Indices continue those of the last `forward`; a parent is any earlier node or -1. When
        `on_layer` raises, there are only the earlier nodes.
        """
        if self._computed < len(self._tokens) or self._row is None:
            return self.forward(tokens, parents, on_layer)[1:]
        was_chain = self._nodes.is_chain
        part = self._pass_rows([], tokens, parents)
        try:
            logits = run_pass(self._transformer, [part], self._vocabulary, on_layer)[0]
        except BaseException:
            self._nodes.without_last(len(tokens), was_chain)
            raise
        self._nodes.logits += list(logits)
        return logits

    def logits_after(self, node: int, on_layer: OnLayer | None = None) -> NDArray[np.float32]:
        """Logits [V] after a node that was scored, or after the prefix (-1)."""
        if node >= 0:
            return self._nodes.logits[node]
        if self._computed < len(self._tokens) or self._row is None:
            self.forward((), None, on_layer)
        assert self._row is not None
        return self._row

    @property
    def known_row(self) -> NDArray[np.float32] | None:
        """Logits [V] after the prefix, where no pass is needed for them."""
        return self._row if self._computed == len(self._tokens) else None

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Keep the nodes of ``path`` (indices from root to leaf) as prefix; roll back all others.

        ``keep``: descendants of the path's end, each after its parent, that stay as nodes in this
        order. ValueError: ``path`` is not one, or ``keep`` does not come after it.
        """
        kept = self._nodes.below(path, keep)
        base = self._prompt_rows + self._computed
        self._cache.gather(base, [base + index for index in (*path, *keep)])
        self._tokens += [self._nodes.tokens[index] for index in path]
        self._computed += len(path)
        if path:
            self._row = self._nodes.logits[path[-1]]
        self._nodes = kept

    def extend(self, tokens: Sequence[int]) -> None:
        """Add known tokens to the prefix; the next forward computes them."""
        self._nodes = NodeTree()
        self._tokens += self._checked(tokens)

    def truncate(self, length: int) -> None:
        """Roll the prefix back to `length` tokens after the prompt; ValueError: it has fewer."""
        if not 0 <= length <= len(self._tokens):
            raise ValueError(f"cannot truncate {len(self._tokens)} tokens to {length}")
        self._nodes = NodeTree()
        del self._tokens[length:]
        if length < self._computed:
            self._computed = length
            self._row = self._prompt_row if length == 0 else None

    def _forward_rows(
        self, tokens: Sequence[int], parents: Sequence[int] | None
    ) -> PassRows | None:
        """What a forward has to compute; None when that is nothing."""
        self._nodes = NodeTree()
        if self._computed == len(self._tokens) and self._row is None:
            self._computed -= 1  # after truncate: the logits after the last token are not known
        tail = self._tokens[self._computed :]
        if not tail and not len(tokens):
            return None
        return self._pass_rows(
            tail, tokens, range(-1, len(tokens) - 1) if parents is None else parents
        )

    def _pass_rows(
        self, tail: list[int], tokens: Sequence[int], parents: Sequence[int]
    ) -> PassRows:
        """Rows for the prefix's tail and for new nodes, after the nodes that are there."""
        nodes, before = self._nodes, len(self._nodes)
        start = self._prompt_rows + self._computed + before
        count = len(tail) + len(tokens)
        nodes.append(self._checked(tokens), parents)
        end = self._prompt_rows + len(self._tokens) + self._delta
        positions = [*range(end - len(tail), end), *(end + at for at in nodes.depths[before:])]
        self._cache.reserve(start + count, start)
        if nodes.is_chain:
            mask = self._transformer.causal_mask(start, count)
        else:
            mask = torch.from_numpy(nodes.mask(count, start, len(tokens)))
            mask = mask.to(self._transformer.device, self._transformer.dtype)
        segment = Segment(self._cache, start, count, mask)
        return PassRows(tail + nodes.tokens[before:], positions, segment, max(len(tail) - 1, 0))

    def _store(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Keep the logits of a forward and return [1 + n, V]."""
        if self._computed == len(self._tokens):
            assert self._row is not None
            logits = np.concatenate([self._row[None], logits])
        self._computed = len(self._tokens)
        self._row = logits[0]
        self._nodes.logits = list(logits[1:])
        return logits

    def _checked(self, tokens: Sequence[int]) -> list[int]:
        """As ints; an id without an embedding would be fatal to the whole process on a GPU."""
        checked = [int(token) for token in tokens]
        if checked and not 0 <= min(checked) <= max(checked) < self._vocabulary:
            raise ValueError(f"tokens {checked} are not all below {self._vocabulary}")
        return checked


def forward_together(
    sessions: Sequence[Session],
    tokens: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int] | None],
) -> list[NDArray[np.float32]]:
    """`forward` of several sessions of one model in one pass, which reads the weights only once.

    Nothing is padded and no cache is copied, whatever the lengths.
    """
    parts = [
        session._forward_rows(nodes, above)
        for session, nodes, above in zip(sessions, tokens, parents, strict=True)
    ]
    due = [part for part in parts if part is not None]
    first = sessions[0]
    logits = iter(run_pass(first._transformer, due, first._vocabulary, None) if due else ())
    return [
        session.forward(()) if part is None else session._store(next(logits))
        for session, part in zip(sessions, parts, strict=True)
    ]
