"""A scripted model's prompt in steps; see `models.prefill.Prefill`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ....models.kv_memory import KvMemory


class KeepsScored(Protocol):
    """What is opened after a scripted prompt."""

    def keep_scored(self, tokens: Sequence[int], parents: Sequence[int] | None) -> None:
        """A pass over these nodes has been made."""


ScriptedT = TypeVar("ScriptedT", bound=KeepsScored)
OnLayer = Callable[[int, Any], None]


class NoCaches:
    """A scripted model: its sessions have no keys and values."""

    default_kv_bytes = 1

    def use_memory(self, memory: KvMemory) -> None:
        """See `Vlm.use_memory`."""


class ScriptedPrefill(Generic[ScriptedT]):
    """Spends the prompt's time row by row and layer by layer; then the session is there."""

    def __init__(
        self,
        open_session: Callable[[], ScriptedT],
        rows: int = 1,
        spend: Callable[[float], None] = lambda share: None,
        layers: int = 1,
    ) -> None:
        """rows: of the prompt. spend: lets the time of this share of it go by."""
        self._open_session, self._spend = open_session, spend
        self.rows_left = self._rows = rows
        self._layers = layers
        self._nodes: tuple[Sequence[int], Sequence[int] | None] = ((), None)
        self._session: ScriptedT | None = None

    def draft(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """See `Prefill.draft`; a node takes the time of a row."""
        self._nodes = (tokens, parents)

    @property
    def session(self) -> ScriptedT:
        """The session after the prompt; ValueError before the last step."""
        if self._session is None:
            raise ValueError(f"{self.rows_left} rows of this prompt are not computed yet")
        return self._session

    def finish(self) -> ScriptedT:
        """See `Prefill.finish`."""
        self.step(self.rows_left)
        return self.session

    def step(self, rows: int, on_layer: OnLayer | None = None) -> bool:
        """See `Prefill.step`; there is no vision part."""
        due = min(max(rows, 1), self.rows_left)
        nodes = len(self._nodes[0]) if due == self.rows_left else 0
        for layer in range(self._layers if due else 0):
            self._spend((due + nodes) / self._rows / self._layers)
            if on_layer is not None:
                on_layer(layer, None)
        self.rows_left -= due
        if not self.rows_left and self._session is None:
            self._session = self._open_session()
            if due and nodes:
                self._session.keep_scored(*self._nodes)
        return not self.rows_left
