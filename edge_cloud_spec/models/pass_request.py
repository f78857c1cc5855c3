"""What goes into a pass for one session, and what comes out of it.

Torch is imported for tensors alone: a verifier whose target is not in torch needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from ..decoding.processors import AdjustmentAfter
from ..decoding.target_rows import LogitRows, TargetRows

if TYPE_CHECKING:
    from .passes.attention import OnLayer
    from .passes.target_rows import DeviceRows

Session = TypeVar("Session")


@dataclass(frozen=True, eq=False)
class PassRequest(Generic[Session]):
    """One session's part of a pass: the arguments of ``Session.forward``.

    grows: keep the existing nodes, as ``Session.grow`` does.
    """

    session: Session
    tokens: Sequence[int] = ()
    parents: Sequence[int] | None = None
    on_layer: OnLayer | None = None
    grows: bool = False


def target_rows(rows: DeviceRows, adjusted: AdjustmentAfter | None = None) -> TargetRows:
    """Wrap logits [1 + n, V] for the acceptance rules, ``adjusted`` first."""
    if isinstance(rows, np.ndarray):
        return LogitRows(rows, adjusted)
    from .passes.target_rows import TensorRows

    return TensorRows(rows, adjusted)
