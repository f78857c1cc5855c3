"""The frames and conversations that robots have sent, so that each is sent once."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from ...errors import UserError
from ...history import MOST_TURNS, History, Turn, picture_digest
from ...lru_cache import LruCache
from ...wire.messages import Open

ENTRY = 512  # bytes that Python takes for a turn, and for what is kept under one name
AFTER = b"after"  # begins the names of conversations; frames are named by their digests alone


class UnknownHistory(UserError):
    """The verifier lacks a part of a history; its robot sends all of it."""


def cost(turns: Iterable[Turn]) -> int:
    """Bytes that keeping these turns under one name takes, at most."""
    return ENTRY + sum(ENTRY + len(turn.jpeg) + sys.getsizeof(turn.answer) for turn in turns)


class _Known:
    """What one credential's robots have sent; what was used last stands last."""

    def __init__(self) -> None:
        self.used = 0.0  # s
        self.size = 0  # bytes, as they cost
        self.kept: OrderedDict[bytes, tuple[Turn, ...]] = OrderedDict()

    def keep(self, name: bytes, turns: tuple[Turn, ...]) -> None:
        self.size += cost(turns) - (cost(self.kept[name]) if name in self.kept else 0)
        self.kept[name] = turns
        self.kept.move_to_end(name)

    def name(self, turns: tuple[Turn, ...]) -> None:
        named = History.named(turns)
        self.keep(AFTER + named.digest, named.turns)

    def shrink(self, size: int) -> None:
        while self.size > size:
            self.size -= cost(self.kept.popitem(last=False)[1])


class Histories:
    """Frames by their digests and conversations by theirs, of each credential for itself.

    What is kept of a credential is bounded, and forgotten when nobody uses it. A robot whose
    history is not there any more sends it again: nothing is lost but the time.
    """

    def __init__(self, bytes_each: int, keep_s: float, credentials: int) -> None:
        """bytes_each: that a credential may cost. credentials: that are known at once."""
        self._bytes_each, self._keep_s = bytes_each, keep_s
        self._known: LruCache[str, _Known] = LruCache(credentials)

    @property
    def size(self) -> int:
        """Bytes of all that is kept; from any thread."""
        return sum(known.size for known in list(self._known.values()))

    def completed(self, opening: Open, credential: str) -> Open:
        """The request with every turn of its history, each with its frame; keeps nothing.

        UnknownHistory: a part is not here. UserError: a frame is not the one that it is named.
        """
        known = self._known.get(credential) or _Known()
        earlier = known.kept.get(AFTER + opening.history.after, ())
        if opening.history.after and not earlier:
            raise UnknownHistory("the verifier does not know this conversation: send all of it")
        turns = tuple(self._with_frame(turn, known) for turn in (*earlier, *opening.history.turns))
        if len(turns) > MOST_TURNS:
            raise UserError(f"a history has at most {MOST_TURNS} turns, not {len(turns)}")
        return replace(opening, history=History(turns))

    def keep(self, opening: Open, credential: str, now: float) -> None:
        """A completed request was admitted: keep its frames and its history; ``now`` in seconds.

        What no robot of a credential used for long is forgotten.
        """
        known = self._known.get_or_make(credential, _Known)
        known.used = now
        while next(iter(self._known.values())).used < now - self._keep_s:
            self._known.popitem(last=False)
        for turn in (*opening.history.turns, Turn.of(opening.jpeg, "")):
            known.keep(turn.image_digest, (replace(turn, answer=""),))
        known.name(opening.history.turns)
        known.shrink(self._bytes_each)

    def answered(self, opening: Open, credential: str, answers: Iterable[str]) -> None:
        """A completed request was answered: its robot may go on after any of these answers."""
        if (known := self._known.get(credential)) is not None:
            for answer in answers:
                known.name((*opening.history.turns, Turn.of(opening.jpeg, answer)))
            known.shrink(self._bytes_each)

    @staticmethod
    def _with_frame(turn: Turn, known: _Known) -> Turn:
        if turn.jpeg and picture_digest(turn.jpeg) != turn.image_digest:
            raise UserError("a frame of the history is not the one that its digest names")
        found = known.kept.get(turn.image_digest)
        if not turn.jpeg and found is None:
            raise UnknownHistory("the verifier does not have a frame of this history: send all")
        return replace(turn, jpeg=found[0].jpeg) if found else turn
