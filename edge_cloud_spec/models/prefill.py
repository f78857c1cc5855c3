"""A prompt's pass in steps, so that the passes of other sessions may come between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .cache import KeyValueCache
from .image import Grid
from .passes.node_tree import NodeTree
from .passes.target_rows import on_device, on_host
from .passes.transformer import Deepstack, OnLayer, Transformer

if TYPE_CHECKING:
    from .session import Session

ALL_ROWS = 1 << 30  # a step of as many rows as there are


@dataclass(frozen=True, eq=False)
class EncodedPicture:
    """Features [m, E] and, for Qwen3-VL, the deepstack's, one [m, E] a layer; rotary positions
    [3, m] of these rows, counted from the first."""

    features: Tensor
    deepstack: tuple[Tensor, ...]
    positions: np.ndarray


class Prefill:
    """Computes the cache of a session; `session` is there when `step` has returned True.

    Rows are the same however they are cut into steps, to the rounding of floats. Belongs to the
    model's thread, as the session does.
    """

    def __init__(
        self,
        transformer: Transformer,
        session: Session,
        cache: KeyValueCache,
        start: int,
        ids: np.ndarray,
        positions: np.ndarray,
        image: np.ndarray,
        encode: Callable[[], EncodedPicture],
        on_filled: Callable[[NDArray[np.float32]], None],
        row: NDArray[np.float32] | None,
    ) -> None:
        """start: rows that the cache has already. ids [n], positions [3, n]: token ids and rotary
        positions, where those of the picture's rows, image [m], are not known before ``encode`` has
        run the vision part. on_filled: gives the session its cache, and the logits [V] after the
        last row. row: those logits; they must be known where the cache has all rows."""
        self._transformer, self._session, self._cache = transformer, session, cache
        self._done, self._ids, self._positions, self._image = start, ids, positions, image
        self._encode, self._on_filled, self._row = encode, on_filled, row
        self._encoded: EncodedPicture | None = None
        self._nodes = NodeTree()
        self._ended = False

    def draft(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """Score these nodes after the prompt in the pass over its last rows, if that is to come.

        The session's next ``forward`` of the same nodes needs no pass. Not so under fixed passes,
        whose rows have the same bits whatever else is in the pass.
        """
        usable = all(0 <= token < self._session.vocabulary for token in tokens)
        if usable and not self._ended and not self._transformer.masks_itself:
            self._nodes = NodeTree().grown(tokens, parents)

    def finish(self) -> Session:
        """All steps at once."""
        while not self.step(ALL_ROWS):
            pass
        return self.session

    @property
    def rows_left(self) -> int:
        """Rows that are not computed yet."""
        return len(self._ids) - self._done

    @property
    def session(self) -> Session:
        """The session after the prompt; ValueError before the last step."""
        if not self._ended:
            raise ValueError(f"{self.rows_left} rows of this prompt are not computed yet")
        return self._session

    def step(self, rows: int, on_layer: OnLayer | None = None) -> bool:
        """Compute so many rows more at most, or the vision part, a step of its own; True: done.

        on_layer: called after each layer. What it raises ends the step and changes nothing.
        """
        if self._ended:
            return True
        if self._row is not None and not self.rows_left:
            return self._end(self._row)
        image = self._image
        if self._encoded is None and len(image) and image[-1] >= self._done:
            with torch.inference_mode():
                self._encoded = self._encode()
            self._positions[:, image] = image[0] + self._encoded.positions
            return False
        end = min(self._done + max(rows, 1), len(self._ids))
        nodes = self._nodes if end == len(self._ids) else NodeTree()
        hidden = self._compute(end, nodes, on_layer)
        self._done = end
        if self.rows_left:
            return False
        with torch.inference_mode():
            logits = self._transformer.logits(hidden[-1 - len(nodes) :], self._session.vocabulary)
        after = on_device(logits)
        nodes.logits = list(after[1:])
        return self._end(on_host(after[0]))

    def _end(self, row: NDArray[np.float32]) -> bool:
        self._on_filled(row)
        self._encoded, self._ended = None, True
        if self._nodes.logits:
            self._session.keep_nodes(self._nodes)
        return True

    def _compute(self, end: int, nodes: NodeTree, on_layer: OnLayer | None) -> Tensor:
        """Hidden rows of the rows up to `end` that are due, and of the nodes after them."""
        transformer, start = self._transformer, self._done
        count = end - start + len(nodes)
        positions = self._positions[:, start:end]
        if len(nodes):
            after = positions[:, -1:] + 1 + np.array(nodes.depths)  # a prompt ends with text
            positions = np.concatenate([positions, after], axis=1)
            self._cache.reserve(start + count, start)
        with torch.inference_mode():
            hidden = transformer.embed([*self._ids[start:end].tolist(), *nodes.tokens])
            return transformer.forward(
                hidden,
                torch.from_numpy(positions),
                (transformer.segment(self._cache, start, count, nodes, len(nodes)),),
                self._place_image(hidden, start, end),
                on_layer,
            )

    def _place_image(self, hidden: Tensor, start: int, end: int) -> Deepstack | None:
        """Put the picture's features where the rows `start` to `end` are its own."""
        first, last = (int(at) for at in np.searchsorted(self._image, (start, end)))
        if first == last:
            return None
        assert self._encoded is not None
        features, deep = self._encoded.features, self._encoded.deepstack
        places = torch.from_numpy(self._image[first:last] - start).to(hidden.device)
        hidden[places] = features[first:last].to(hidden.dtype)
        return Deepstack(places, [layer[first:last] for layer in deep]) if deep else None


def positions_of(ids: np.ndarray, grid: Grid, image_id: int, merge: int) -> tuple[np.ndarray, int]:
    """Rotary positions int64 [3, n] (time, height, width) of a prompt with one picture, and the
    position of the first row after it minus that row's index (transformers' `get_rope_index`).

    A picture's tokens share one time and span max(h, w) positions, not h * w. Of a picture with
    fewer rows than tokens the first rows' are given.
    """
    first, tokens = int(np.argmax(ids == image_id)), int(np.count_nonzero(ids == image_id))
    positions = np.tile(np.arange(len(ids)), (3, 1))
    positions[:, first : first + tokens] = first + picture_positions(grid, merge)[:, :tokens]
    delta = max(grid[1], grid[2]) // merge - tokens
    positions[:, first + tokens :] += delta
    return positions, delta


def picture_positions(grid: Grid, merge: int) -> np.ndarray:
    """Rotary positions int64 [3, m] of a picture's tokens, counted from the first."""
    high, wide = grid[1] // merge, grid[2] // merge
    return np.indices((grid[0], high, wide)).reshape(3, -1)
