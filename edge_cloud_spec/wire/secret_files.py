"""Reads files with tokens, certificates and keys, which may be replaced while a program runs."""

from __future__ import annotations

import hashlib
import logging
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import UserError
from ..share import read_file

log = logging.getLogger(__name__)

T = TypeVar("T")

# Characters of a token, which is sent with each call; bytes of a file.
MOST, MOST_BYTES = 4096, 2**20
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63}):(.+)")


def read_token(path: str) -> str:
    """The bearer token in a file of one line; raises UserError. A file keeps it out of process
    lists."""
    tokens = read_tokens(path)
    if len(tokens) > 1:
        raise UserError(
            f"the file {path} must hold one line, a robot's only token or a server's key"
        )
    return tokens[0]


def read_tokens(path: str) -> tuple[str, ...]:
    """The tokens in this file, one per line; raises UserError without quoting them."""
    name = f"file {path} with the token or key"
    try:
        lines = _read(path, name).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise UserError(f"the {name} cannot be read: it is not text") from None
    tokens = tuple(line.strip() for line in lines if line.strip())
    usable = all(each.isascii() and each.isprintable() and len(each) <= MOST for each in tokens)
    if not tokens or not usable:
        raise UserError(f"the {name} must hold one line of at most {MOST} letters of ASCII")
    return tokens


def _read(path: str, name: str) -> bytes:
    """A file's bytes; raises UserError, which contains ``name``."""
    try:
        return read_file(Path(path), MOST_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"the {name} cannot be read: {why}") from None


def read_pem(path: str, what: str) -> bytes:
    """The bytes of a PEM file; raises UserError, whose text calls the file ``what``."""
    return _read(path, f"{what} {path}")


def read_pair(certificate: str, key: str) -> tuple[bytes, bytes]:
    """A key and its certificate chain, as gRPC takes them; raises UserError if they do not
    match."""
    pair = (read_pem(key, "key"), read_pem(certificate, "certificate"))
    try:  # gRPC would only report that it cannot bind or connect
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        text = f"the certificate {certificate} and the key {key} are no PEM pair: {error}"
        raise UserError(text) from None
    return pair


def named_tokens(tokens: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The name and the token of each line ``name:token``; a line without a name gets one from its
    hash.

    So a token keeps its name when lines are added or removed. A whole line with a name is also
    accepted as a token: tokens from before there were names may contain a colon.
    """
    named: list[tuple[str, str]] = []
    for line in tokens:
        found = _NAMED.fullmatch(line)
        name = found[1] if found else f"token {_digits(line)}"
        named += [(name, found[2])] if found else []
        named.append((name, line))
    return tuple(named)


def _digits(token: str) -> str:
    """Digits of a token's hash: too few to reveal it, equal in a fleet's router and replicas."""
    return hashlib.blake2b(token.encode(), digest_size=6, person=b"token name").hexdigest()


class Reloaded(Generic[T]):
    """A value that ``read`` makes from files, made again when one of them is replaced.

    If that fails (a half-written file, a key without its new certificate) the old value stays and
    the next call tries again. The first read raises UserError.
    """

    def __init__(self, read: Callable[[], T], *paths: str) -> None:
        self._read = read
        self._paths = [path for path in paths if path]
        self._seen = self._stamps()
        self._failed: object = None  # stamps of the files that could not be read
        self.value = read()

    def renew(self) -> bool:
        """Read the files again if they changed; True if there is a new value."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        try:
            value = self._read()
        except UserError as error:
            if stamps != self._failed:
                self._failed = stamps
                log.warning("%s; the old one stays in use", error)
            return False
        self._seen, self._failed = stamps, None
        changed, self.value = value != self.value, value
        return changed

    @property
    def current(self) -> T:
        """The newest value that could be read; looks at the files first."""
        self.renew()
        return self.value

    def _stamps(self) -> tuple[object, ...]:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: str) -> object:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
