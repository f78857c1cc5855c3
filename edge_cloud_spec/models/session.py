"""The state of one decode over a model: prefill in steps, so that other sessions' passes can run
between them, and passes over the tokens of one or of several sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..decoding.digest import common_prefix
from ..decoding.token_tree import TokenTree
from ..errors import MemoryFull
from .cache import SPARE_ROWS, KeyValueCache
from .drafter import ALL_ROWS
from .pass_request import PassRequest
from .passes.attention import OnLayer, PassItem
from .passes.target_rows import DeviceRows, on_device, on_host, stacked
from .passes.transformer import Deepstack, Transformer


class _NobodyLeft(Exception):
    """Raised inside a pass when no part of it is wanted any more."""


def run_pass(
    transformer: Transformer, parts: Sequence[PassItem], vocabulary: int
) -> list[DeviceRows | Exception]:
    """Run one pass; returns for each part its logits [m, vocabulary] from ``first_logits`` on.

    If a part's ``on_layer`` raises, that exception takes the place of its logits, and the pass goes
    on while other parts need it. The matrices see the tokens of all parts together, without
    padding.
    """
    ends = np.cumsum([part.count for part in parts]).tolist()
    wanted = [
        slice(end - part.count + part.first_logits, end)
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
                parts,
                on_layer=on_layer if any(part.on_layer for part in parts) else None,
            )
        except _NobodyLeft:
            return list(raised.values())
        rows = [hidden[where] for where in wanted]  # [m, hidden_size] of each part
        logits = transformer.logits(rows[0] if len(rows) == 1 else torch.cat(rows), vocabulary)
    split = torch.split(logits, [len(each) for each in rows])  # [m, vocabulary] of each part
    return [raised.get(index, on_device(each)) for index, each in enumerate(split)]


def forward_together(
    transformer: Transformer, vocabulary: int, requests: Sequence[PassRequest[Session]]
) -> list[DeviceRows | Exception]:
    """``Session.forward`` of several sessions in one pass, which reads the weights only once.

    Each result is what ``forward`` would return (on the device, see ``target_rows``) or raise; a
    session whose part raised has no nodes. If the pass itself fails (memory), the exception is
    raised and no session has nodes. All sessions are of this model, each in one request only.
    """
    begun = [request.session.begin(request) for request in requests]
    parts = {index: part for index, part in enumerate(begun) if isinstance(part, PassItem)}
    try:
        logits = run_pass(transformer, list(parts.values()), vocabulary) if parts else []
    except BaseException:
        for index in parts:
            requests[index].session.undo()
        raise
    rows = dict(zip(parts, logits, strict=True))
    return [
        part if isinstance(part, Exception) else request.session.end(request, rows.get(index))
        for index, (request, part) in enumerate(zip(requests, begun, strict=True))
    ]


class Session:
    """Scores chains and trees after a prefix; owns its cache and positions; belongs to one thread.

    The prefix is the prompt and the tokens after it. Its last tokens may not be computed yet
    (`extend`); the next pass computes them together with its nodes. Nodes stay until `commit`,
    `extend`, `truncate` or another `forward`. A session that loses its cache (`evict`) keeps its
    tokens and nodes, and recomputes the cache at its next pass.
    """

    def __init__(
        self,
        transformer: Transformer,
        vocabulary: int,
        prompt_rows: int,
        refill: Callable[[Session], Prefill],
        keep: Callable[[KeyValueCache, Sequence[int]], None] = lambda _cache, _answer: None,
    ) -> None:
        """A session without a cache. refill: begins to compute one, for ``adopt``. keep: keeps what
        later prompts can begin with, of a cache of the prompt and these tokens after it."""
        self._transformer, self.vocabulary = transformer, vocabulary
        self.prompt_rows, self._refill, self._keep_prefix = prompt_rows, refill, keep
        self.cache: KeyValueCache | None = None
        self.spare = SPARE_ROWS  # extra rows of a cache beyond the known tokens
        self.delta = 0  # position minus index of tokens after the prompt
        self._tokens: list[int] = []  # after the prompt
        self._computed = 0  # how many of the tokens are in the cache
        self._prompt_row: DeviceRows | None = None  # logits [V] after the prompt
        self._row: DeviceRows | None = None  # logits after the computed tokens, if known
        # Before: the tree to return to if a pass is interrupted.
        self.nodes = self._before = TokenTree()
        self._logits: list[DeviceRows] = []  # [V] after each scored node
        # The nodes were scored in the prompt's pass, and nothing has changed since: their
        # ``forward`` needs no pass.
        self.scored_with_prompt = False
        self._in_pass = False
        self.waits = False  # for a pass, so that the cache is not evicted

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the prefix after the prompt."""
        return tuple(self._tokens)

    @property
    def computed_rows(self) -> int:
        """How many rows of prompt and tokens are computed in its cache."""
        return 0 if self.cache is None else self.prompt_rows + self._computed

    @property
    def pinned(self) -> bool:
        """Whether the cache is needed by a pass, and must not be evicted."""
        return self._in_pass or self.waits

    def evict(self) -> bool:
        """Give the cache back but keep tokens and nodes; False during a pass."""
        if self.cache is None or self._in_pass:
            return False
        self.cache.release()
        self.cache = self._row = None
        self._computed, self.scored_with_prompt = 0, False
        return True

    def close(self) -> None:
        """The decode is over: keep what later prompts can begin with, and give the cache back."""
        if self.cache is not None and not self._in_pass:
            self._keep_prefix(self.cache, self._tokens[: self._computed])
        self.evict()

    def restore(self) -> Prefill:
        """A prefill that recomputes the cache; MemoryFull: there is no memory."""
        return self._refill(self)

    def adopt(
        self, cache: KeyValueCache, delta: int, tokens: Sequence[int], row: NDArray[np.float32]
    ) -> None:
        """Use this cache of the prompt and these tokens, unless the session has one.

        delta: position minus index of tokens after the image (image tokens share positions). row:
        logits [V] after the tokens.
        """
        if self.cache is not None:
            return
        if not tokens:
            self._prompt_row = row
        self._computed = common_prefix(tokens, self._tokens)
        known = row if self._computed == len(tokens) else None
        self._row = known if self._computed else self._prompt_row
        if not cache.returns_to(self._first_row):  # as the prefix was rolled back meanwhile
            self._computed, self._row = 0, None
            return
        self.cache, self.delta, self.spare = cache, delta, SPARE_ROWS
        cache.keep_for(self)
        kept = self.nodes, self._logits
        if self.nodes:
            try:
                self.forward(self.nodes.tokens, self.nodes.parents)
            except BaseException:
                self.evict()
                raise
            finally:
                self.nodes, self._logits = kept

    def _come_back(self) -> None:
        """Restore the cache, including the nodes."""
        if self.cache is None:
            self.restore().finish()

    def forward(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        on_layer: OnLayer | None = None,
    ) -> NDArray[np.float32]:
        """Score n new nodes; returns logits [1 + n, V]: 0 follows the prefix, i + 1 follows node i.

        parents[i] < i is the index of node i's parent, or -1 for the prefix; None is a chain.
        on_layer(layer, hidden): called with hidden rows [m, hidden_size] of the computed tail of
        the result (all but row 0, or all if the prefix had tokens to compute). If it raises, the
        pass ends and there are no nodes. ValueError: invalid token or parent.
        """
        return self._pass(PassRequest(self, tokens, parents, on_layer))

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: OnLayer | None = None
    ) -> NDArray[np.float32]:
        """Score n more nodes after the existing ones; returns their logits [n, V].

        Indices continue those of the last `forward`; a parent is any earlier node or -1. If
        `on_layer` raises, only the earlier nodes remain.
        """
        rows = self._pass(PassRequest(self, tokens, parents, on_layer, grows=True))
        return rows[len(rows) - len(tokens) :]

    def _pass(self, request: PassRequest[Session]) -> NDArray[np.float32]:
        """Run a pass for this session alone; returns its logits in host memory."""
        (result,) = forward_together(self._transformer, self.vocabulary, [request])
        if isinstance(result, Exception):
            raise result
        rows, new = on_host(result), len(request.tokens)
        self._logits[len(self.nodes) - new :] = rows[len(rows) - new :]
        if len(rows) > new:
            self._row = rows[0]
        return rows

    def logits_after(self, node: int, on_layer: OnLayer | None = None) -> NDArray[np.float32]:
        """Logits [V] after a scored node, or after the prefix (-1)."""
        if node >= 0:
            return on_host(self._logits[node])
        self._come_back()
        if self.pending_rows:
            self.forward((), None, on_layer)
        assert self._row is not None
        return on_host(self._row)

    @property
    def pending_rows(self) -> int:
        """Tokens of the prefix that the next pass computes before its nodes."""
        return max(len(self._tokens) - self._computed, int(self._row is None))

    @property
    def known_row(self) -> NDArray[np.float32] | None:
        """Logits [V] after the prefix if no pass is needed for them, else None."""
        return None if self.pending_rows or self._row is None else on_host(self._row)

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Append the nodes of ``path`` (indices from root to leaf) to the prefix; roll back all
        others.

        ``keep``: descendants of the path's end, each after its parent, that stay as nodes in this
        order. ValueError: ``path`` is not a path, or ``keep`` does not descend from it.
        """
        tokens, kept = self.nodes.commit(path, keep)
        self._tokens += tokens
        if self.cache is not None:
            base = self.prompt_rows + self._computed
            self.cache.gather(base, [base + index for index in (*path, *keep)])
            self._computed += len(path)
            if path:
                self._row = self._logits[path[-1]]
        self.keep_nodes(kept, [self._logits[index] for index in keep])

    def extend(self, tokens: Sequence[int]) -> None:
        """Add known tokens to the prefix; the next forward computes them."""
        self.keep_nodes(TokenTree(), [])
        self._tokens += self._checked(tokens)

    def truncate(self, length: int) -> None:
        """Roll the prefix back to `length` tokens after the prompt; ValueError: it has fewer."""
        if not 0 <= length <= len(self._tokens):
            raise ValueError(f"cannot truncate {len(self._tokens)} tokens to {length}")
        self.keep_nodes(TokenTree(), [])
        del self._tokens[length:]
        if length < self._computed:
            self._computed = length
            self._row = self._prompt_row if length == 0 else None
            if self.cache is not None and not self.cache.returns_to(self._first_row):
                self.evict()

    @property
    def _first_row(self) -> int:
        """The row of the cache that the next pass begins at."""
        return self.prompt_rows + self._computed - (self._row is None)

    def keep_nodes(
        self, nodes: TokenTree, logits: list[DeviceRows], *, with_prompt: bool = False
    ) -> None:
        """Keep these nodes, and no others. logits: [V] after each node."""
        self.nodes, self._logits, self.scored_with_prompt = nodes, logits, with_prompt

    # A pass: ``begin``, then ``end``, or ``undo`` if it raised

    def begin(self, request: PassRequest[Session]) -> PassItem | Exception | None:
        """The part of a pass that computes this request; None: no pass is needed; or why it is
        impossible."""
        if self._in_pass:
            return ValueError("this session is in this pass already")
        try:
            return self._item(request)
        except Exception as error:
            self._in_pass = False
            return error

    def _item(self, request: PassRequest[Session]) -> PassItem | None:
        """The pass over the prefix's uncomputed tail and new nodes, after the existing nodes."""
        scored, logits = self.nodes, self._logits
        known = self.scored_with_prompt and request.on_layer is None
        self.scored_with_prompt = False
        if not request.grows:
            self.keep_nodes(TokenTree(), [])
        new = self._checked(request.tokens)
        asked = self.nodes.extend(new, request.parents)
        if known and asked == scored:
            self.keep_nodes(scored, logits)
            return None
        self._come_back()
        if self._computed == len(self._tokens) and self._row is None:
            self._computed -= 1  # after truncate the last token's logits are unknown
        tail = self._tokens[self._computed :]
        if not tail and not new:
            return None
        before = len(self.nodes)
        start = self.prompt_rows + self._computed + before
        count = len(tail) + len(new)
        end = self.prompt_rows + len(self._tokens) + self.delta
        positions = [
            *range(end - len(tail), end),
            *(end - 1 + depth for depth in asked.depths[before:]),
        ]
        cache = self.cache
        assert cache is not None
        self._in_pass = True
        try:
            cache.reserve(start + count, start, start - before, len(tail))
        except MemoryFull:
            # After an eviction the new cache has space for these nodes.
            self.spare = SPARE_ROWS + count
            raise
        self._before, self.nodes = self.nodes, asked
        mask = self._transformer.mask(start, count, asked, len(new))
        wanted = max(len(tail) - 1, 0)
        on_layer = request.on_layer
        return PassItem(
            cache, start, tail + new, mask, positions, wanted, on_layer, asked, len(new)
        )

    def end(
        self, request: PassRequest[Session], logits: DeviceRows | Exception | None
    ) -> DeviceRows | Exception:
        """Finish a request with its part's logits or error (None: no pass was needed); returns its
        result."""
        if isinstance(logits, Exception):
            self.undo()
            return logits
        self._in_pass = False
        if self.cache is not None:
            self.cache.touch()
            if logits is not None:
                self.cache.settle()
        new = [] if logits is None else list(logits)
        if self._computed < len(self._tokens):
            self._computed, self._row = len(self._tokens), new.pop(0)
        elif logits is None or not request.grows:
            assert self._row is not None
            logits = stacked([self._row, *self._logits, *new])  # [1 + nodes, vocabulary]
        self._logits += new
        assert logits is not None
        return logits

    def undo(self) -> None:
        """Abandon an interrupted pass; only nodes from before it remain."""
        self.nodes, self._in_pass = self._before, False

    def _checked(self, tokens: Sequence[int]) -> list[int]:
        """The ids as ints, checked: one without an embedding would crash the process on a GPU."""
        checked = [int(token) for token in tokens]
        if checked and not 0 <= min(checked) <= max(checked) < self.vocabulary:
            raise ValueError(f"tokens {checked} are not all below {self.vocabulary}")
        return checked


@dataclass(frozen=True, eq=False)
class EncodedPicture:
    """The features [m, E] of a picture's tokens, for Qwen3-VL one deepstack [m, E] per layer, and
    rotary positions [3, m] relative to the first."""

    features: Tensor
    deepstack: tuple[Tensor, ...]
    positions: np.ndarray


@dataclass(frozen=True, eq=False)
class PlacedPicture:
    """A picture of a prompt: its rows ``start`` to ``end``, and a function that runs the vision
    part."""

    start: int
    end: int
    encode: Callable[[], EncodedPicture]


class Prefill:
    """Computes a session's cache in steps; `session` is available once `step` returned True.

    How the steps are cut changes the result by rounding only. Belongs to the model's thread.
    """

    def __init__(
        self,
        transformer: Transformer,
        session: Session,
        cache: KeyValueCache,
        start: int,
        ids: np.ndarray,
        positions: np.ndarray,
        pictures: Sequence[PlacedPicture],
        on_filled: Callable[[NDArray[np.float32]], None],
        row: NDArray[np.float32] | None,
        on_rows: Mapping[int, Callable[[], None]] = MappingProxyType({}),
    ) -> None:
        """start: rows already in the cache. ids [n], positions [3, n]: token ids and rotary
        positions; of a picture only the first row's are known before ``encode`` has run the vision
        part. on_filled: gives the session its cache, and the logits [V] after the last token. row:
        those logits, required if the cache has all rows. on_rows: called when the cache has exactly
        so many rows."""
        self._transformer, self._session, self._cache = transformer, session, cache
        self._done, self._ids, self._positions, self._pictures = start, ids, positions, pictures
        self._on_filled, self._row, self._on_rows = on_filled, row, on_rows
        self._encoded: dict[PlacedPicture, EncodedPicture] = {}
        self._nodes = TokenTree()
        self._ended = False

    def draft(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """Score these nodes in the same pass as the prompt's last tokens, if that pass is still to
        come.

        The session's next ``forward`` of the same nodes then needs no pass.
        """
        usable = all(0 <= token < self._session.vocabulary for token in tokens)
        if usable and not self._ended:
            self._nodes = TokenTree().extend(tokens, parents)

    def finish(self) -> Session:
        """Read the whole prompt at once."""
        while not self.step(ALL_ROWS):
            pass
        return self.session

    @property
    def rows_left(self) -> int:
        """Prompt tokens that are not computed yet."""
        return len(self._ids) - self._done

    @property
    def session(self) -> Session:
        """The session after the prompt; ValueError before the last step."""
        if not self._ended:
            raise ValueError(f"{self.rows_left} rows of this prompt are not computed yet")
        return self._session

    def step(self, rows: int, on_layer: OnLayer | None = None) -> bool:
        """Compute so many rows more at most, or a picture's vision part, a step of its own; True:
        done.

        on_layer: called after each layer; if it raises, the step has no effect.
        """
        if self._ended:
            return True
        if self._row is not None and not self.rows_left:
            return self._end(self._row, [])
        stops = (stop for stop in self._on_rows if stop > self._done)
        end = min(self._done + max(rows, 1), len(self._ids), *stops)
        for picture in self._within(self._done, end):
            if picture not in self._encoded:
                with torch.inference_mode():
                    encoded = self._encoded[picture] = picture.encode()
                first = self._positions[0, picture.start]
                self._positions[:, picture.start : picture.end] = first + encoded.positions
                return False
        nodes = self._nodes if end == len(self._ids) else TokenTree()
        hidden = self._compute(end, nodes, on_layer)
        self._done = end
        if end in self._on_rows:
            self._on_rows[end]()
        if self.rows_left:
            return False
        with torch.inference_mode():
            logits = self._transformer.logits(hidden[-1 - len(nodes) :], self._session.vocabulary)
        row, *after = on_device(logits)  # [vocabulary] each
        return self._end(on_host(row), after)

    def _end(self, row: NDArray[np.float32], after: list[DeviceRows]) -> bool:
        """row, after: logits [V] after the prompt, and after each scored node."""
        self._on_filled(row)
        self._encoded, self._ended = {}, True
        if after:
            self._session.keep_nodes(self._nodes, after, with_prompt=True)
        return True

    def _compute(self, end: int, nodes: TokenTree, on_layer: OnLayer | None) -> Tensor:
        """Hidden states of the uncomputed tokens up to `end`, and of the nodes."""
        transformer, start = self._transformer, self._done
        count = end - start + len(nodes)
        positions = self._positions[:, start:end]
        if len(nodes):
            after = positions[:, -1:] + np.array(nodes.depths)  # valid as a prompt ends with text
            positions = np.concatenate([positions, after], axis=1)
        self._cache.reserve(start + count, start, start, end - start)
        with torch.inference_mode():
            item = PassItem(
                self._cache,
                start,
                [*self._ids[start:end].tolist(), *nodes.tokens],
                transformer.mask(start, count, nodes, len(nodes)),
                nodes=nodes,
                new=len(nodes),
            )
            hidden = transformer.embed(item.tokens)
            hidden = transformer.forward(
                hidden,
                torch.from_numpy(positions),
                [item],
                self._place_images(hidden, start, end),
                on_layer,
            )
        self._cache.settle()
        return hidden

    def _within(self, start: int, end: int) -> list[PlacedPicture]:
        """The pictures with rows between ``start`` and ``end``."""
        return [each for each in self._pictures if each.start < end and each.end > start]

    def _place_images(self, hidden: Tensor, start: int, end: int) -> Deepstack | None:
        """Write the pictures' features into their rows between `start` and `end`."""
        places: list[Tensor] = []
        deep: list[tuple[Tensor, ...]] = []
        for picture in self._within(start, end):
            encoded = self._encoded[picture]
            first, last = max(start, picture.start), min(end, picture.end)
            rows = slice(first - picture.start, last - picture.start)
            at = torch.arange(first - start, last - start, device=hidden.device)
            hidden[at] = encoded.features[rows].to(hidden.dtype)
            places.append(at)
            deep.append(tuple(layer[rows] for layer in encoded.deepstack))
        if not places or not deep[0]:
            return None
        return Deepstack(torch.cat(places), [torch.cat(each) for each in zip(*deep, strict=True)])
