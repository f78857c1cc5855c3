"""One pass of a transformer over rows of one session or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .segment import Segment
from .target_rows import DeviceRows, on_device
from .transformer import OnLayer, Transformer


class PassSession(Protocol):
    """The steps of a ``Session.forward``, around its pass."""

    def fits(self, transformer: Transformer, vocabulary: int) -> bool:
        """Whether its rows may be in one pass of this model, with logits of this length."""

    def rows_to_compute(
        self, tokens: Sequence[int], parents: Sequence[int] | None, on_layer: OnLayer | None
    ) -> PassRows | None:
        """Begin: what the pass has to compute; None when that is nothing.

        Afterwards ``take`` or ``drop_nodes``.
        """

    def take(self, logits: DeviceRows | None) -> DeviceRows:
        """End: keep the logits of the pass (None: it needed none) and return [1 + n, V]."""

    def drop_nodes(self) -> None:
        """End after a pass that was interrupted: there are no nodes."""


@dataclass(frozen=True, eq=False)
class PassRequest:
    """What one session wants of a pass; the arguments of ``Session.forward``."""

    session: PassSession
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
    """See ``Vlm.forward_together``."""
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
