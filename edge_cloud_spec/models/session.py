"""One decode's state over a model: the rows that are computed, and what follows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from .transformer import OnLayer, Segment

if TYPE_CHECKING:
    from .cache import KeyValueCache
    from .transformer import Transformer


class Session:
    """Scores chains and trees after a prefix; owns its cache and positions; one owner thread.

    The prefix is the prompt and the tokens after it. Its last tokens may not be computed yet
    (`extend`); the next pass computes them together with the nodes it is asked about. Nodes stay
    until `commit`, `extend`, `truncate` or another `forward`.
    """

    def __init__(
        self, decoder: Transformer, cache: KeyValueCache, rows: int, delta: int, row: np.ndarray
    ) -> None:
        """rows: of the prompt, in the cache. delta: position of a row minus its index, after the
        image (its tokens share positions). row: logits [V] after the prompt."""
        self._decoder, self._cache = decoder, cache
        self._prompt_rows, self._delta, self._prompt_row = rows, delta, row
        self._vocabulary = len(row)
        self._tokens: list[int] = []  # the prefix after the prompt
        self._computed = 0  # how many of them are in the cache
        self._row: np.ndarray | None = row  # logits after the computed tokens, where known
        self._drop_nodes()

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
    ) -> np.ndarray:
        """Logits float32 [1 + n, V]: row 0 follows the prefix, row i + 1 follows node i.

        parents[i] < i is the index of node i's parent, or -1 for the prefix; None is a chain.
        on_layer(layer, hidden): hidden rows [m, hidden_size] of the computed tail of what is
        returned (all but row 0, or all, when the prefix had tokens to compute). What it raises ends
        the pass; there are no nodes then.
        """
        plan = self._plan(tokens, parents)
        if plan is None:
            assert self._row is not None
            return self._row[None]
        try:
            rows = _run(self._decoder, [plan], self._vocabulary, on_layer)[0]
        except BaseException:
            self._drop_nodes()
            raise
        return self._settle(plan, rows)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: OnLayer | None = None
    ) -> np.ndarray:
        """Logits float32 [n, V] of more nodes, after those that are there already.

        Indices go on from the nodes of the last `forward`; a parent is any earlier node or -1. When
        `on_layer` raises, there are only the earlier nodes.
        """
        if self._computed < len(self._tokens) or self._row is None:
            return self.forward(tokens, parents, on_layer)[1:]
        before = len(self._nodes), self._sees
        plan = self._plan_rows([], tokens, parents)
        try:
            rows = _run(self._decoder, [plan], self._vocabulary, on_layer)[0]
        except BaseException:
            self._forget_after(*before)
            raise
        self._rows += list(rows)
        return rows

    def logits_after(self, node: int, on_layer: OnLayer | None = None) -> np.ndarray:
        """Logits float32 [V] after a node that was scored, or after the prefix (-1)."""
        if node >= 0:
            return self._rows[node]
        if self._computed < len(self._tokens) or self._row is None:
            self.forward((), None, on_layer)
        assert self._row is not None
        return self._row

    @property
    def known_row(self) -> np.ndarray | None:
        """Logits float32 [V] after the prefix, where no pass is needed for them."""
        return self._row if self._computed == len(self._tokens) else None

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Keep the nodes of ``path`` (indices from root to leaf) as prefix; roll back all others.

        ``keep``: descendants of the path's end, each after its parent, that stay as nodes in this
        order.
        """
        parent = -1
        for index in path:
            if not 0 <= index < len(self._nodes) or self._parents[index] != parent:
                raise ValueError(f"{list(path)} is not a path of the nodes {self._parents}")
            parent = index
        place = {parent: -1, **{index: i for i, index in enumerate(keep)}}
        if any(self._parents[index] not in place for index in keep):
            raise ValueError(f"{list(keep)} do not all come after node {parent}")
        base = self._prompt_rows + self._computed
        self._cache.gather(base, [base + index for index in (*path, *keep)])
        self._tokens += [self._nodes[index] for index in path]
        self._computed += len(path)
        if path:
            self._row = self._rows[path[-1]]
        rest = np.array(keep, int)
        nodes, rows = [self._nodes[i] for i in keep], [self._rows[i] for i in keep]
        parents = [place[self._parents[i]] for i in keep]
        depths = [self._depths[i] - len(path) for i in keep]
        sees = None if self._sees is None or not keep else self._sees[np.ix_(rest, rest)]
        self._drop_nodes()
        self._nodes, self._parents, self._depths, self._rows = nodes, parents, depths, rows
        self._sees = sees

    def extend(self, tokens: Sequence[int]) -> None:
        """Known tokens after the prefix; the next forward computes them."""
        self._drop_nodes()
        self._tokens += self._checked(tokens)

    def truncate(self, length: int) -> None:
        """Roll the prefix back to `length` tokens after the prompt."""
        if not 0 <= length <= len(self._tokens):
            raise ValueError(f"cannot truncate {len(self._tokens)} tokens to {length}")
        self._drop_nodes()
        del self._tokens[length:]
        if length < self._computed:
            self._computed = length
            self._row = self._prompt_row if length == 0 else None

    def _drop_nodes(self) -> None:
        self._nodes: list[int] = []
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._rows: list[np.ndarray] = []
        self._sees: np.ndarray | None = None  # bool [nodes, nodes]; None while nodes are a chain

    def _forget_after(self, count: int, sees: np.ndarray | None) -> None:
        """Only so many nodes were scored, and saw each other like this."""
        for held in (self._nodes, self._parents, self._depths):
            del held[count:]
        self._sees = sees

    def _plan(self, tokens: Sequence[int], parents: Sequence[int] | None) -> _PassPlan | None:
        """What a forward has to compute; None when that is nothing."""
        self._drop_nodes()
        if self._computed == len(self._tokens) and self._row is None:
            self._computed -= 1  # after truncate: what follows the last token is not known
        tail = self._tokens[self._computed :]
        if not tail and not len(tokens):
            return None
        return self._plan_rows(
            tail, tokens, range(-1, len(tokens) - 1) if parents is None else parents
        )

    def _plan_rows(
        self, tail: list[int], tokens: Sequence[int], parents: Sequence[int]
    ) -> _PassPlan:
        """Rows for the prefix's tail and for new nodes, after the nodes that are there."""
        before = len(self._nodes)
        start = self._prompt_rows + self._computed + before
        count = len(tail) + len(tokens)
        self._append(tokens, parents)
        end = self._prompt_rows + len(self._tokens) + self._delta
        positions = [*range(end - len(tail), end), *(end + at for at in self._depths[before:])]
        self._cache.reserve(start + count, start)
        if self._sees is None:
            mask = self._decoder.causal_mask(start, count)
        else:
            mask = self._tree_mask(start, count, before)
        segment = Segment(self._cache, start, count, mask)
        return _PassPlan(tail + self._nodes[before:], positions, segment, max(len(tail) - 1, 0))

    def _settle(self, plan: _PassPlan, rows: np.ndarray) -> np.ndarray:
        """Note what was computed and return [1 + n, V]."""
        if self._computed == len(self._tokens):
            assert self._row is not None
            rows = np.concatenate([self._row[None], rows])
        self._computed = len(self._tokens)
        self._row = rows[0]
        self._rows = list(rows[1:])
        return rows

    def _checked(self, tokens: Sequence[int]) -> list[int]:
        """As ints; an id without an embedding would be fatal to the whole process on a GPU."""
        checked = [int(token) for token in tokens]
        if checked and not 0 <= min(checked) <= max(checked) < self._vocabulary:
            raise ValueError(f"tokens {checked} are not all below {self._vocabulary}")
        return checked

    def _append(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        if len(parents) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens but {len(parents)} parents")
        before = len(self._nodes)
        chain = self._sees is None
        for index, parent in enumerate(parents, before):
            if not -1 <= parent < index:
                raise ValueError(f"the parent of node {index} is {parent}, not an earlier node")
            chain = chain and parent == index - 1
            self._depths.append(0 if parent < 0 else self._depths[parent] + 1)
        self._nodes += self._checked(tokens)
        self._parents += [int(parent) for parent in parents]
        if not chain:
            total = len(self._nodes)
            sees = np.tri(total, dtype=bool)  # right for a chain
            if self._sees is not None:
                sees[:before, :before] = self._sees
            for index in range(before if self._sees is not None else 0, total):
                parent = self._parents[index]
                sees[index] = sees[parent] if parent >= 0 else False
                sees[index, index] = True
            self._sees = sees

    def _tree_mask(self, start: int, count: int, before: int) -> torch.Tensor:
        """Additive mask [count, start + count]: prefix rows are causal, a node sees its path."""
        total = len(self._nodes)
        new = total - before
        mask = np.zeros((count, start + count), np.float32)
        mask[:, start:] = np.where(np.tri(count, dtype=bool), 0.0, -np.inf)
        assert self._sees is not None
        mask[count - new :, start + count - total :] = np.where(self._sees[before:], 0.0, -np.inf)
        return torch.from_numpy(mask).to(self._decoder.device, self._decoder.dtype)


@dataclass(frozen=True, eq=False)
class _PassPlan:
    """Rows of one session in a pass; logits are wanted from row `keep` on."""

    tokens: list[int]
    positions: list[int]
    segment: Segment
    keep: int


def forward_together(
    sessions: Sequence[Session],
    tokens: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int] | None],
) -> list[np.ndarray]:
    """`forward` of several sessions of one model in one pass: the weights are read once for all.

    Nothing is padded and no cache is copied, whatever the lengths: the rows of all sessions go
    through the matrices together, and each session's attention over its own cache.
    """
    plans = [
        session._plan(nodes, above)
        for session, nodes, above in zip(sessions, tokens, parents, strict=True)
    ]
    due = [plan for plan in plans if plan is not None]
    first = sessions[0]
    done = iter(_run(first._decoder, due, first._vocabulary, None) if due else ())
    return [
        session.forward(()) if plan is None else session._settle(plan, next(done))
        for session, plan in zip(sessions, plans, strict=True)
    ]


def _run(
    decoder: Transformer, plans: Sequence[_PassPlan], vocabulary: int, on_layer: OnLayer | None
) -> list[np.ndarray]:
    """One pass; logits float32 of each plan's rows from `keep` on."""
    tokens = [token for plan in plans for token in plan.tokens]
    wanted: slice | torch.Tensor
    if len(plans) == 1:
        wanted = slice(plans[0].keep, None)
    else:
        starts = np.cumsum([0] + [len(plan.tokens) for plan in plans])
        kept = [
            np.arange(at + plan.keep, at + len(plan.tokens))
            for at, plan in zip(starts, plans, strict=False)
        ]
        wanted = torch.from_numpy(np.concatenate(kept)).to(decoder.device)
    with torch.inference_mode():
        hidden = decoder.forward(
            decoder.embed(tokens),
            [position for plan in plans for position in plan.positions],
            [plan.segment for plan in plans],
            on_layer=None if on_layer is None else lambda at, rows: on_layer(at, rows[wanted]),
        )
        rows = decoder.logits(hidden[wanted], vocabulary).cpu().numpy()
    ends = np.cumsum([len(plan.tokens) - plan.keep for plan in plans])
    return np.split(rows, ends[:-1])
