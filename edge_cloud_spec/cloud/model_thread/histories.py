"""The frames and conversations that robots have sent, so that each is sent once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from ...errors import UserError
from ...history import MOST_TURNS, History, Turn, picture_digest
from ...lru_cache import LruCache
from ...wire.messages import Open

MOST_CONVERSATIONS = 64  # of one credential


class UnknownHistory(UserError):
    """The verifier lacks a part of a history; its robot sends all of it."""


class _Known:
    """What one credential's robots have sent; what was used last stands last."""

    def __init__(self, now: float) -> None:
        self.used = now  # s
        self.size = 0  # bytes of the frames
        self.frames: OrderedDict[bytes, bytes] = OrderedDict()
        self.conversations: LruCache[bytes, History] = LruCache(MOST_CONVERSATIONS)


class Histories:
    """Frames by their digests and conversations by theirs, of each credential for itself.

    What is kept of a credential is bounded, and forgotten when nobody uses it. A robot whose
    history is not there any more sends it again: nothing is lost but the time.
    """

    def __init__(self, bytes_each: int, keep_s: float, credentials: int) -> None:
        """bytes_each: of a credential's frames. credentials: that are known at once."""
        self._bytes_each, self._keep_s = bytes_each, keep_s
        self._known: LruCache[str, _Known] = LruCache(credentials)

    @property
    def size(self) -> int:
        """Bytes of all frames; from any thread."""
        return sum(known.size for known in list(self._known.values()))

    def completed(self, opening: Open, credential: str, now: float) -> Open:
        """The request with every turn of its history, each with its frame; ``now`` in seconds.

        UnknownHistory: a part is not here. UserError: a frame is not the one that it is named.
        """
        known = self._of(credential, now)
        earlier = known.conversations.get(opening.history.after)
        if opening.history.after and earlier is None:
            raise UnknownHistory("the verifier does not know this conversation: send all of it")
        turns = tuple(
            self._with_frame(turn, known)
            for turn in (*(earlier.turns if earlier else ()), *opening.history.turns)
        )
        if len(turns) > MOST_TURNS:
            raise UserError(f"a history has at most {MOST_TURNS} turns, not {len(turns)}")
        for turn in (*turns, Turn.of(opening.jpeg, "")):
            self._keep(known, turn)
        self._name(known, turns)
        return replace(opening, history=History(turns))

    def answered(self, opening: Open, credential: str, answers: Iterable[str]) -> None:
        """A completed request was answered: its robot may go on after any of these answers."""
        if (known := self._known.get(credential)) is not None:
            for answer in answers:
                self._name(known, (*opening.history.turns, Turn.of(opening.jpeg, answer)))

    @staticmethod
    def _name(known: _Known, turns: tuple[Turn, ...]) -> None:
        named = History.named(turns)
        known.conversations[named.digest] = named

    def _of(self, credential: str, now: float) -> _Known:
        """What is known of a credential; what nobody used for long is forgotten."""
        known = self._known.get_or_make(credential, lambda: _Known(now))
        known.used = now
        while next(iter(self._known.values())).used < now - self._keep_s:
            self._known.popitem(last=False)
        return known

    @staticmethod
    def _with_frame(turn: Turn, known: _Known) -> Turn:
        if turn.jpeg and picture_digest(turn.jpeg) != turn.image_digest:
            raise UserError("a frame of the history is not the one that its digest names")
        jpeg = turn.jpeg or known.frames.get(turn.image_digest)
        if jpeg is None:
            raise UnknownHistory("the verifier does not have a frame of this history: send all")
        return replace(turn, jpeg=jpeg)

    def _keep(self, known: _Known, turn: Turn) -> None:
        digest = turn.image_digest
        known.size += len(turn.jpeg) if digest not in known.frames else 0
        known.frames[digest] = turn.jpeg
        known.frames.move_to_end(digest)
        while known.size > self._bytes_each:
            _, dropped = known.frames.popitem(last=False)
            known.size -= len(dropped)
