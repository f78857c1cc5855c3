"""What the verifier has of earlier requests, so that a robot names it and sends the rest."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock

from ..lru_cache import LruCache
from ..request import MOST_PICTURES, Request, digests, without_data

KNOWN_PICTURES = 8 * MOST_PICTURES  # that are known to be there


class VerifierMemory:
    """Digests of the last request's messages, and of pictures, that the verifier said to keep.

    It may have forgotten them, or be another one: it then says so, and gets the whole request. For
    any thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._messages: frozenset[bytes] = frozenset()
        self._pictures: LruCache[bytes, None] = LruCache(KNOWN_PICTURES)

    def add(self, request: Request) -> None:
        """The verifier keeps what lasts of this request."""
        self._messages = frozenset(digests(request.lasting))
        shown = (picture for message in request.lasting for picture in message.pictures)
        with self._lock:
            self._pictures |= dict.fromkeys(picture.digest for picture in shown)

    def clear(self) -> None:
        """The verifier is another one, or has forgotten."""
        self._messages = frozenset()
        with self._lock:
            self._pictures.clear()

    def shortened(self, request: Request, *, decides: bool = True) -> tuple[Request, bytes]:
        """The request without what is known, and the name of the messages that it lacks.

        The last message is in it, with its last picture where it ``decides`` a motion: a bag of the
        robot's own messages holds what it decided on.
        """
        after, count, known = b"", 0, self._messages
        for number, name in enumerate(digests(request.messages[:-1]), start=1):
            if name in known:
                after, count = name, number
        last = request.messages[-1:] if decides else ()
        newest = {shown.digest for message in last for shown in message.pictures[-1:]}
        with self._lock:
            there = self._pictures.keys() - newest
        return replace(request, messages=without_data(request.messages[count:], there)), after
