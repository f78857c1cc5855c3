"""What a model is asked: a list of messages, each of texts and pictures.

A robot makes them and the cloud answers whatever they say: instruction, mission and dialect are the
robot's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile

ROLES = SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
DIGEST = 16  # bytes that name a picture, or a list of messages
MOST_MESSAGES = 256  # of a request
MOST_PARTS = 256  # of a message
MOST_TEXT = 2**18  # characters of a request
MOST_PICTURES = 65  # of a request: 64 earlier frames of a mission, and the newest
MOST_CANDIDATES = 64  # of a request, each of at most ``LONGEST_CANDIDATE`` characters
LONGEST_CANDIDATE = 256


@dataclass(frozen=True)
class Picture:
    """A picture of a message, a JPEG or a PNG.

    digest: 16 bytes that name it. data: its bytes; empty where the receiver has them. size: width
    and height in pixels to which it is stretched before it is cut into patches; (0, 0): as it is.
    """

    digest: bytes
    data: bytes = field(default=b"", repr=False)
    size: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, data: bytes, size: tuple[int, int] = (0, 0)) -> Picture:
        """The picture of these bytes."""
        return cls(picture_digest(data), data, size)

    @cached_property
    def shown(self) -> bytes:
        """16 bytes that name what is seen: the picture, and the size that it is stretched to."""
        if self.size == (0, 0):
            return self.digest
        return digest_of(self.digest, *(side.to_bytes(4, "little") for side in self.size))


Part = str | Picture


@dataclass(frozen=True)
class Message:
    """One message of a conversation. role: system, user or assistant."""

    role: str
    parts: tuple[Part, ...]

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Its pictures, in their order."""
        return tuple(part for part in self.parts if isinstance(part, Picture))

    @property
    def text(self) -> str:
        """Its texts, one behind the other."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def contents(self) -> tuple[Part, ...]:
        """The same parts, with neighbouring texts joined and no empty ones."""
        joined: list[Part] = []
        for part in self.parts:
            if isinstance(part, str) and joined and isinstance(joined[-1], str):
                joined[-1] += part
            elif part != "":
                joined.append(part)
        return tuple(joined)


Messages = tuple[Message, ...]


@dataclass(frozen=True)
class Request:
    """The messages of a decode, the newest last.

    candidates: texts with which the answer may begin (``whole``: which may be all of it); they are
    drafted with the prompt where lookups are wanted, and never trusted. continues: a later request
    repeats its messages or pictures, so that what is known of it is worth keeping. owner: the
    robot's credential, where several robots share a model.
    """

    messages: Messages
    candidates: tuple[str, ...] = ()
    whole: bool = False
    continues: bool = False
    owner: str = ""

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All its pictures, in their order."""
        return tuple(picture for message in self.messages for picture in message.pictures)

    @property
    def lasting(self) -> Messages:
        """Its first messages that are worth keeping for a later request: all, or what comes before
        the first picture."""
        if self.continues:
            return self.messages
        return tuple(takewhile(lambda message: not message.pictures, self.messages))

    @property
    def text(self) -> str:
        """What the user says in it; a line for each message with text."""
        said = (message.text for message in self.messages if message.role == USER)
        return "\n".join(filter(None, said))

    @property
    def digest(self) -> bytes:
        """16 bytes that name its messages; empty for none."""
        return messages_digest(self.messages)


def picture_digest(data: bytes) -> bytes:
    """16 bytes that name a picture."""
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def messages_digest(messages: Sequence[Message], after: bytes = b"") -> bytes:
    """16 bytes that name these messages after those named ``after``; empty for none."""
    return [after, *digests(messages, after)][-1]


def digests(messages: Sequence[Message], after: bytes = b"") -> Iterator[bytes]:
    """The name of the messages so far, after each message; ``after`` names those before."""
    for message in messages:
        named = [message.role.encode()]
        for part in message.parts:
            named += [b"text", part.encode()] if isinstance(part, str) else [b"", part.shown]
        after = digest_of(after, *named)
        yield after


def with_pictures(messages: Iterable[Message], other: Callable[[Picture], Picture]) -> Messages:
    """The messages with another picture for each of theirs."""

    def of(part: Part) -> Part:
        return other(part) if isinstance(part, Picture) else part

    return tuple(replace(message, parts=tuple(map(of, message.parts))) for message in messages)


def without_data(messages: Iterable[Message], known: Container[bytes]) -> Messages:
    """The messages without the bytes of the pictures whose digests are known."""
    return with_pictures(messages, lambda p: replace(p, data=b"") if p.digest in known else p)


def digest_of(*named: bytes, size: int = DIGEST) -> bytes:
    """``size`` bytes that name these bytes one by one, however they are cut."""
    digest = hashlib.blake2b(digest_size=size)
    for each in named:
        digest.update(len(each).to_bytes(8, "little") + each)
    return digest.digest()
