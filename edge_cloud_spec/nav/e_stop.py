"""``e_stop`` by its publishers: it is on while any of them holds it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

E_STOP_ON = "e_stop is on"
ABSENT_AFTER_S = 1.0  # without a word, after which who is not in the graph has left


class EStopMessage(NamedTuple):
    """A message on ``e_stop``, and the gid of who published it; empty: unknown."""

    data: bool
    publisher: bytes = b""


@dataclass
class _Publisher:
    """What one said last. ``why`` it holds e_stop (empty: it does not), and the turns in which it
    was first heard, or pressed (``came``), and in which its hold began."""

    heard: float
    came: int
    why: str = ""
    held: int = 0
    released: bool = False  # by another, once it is sure that this one has left


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
        self._said: dict[bytes, _Publisher] = {}
        self._turns = itertools.count(1)
        self._are_named = False  # the graph names them as messages do: it has shown one
        self._lock = threading.Lock()

    def receive(self, message: EStopMessage, now: float) -> None:
        """Take a message that came at ``now`` (monotonic s)."""
        on, name = message
        with self._lock:
            it = self._said.setdefault(name, _Publisher(now, next(self._turns)))
            if on and it.why != E_STOP_ON:
                it.came = it.held = next(self._turns)
            it.why, it.heard, it.released = E_STOP_ON if on else "", now, False
            if len(self._said) > 1:
                self._forget_who_left(0 if on else it.came, now)

    def _forget_who_left(self, released: int, now: float) -> None:
        """``released``: the turn before which a hold has to have begun to be released."""
        present = self._names()
        must_speak = self._timeout() and not self._are_named
        for name, it in [*self._said.items()]:
            if name not in present:
                it.released |= bool(it.why) and it.held < released
                if now - it.heard > ABSENT_AFTER_S and (it.released if it.why else not must_speak):
                    del self._said[name]

    def _names(self) -> Mapping[bytes, str]:
        present = self._present()
        self._are_named |= not present.keys().isdisjoint(self._said)
        return present

    def why(self, now: float) -> str:
        """Why it is on at ``now`` (monotonic s); empty: it is off."""
        with self._lock:
            if any(it.released for it in self._said.values()):
                self._forget_who_left(0, now)
            if timeout := self._timeout():
                silent = f"{E_STOP_ON}: silent for {timeout:g} s (parameter e_stop_timeout)"
                self._hold_for_silence(now, timeout, silent)
                if not self._said:
                    return silent
            return min((it.why for it in self._said.values() if it.why), default="")

    def _hold_for_silence(self, now: float, timeout: float, why: str) -> None:
        silent = [n for n, it in self._said.items() if not it.why and now - it.heard > timeout]
        present = self._names() if silent or not self._are_named else {}
        for name in silent:
            if len(self._said) == 1 or name in present or not self._are_named:
                self._said[name].why, self._said[name].held = why, next(self._turns)
            else:
                del self._said[name]

    def holders(self) -> str:
        """The nodes that hold it, for people; empty: nobody does."""
        with self._lock:
            held = [name for name, it in self._said.items() if it.why]
        names = self._present() if held else {}
        return ", ".join(names.get(each, "a publisher that has left") for each in held)
