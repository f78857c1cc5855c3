"""One decode's state over a model, and one pass over the rows of one session or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..decoding.digest import common_prefix
from ..errors import MemoryFull
from .cache import SPARE, CacheOwner, KeyValueCache, RefillCache
from .passes.attention import Segment
from .passes.node_tree import NodeTree
from .passes.target_rows import DeviceRows, joined, on_device, on_host, stacked
from .passes.transformer import OnLayer, Transformer


@dataclass(frozen=True, eq=False)
class PassRequest:
    """What one session wants of a pass; the arguments of ``Session.forward``."""

    session: Session
    tokens: Sequence[int] = ()
    parents: Sequence[int] | None = None
    on_layer: OnLayer | None = None


@dataclass(frozen=True, eq=False)
class PassRows:
    """Rows of one session in a pass: token ids and rotary positions [n].

    Logits are wanted from row ``first_logits`` on; ``on_layer`` receives the hidden rows that they
    are computed from.
    """

    tokens: list[int]
    positions: list[int]
    segment: Segment
    first_logits: int
    on_layer: OnLayer | None = None


class _NobodyLeft(Exception):
    """All parts of a pass have raised."""


def run_pass(
    transformer: Transformer, parts: Sequence[PassRows], vocabulary: int
) -> list[DeviceRows | Exception]:
    """Logits [m, vocabulary] of each part's rows from ``first_logits`` on.

    In place of the logits stands what the part's ``on_layer`` raised: it is not called again, and
    the pass goes on while others want it. Nothing is padded: the rows of all parts go through the
    matrices together, and each part attends to its own cache.
    """
    ends = np.cumsum([len(part.tokens) for part in parts]).tolist()
    wanted = [
        slice(end - len(part.tokens) + part.first_logits, end)
        for part, end in zip(parts, ends, strict=True)
    ]
    raised: dict[int, Exception] = {}

    def on_layer(layer: int, hidden: Tensor) -> None:
        for index, part in enumerate(parts):
            if part.on_layer is None or index in raised:
                continue
            try:
                part.on_layer(layer, hidden[wanted[index]])
            except Exception as error:
                raised[index] = error
                if len(raised) == len(parts):
                    raise _NobodyLeft from None

    with torch.inference_mode():
        try:
            hidden = transformer.forward(
                transformer.embed([token for part in parts for token in part.tokens]),
                [position for part in parts for position in part.positions],
                [part.segment for part in parts],
                on_layer=on_layer if any(part.on_layer for part in parts) else None,
            )
        except _NobodyLeft:
            return list(raised.values())
        rows = [hidden[where] for where in wanted]
        logits = transformer.logits(rows[0] if len(rows) == 1 else torch.cat(rows), vocabulary)
    split = torch.split(logits, [len(each) for each in rows])
    return [raised.get(index, on_device(each)) for index, each in enumerate(split)]


def forward_together(
    transformer: Transformer, vocabulary: int, requests: Sequence[PassRequest]
) -> list[DeviceRows | Exception]:
    """``Session.forward`` of several sessions in one pass, which reads the weights only once.

    Each result is what ``forward`` returns, where it was computed (see ``target_rows``), or in its
    place what it raises (a token that there is not, an exit): that session has no nodes then, the
    others get their rows. What the pass itself raises (memory) is raised, and none of the sessions
    has nodes. A session may be in one request only.
    """
    results: list[DeviceRows | Exception | None] = []
    parts: list[PassRows] = []
    due: list[int] = []  # the requests that need the pass
    seen: set[int] = set()
    for index, request in enumerate(requests):
        session = request.session
        if id(session) in seen or not session.fits(transformer, vocabulary):
            results.append(ValueError("this session is of another model, or in this pass already"))
            continue
        try:
            part = session.rows_to_compute(request.tokens, request.parents, request.on_layer)
        except Exception as error:
            session.drop_nodes()
            results.append(error)
            continue
        seen.add(id(session))
        if part is None:
            results.append(session.take(None))
            continue
        results.append(None)
        parts.append(part)
        due.append(index)
    try:
        logits = run_pass(transformer, parts, vocabulary) if parts else []
    except BaseException:
        for index in due:
            requests[index].session.drop_nodes()
        raise
    for index, rows in zip(due, logits, strict=True):
        session = requests[index].session
        if isinstance(rows, Exception):
            session.drop_nodes()
            results[index] = rows
        else:
            results[index] = session.take(rows)
    return [result for result in results if result is not None]


class Session(CacheOwner):
    """Scores chains and trees after a prefix; owns its cache and positions; one owner thread.

    Without its cache (`evict`) it keeps its tokens and nodes, and has it again at its next pass.

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
        refill: RefillCache,
    ) -> None:
        """rows: of the prompt, in the cache. delta: position of a row minus its index, after the
        image (its tokens share positions). row: logits [V] after the prompt. refill: fills a cache
        with the prompt and some tokens."""
        super().__init__(cache, refill)
        self._transformer = transformer
        self._prompt_rows, self._delta, self._prompt_row = rows, delta, row
        self._vocabulary = len(row)
        self._tokens: list[int] = []  # the prefix after the prompt
        self._computed = 0  # how many of them are in the cache
        self._row: DeviceRows | None = row  # logits after the computed tokens, if known
        self._nodes = NodeTree()
        self._prompt_nodes: NodeTree | None = None  # that were scored with the prompt

    @property
    def length(self) -> int:
        """Tokens of the prefix after the prompt."""
        return len(self._tokens)

    @property
    def prompt_rows(self) -> int:
        """Rows of the prompt."""
        return self._prompt_rows

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
        request = PassRequest(self, tokens, parents, on_layer)
        rows = _rows(forward_together(self._transformer, self._vocabulary, [request])[0])
        logits = on_host(rows)
        if logits is not rows:  # once for all of them
            self._row, self._nodes.logits = logits[0], list(logits[1:])
        return logits

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: OnLayer | None = None
    ) -> NDArray[np.float32]:
        """Logits [n, V] of more nodes, after those that are there already.

        Indices continue those of the last `forward`; a parent is any earlier node or -1. When
        `on_layer` raises, there are only the earlier nodes.
        """
        self._come_back()
        if self._computed < len(self._tokens) or self._row is None:
            return self.forward(tokens, parents, on_layer)[1:]
        was_chain, before = self._nodes.is_chain, len(self._nodes)
        try:
            part = self._pass_rows([], tokens, parents, on_layer)
            logits = on_host(_rows(run_pass(self._transformer, [part], self._vocabulary)[0]))
        except BaseException:
            self._nodes.without_last(len(self._nodes) - before, was_chain)
            raise
        finally:
            self._in_pass = False
        self._nodes.logits += list(logits)
        return logits

    def logits_after(self, node: int, on_layer: OnLayer | None = None) -> NDArray[np.float32]:
        """Logits [V] after a node that was scored, or after the prefix (-1)."""
        if node >= 0:
            return on_host(self._nodes.logits[node])
        self._come_back()
        if self._computed < len(self._tokens) or self._row is None:
            self.forward((), None, on_layer)
        assert self._row is not None
        return on_host(self._row)

    @property
    def pending_rows(self) -> int:
        """Rows of the prefix that the next pass computes before its nodes."""
        return max(len(self._tokens) - self._computed, int(self._row is None))

    @property
    def known_row(self) -> NDArray[np.float32] | None:
        """Logits [V] after the prefix, where no pass is needed for them."""
        return None if self.pending_rows or self._row is None else on_host(self._row)

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Keep the nodes of ``path`` (indices from root to leaf) as prefix; roll back all others.

        ``keep``: descendants of the path's end, each after its parent, that stay as nodes in this
        order. ValueError: ``path`` is not one, or ``keep`` does not come after it.
        """
        kept = self._nodes.below(path, keep)
        self._tokens += [self._nodes.tokens[index] for index in path]
        if self._cache is not None:
            base = self._prompt_rows + self._computed
            self._cache.gather(base, [base + index for index in (*path, *keep)])
            self._computed += len(path)
            if path:
                self._row = self._nodes.logits[path[-1]]
        self._nodes = kept

    def _forget_rows(self) -> None:
        self._row, self._computed = None, 0

    def _adopt(self, cache: KeyValueCache, tokens: list[int], row: NDArray[np.float32]) -> None:
        self._computed = common_prefix(tokens, self._tokens)
        known = row if self._computed == len(tokens) else None
        self._row = known if self._computed else self._prompt_row
        self._own(cache)
        if len(self._nodes):
            nodes, self._nodes = self._nodes, NodeTree()
            try:
                part = self._pass_rows([], nodes.tokens, nodes.parents, None)
                _rows(run_pass(self._transformer, [part], self._vocabulary)[0])
            except BaseException:
                self._in_pass = False
                self.evict()
                raise
            finally:
                self._nodes, self._in_pass = nodes, False

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

    def fits(self, transformer: Transformer, vocabulary: int) -> bool:
        """Whether its rows may be in one pass of this model, with logits of this length."""
        return transformer is self._transformer and vocabulary == self._vocabulary

    def rows_to_compute(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None,
        on_layer: OnLayer | None = None,
    ) -> PassRows | None:
        """Begin a pass: what it has to compute; None when that is nothing.

        Afterwards ``take`` or ``drop_nodes``.
        """
        if on_layer is None and self._has_scored(tokens, parents):
            return None
        self._nodes = NodeTree()
        self._come_back()
        if self._computed == len(self._tokens) and self._row is None:
            self._computed -= 1  # after truncate: the logits after the last token are not known
        tail = self._tokens[self._computed :]
        if not tail and not len(tokens):
            return None
        return self._pass_rows(
            tail, tokens, range(-1, len(tokens) - 1) if parents is None else parents, on_layer
        )

    def _pass_rows(
        self,
        tail: list[int],
        tokens: Sequence[int],
        parents: Sequence[int],
        on_layer: OnLayer | None,
    ) -> PassRows:
        """Rows for the prefix's tail and for new nodes, after the nodes that are there."""
        cache, nodes, before = self._cache, self._nodes, len(self._nodes)
        assert cache is not None
        self._in_pass = True
        start = self._prompt_rows + self._computed + before
        count = len(tail) + len(tokens)
        nodes.append(self._checked(tokens), parents)
        end = self._prompt_rows + len(self._tokens) + self._delta
        positions = [*range(end - len(tail), end), *(end + at for at in nodes.depths[before:])]
        try:
            cache.reserve(start + count, start)
        except MemoryFull:
            self._spare = SPARE + count  # evicted, it can come back with room for them
            raise
        segment = self._transformer.segment(cache, start, count, nodes, len(tokens))
        first = max(len(tail) - 1, 0)
        return PassRows(tail + nodes.tokens[before:], positions, segment, first, on_layer)

    def take(self, logits: DeviceRows | None) -> DeviceRows:
        """End a pass: keep its logits (None: it needed none) and return [1 + n, V]."""
        self._in_pass = False
        if self._cache is not None:
            self._cache.touch()
        if logits is None:
            assert self._row is not None
            return stacked([self._row, *self._nodes.logits])
        if self._computed == len(self._tokens):
            assert self._row is not None
            logits = joined(self._row, logits)
        self._computed = len(self._tokens)
        self._row = logits[0]
        self._nodes.logits = list(logits[1:])
        return logits

    def keep_nodes(self, nodes: NodeTree) -> None:
        """These nodes after the prompt are scored, and in the cache after its rows."""
        self._nodes = self._prompt_nodes = nodes

    @property
    def scored_with_prompt(self) -> bool:
        """Whether a draft was, and nothing came since: a ``forward`` of it needs no pass."""
        return self._cache is not None and self._prompt_nodes is self._nodes

    def _has_scored(self, tokens: Sequence[int], parents: Sequence[int] | None) -> bool:
        """Whether these nodes were scored with the prompt, and nothing came since."""
        nodes, self._prompt_nodes = self._prompt_nodes, None
        if nodes is not self._nodes or self._cache is None or self._tokens:
            return False
        chain = range(-1, len(tokens) - 1)
        asked = list(chain if parents is None else parents)
        return nodes.tokens == list(tokens) and nodes.parents == asked

    def drop_nodes(self) -> None:
        """End a pass that was interrupted: there are no nodes."""
        self._nodes, self._in_pass = NodeTree(), False

    def _checked(self, tokens: Sequence[int]) -> list[int]:
        """As ints; an id without an embedding would be fatal to the whole process on a GPU."""
        checked = [int(token) for token in tokens]
        if checked and not 0 <= min(checked) <= max(checked) < self._vocabulary:
            raise ValueError(f"tokens {checked} are not all below {self._vocabulary}")
        return checked


def _rows(result: DeviceRows | Exception) -> DeviceRows:
    if isinstance(result, Exception):
        raise result
    return result
