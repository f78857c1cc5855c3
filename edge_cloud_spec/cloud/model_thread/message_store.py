"""The messages and pictures that robots have sent, so that each is sent once."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...errors import UserError
from ...lru_cache import LruCache
from ...request import (
    Message,
    Picture,
    Request,
    digests,
    picture_digest,
    with_pictures,
    without_data,
)

ENTRY = 768  # bytes that Python takes for what is kept under one name, and for a part of a message
PICTURE_NAME = b"picture"  # begins the names of pictures; messages are named by their digests alone


class UnknownMessages(UserError):
    """The verifier lacks a part of a request; its robot sends all of it."""


@dataclass(frozen=True)
class _Kept:
    """A message without its pictures' bytes, and the name of those before it."""

    message: Message
    before: bytes


def cost(kept: _Kept | bytes) -> int:
    """Bytes that keeping this under one name takes, at most."""
    if isinstance(kept, bytes):
        return ENTRY + len(kept)
    return ENTRY + sum(ENTRY + sys.getsizeof(part) for part in kept.message.parts)


class _Known:
    """What one credential's robots have sent; what was used last stands last."""

    def __init__(self) -> None:
        self.used = 0.0  # s
        self.size = 0  # bytes, as they cost
        self.kept: OrderedDict[bytes, _Kept | bytes] = OrderedDict()

    def keep(self, name: bytes, what: _Kept | bytes) -> None:
        self.size += cost(what) - (cost(self.kept[name]) if name in self.kept else 0)
        self.kept[name] = what
        self.kept.move_to_end(name)

    def shrink(self, size: int) -> None:
        while self.size > size:
            self.size -= cost(self.kept.popitem(last=False)[1])

    def before(self, name: bytes) -> Iterator[Message]:
        """The messages of this name, the newest first."""
        while name:
            kept = self.kept.get(name)
            if not isinstance(kept, _Kept):
                raise UnknownMessages("the verifier does not know these messages: send all of them")
            yield kept.message
            name = kept.before

    def whole(self, picture: Picture) -> Picture:
        """The picture with its bytes: those that came with it, or that are kept."""
        is_whole = picture_digest(picture.data) == picture.digest  # that of no bytes, too
        if picture.data and not is_whole:
            raise UserError("a picture of the request is not the one that its digest names")
        found = self.kept.get(PICTURE_NAME + picture.digest, b"")
        if not is_whole and not found:
            raise UnknownMessages("the verifier does not have a picture of the request: send all")
        return replace(picture, data=found) if isinstance(found, bytes) and found else picture


class MessageStore:
    """Messages and pictures by their digests, of each credential for itself.

    What is kept of a credential is bounded, and forgotten when nobody uses it. A robot whose
    messages are not there any more sends them again: nothing is lost but the time.
    """

    def __init__(self, bytes_each: int, keep_s: float, credentials: int) -> None:
        """bytes_each: that a credential may cost. credentials: that are known at once."""
        self._bytes_each, self._keep_s = bytes_each, keep_s
        self._known: LruCache[str, _Known] = LruCache(credentials)

    @property
    def size(self) -> int:
        """Bytes of all that is kept; from any thread."""
        return sum(known.size for known in list(self._known.values()))

    def completed(self, request: Request, after: bytes, credential: str) -> Request:
        """The credential's request with the messages that ``after`` names before its own, each
        picture with its bytes; keeps nothing.

        UnknownMessages: a part is not here. UserError: a picture is not the one that it is named.
        """
        known = self._known.get(credential) or _Known()
        messages = (*reversed(list(known.before(after))), *request.messages)
        return replace(request, messages=with_pictures(messages, known.whole), owner=credential)

    def keep(self, request: Request, credential: str, now: float) -> bool:
        """A completed request was admitted: keep what lasts of it; ``now`` in seconds. True: all of
        that is kept now.

        What no robot of a credential used for long is forgotten.
        """
        lasting, before = request.lasting, b""
        known = self._known.get_or_make(credential, _Known)
        known.used = now
        while next(iter(self._known.values())).used < now - self._keep_s:
            self._known.popitem(last=False)
        names = list(digests(lasting))
        pictures = {picture.digest: picture.data for m in lasting for picture in m.pictures}
        for name, message in zip(names, without_data(lasting, pictures), strict=True):
            known.keep(name, _Kept(message, before))
            before = name
        for digest, data in pictures.items():
            known.keep(PICTURE_NAME + digest, data)
        known.shrink(self._bytes_each)
        names += (PICTURE_NAME + digest for digest in pictures)
        return all(name in known.kept for name in names)
