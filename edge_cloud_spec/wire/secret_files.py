"""Reads files with tokens, certificates and keys, which may be replaced while a program runs."""

from __future__ import annotations

import hashlib
import logging
import re
import ssl
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import UserError
from ..share import read_file

log = logging.getLogger(__name__)

T = TypeVar("T")

# Characters of a token, which is sent with each call; bytes of a file.
MOST_LETTERS, MOST_FILE_BYTES = 4096, 2**20
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# UTCTime and GeneralizedTime: the first two of a certificate are its validity (RFC 5280, 4.1).
_TIMES = re.compile(rb"\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z")
_FORMATS = ("%y%m%d%H%M%S %z", "%Y%m%d%H%M%S %z")
_ALWAYS = (datetime.min.replace(tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc))
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
    usable = all(
        each.isascii() and each.isprintable() and len(each) <= MOST_LETTERS for each in tokens
    )
    if not tokens or not usable:
        raise UserError(f"the {name} must hold one line of at most {MOST_LETTERS} letters of ASCII")
    return tokens


def _read(path: str, name: str) -> bytes:
    """A file's bytes; raises UserError, which contains ``name``."""
    try:
        return read_file(Path(path), MOST_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"the {name} cannot be read: {getattr(error, 'strerror', error)}") from None


def read_pair(certificate: str, key: str) -> tuple[bytes, bytes]:
    """A key and its certificate chain, as gRPC takes them; raises UserError if they do not
    match."""
    pair = (_read(key, f"key {key}"), _read(certificate, f"certificate {certificate}"))
    try:  # gRPC would only report that it cannot bind or connect
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        text = f"the certificate {certificate} and the key {key} are no PEM pair: {error}"
        raise UserError(text) from None
    return pair


def read_authority(path: str, what: str) -> bytes:
    """The bytes of a PEM file of authorities; raises UserError if it holds no certificate."""
    roots = _read(path, f"{what} {path}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError:
        raise UserError(
            f"the {what} {path} holds no PEM certificate: give the authority's own, not its key"
        ) from None
    return roots


def validity(path: str) -> tuple[datetime, datetime]:
    """From when to when the first certificate in a PEM file is valid; all time if none is found."""
    try:
        pem = _CERTIFICATE.findall(_read(path, "certificate").decode("ascii", "ignore"))
        begins, ends = (
            datetime.strptime(f"{(short or long).decode()} +0000", _FORMATS[not short])
            for short, long in _TIMES.findall(b"".join(map(ssl.PEM_cert_to_DER_cert, pem)))[:2]
        )
    except (UserError, ValueError):
        return _ALWAYS
    return begins, ends


def date_problem(path: str, what: str) -> str:
    """Whether a PEM file's first certificate has expired, or is not valid yet; else empty."""
    (begins, ends), now = validity(path), datetime.now(timezone.utc)
    if now > ends:
        return f"the {what} {path} has expired on {ends:%Y-%m-%d}"
    return (
        "" if begins <= now else f"the {what} {path} is not valid before {begins:%Y-%m-%d %H:%M %Z}"
    )


def named_tokens(tokens: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The name and the token of each line ``name:token``; a line without a name gets one from its
    hash.

    So a token keeps its name when lines are added or removed. A whole line with a name is also
    accepted as a token: tokens from before there were names may contain a colon.
    """
    named: list[tuple[str, str]] = []
    for line in tokens:
        found = _NAMED.fullmatch(line)
        # Digits of a hash: too few to reveal it, equal in a fleet's router and replicas.
        digest = hashlib.blake2b(line.encode(), digest_size=6, person=b"token name")
        name = found[1] if found else f"token {digest.hexdigest()}"
        named += [(name, found[2])] if found else []
        named.append((name, line))
    return tuple(named)


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
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
