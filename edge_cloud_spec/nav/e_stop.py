"""``e_stop`` by its publishers: it is on while any of them holds it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

E_STOP_ON = "e_stop is on"
ABSENT_AFTER_S = 1.0  # without a word, after which who is not in the graph has left


class EStopMessage(NamedTuple):
    """A message on ``e_stop``, and the gid of who published it; empty: unknown."""

    data: bool
    publisher: bytes = b""


class EStops:
    """Whether ``e_stop`` is on, by its publishers.

    Each holds it from its ``true`` to its own ``false``. Who has left the graph cannot release it
    any more: then the ``false`` of another does that was first heard, or pressed, after it. So what
    a publisher held before it was started again is released by it, and one that always says
    ``false`` does not release what another held.

    With a ``timeout`` (s; 0: none) a publisher that is silent for so long holds it, too, and so
    does the silence of all. Who has left, with ``false`` as the last word, need not speak, unless
    it was the only one.

    ``present`` returns the publishers in the graph, with the names of their nodes. It may know them
    later than their messages come, so nobody has left who was heard within ``ABSENT_AFTER_S``.
    """

    def __init__(
        self,
        present: Callable[[], Mapping[bytes, str]],
        timeout: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._present, self._timeout = present, timeout
        # By publisher, in the order in which they were first heard, or pressed: why it holds e_stop
        # (empty: it does not), and when it was last heard.
        self._said: dict[bytes, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def receive(self, message: EStopMessage, now: float) -> None:
        """Take a message that came at ``now`` (monotonic s)."""
        on, publisher = message
        with self._lock:
            if on and self._said.get(publisher, ("",))[0] != E_STOP_ON:
                self._said.pop(publisher, None)
            self._said[publisher] = E_STOP_ON if on else "", now
            if len(self._said) > 1:
                self._forget_who_left(publisher, not on, now)

    def _forget_who_left(self, publisher: bytes, releases: bool, now: float) -> None:
        order, left = [*self._said], self._left(now)
        earlier = order[: order.index(publisher)] if releases else []
        for each in left:
            if each in earlier or not self._said[each][0]:
                del self._said[each]

    def _left(self, now: float) -> list[bytes]:
        present = self._present()
        old = (each for each, (_, heard) in self._said.items() if now - heard > ABSENT_AFTER_S)
        return [each for each in old if each not in present]

    def why(self, now: float) -> str:
        """Why it is on at ``now`` (monotonic s); empty: it is off."""
        with self._lock:
            if timeout := self._timeout():
                silent = f"{E_STOP_ON}: silent for {timeout:g} s (parameter e_stop_timeout)"
                self._hold_for_silence(now, timeout, silent)
                if not self._said:
                    return silent
            return min(filter(None, (held for held, _ in self._said.values())), default="")

    def _hold_for_silence(self, now: float, timeout: float, why: str) -> None:
        for each, (held, heard) in [*self._said.items()]:
            if not held and now - heard > timeout:
                if len(self._said) == 1 or each in self._present():
                    self._said[each] = why, heard
                else:
                    del self._said[each]

    def holders(self) -> str:
        """The nodes that hold it, for people; empty: nobody does."""
        with self._lock:
            held = [each for each, (why, _) in self._said.items() if why]
        names = self._present() if held else {}
        return ", ".join(names.get(each, "a publisher that has left") for each in held)
