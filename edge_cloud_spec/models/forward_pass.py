"""One pass of a transformer over rows of one session or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .transformer import OnLayer, Segment, Transformer


@dataclass(frozen=True, eq=False)
class PassRows:
    """Rows of one session in a pass: token ids and rotary positions [n].

    Logits are wanted from row ``first_logits`` on.
    """

    tokens: list[int]
    positions: list[int]
    segment: Segment
    first_logits: int


def run_pass(
    transformer: Transformer, parts: Sequence[PassRows], vocabulary: int, on_layer: OnLayer | None
) -> list[NDArray[np.float32]]:
    """Logits [m, vocabulary] of each part's rows from ``first_logits`` on.

    Nothing is padded: the rows of all parts go through the matrices together, and each part attends
    to its own cache. on_layer receives the hidden rows that the logits are computed from.
    """
    tokens = [token for part in parts for token in part.tokens]
    wanted: slice | torch.Tensor
    if len(parts) == 1:
        wanted = slice(parts[0].first_logits, None)
    else:
        starts = np.cumsum([0] + [len(part.tokens) for part in parts])
        kept = [
            np.arange(start + part.first_logits, start + len(part.tokens))
            for start, part in zip(starts, parts, strict=False)
        ]
        wanted = torch.from_numpy(np.concatenate(kept)).to(transformer.device)
    with torch.inference_mode():
        hidden = transformer.forward(
            transformer.embed(tokens),
            [position for part in parts for position in part.positions],
            [part.segment for part in parts],
            on_layer=None if on_layer is None else lambda at, rows: on_layer(at, rows[wanted]),
        )
        logits = transformer.logits(hidden[wanted], vocabulary).cpu().numpy()
    ends = np.cumsum([len(part.tokens) - part.first_logits for part in parts])
    return np.split(logits, ends[:-1])
