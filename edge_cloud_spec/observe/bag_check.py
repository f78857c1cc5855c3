"""Checks that a bag's file is complete and bounded in what it makes a reader do.

In an MCAP file every record must be in place and every checksum right; an sqlite3 file may have
tables only, since a view or an expression could compute anything. A bag may come from a stranger.

rosbags follows the index at the end of a file; it would notice a block that was zeroed, flipped or
cut late, as an unreadable message, or not at all. So the index must agree with the blocks here, and
what rosbags will allocate is bounded.
"""

from __future__ import annotations

import mmap
import re
import sqlite3
import struct
from binascii import crc32
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from backports import zstd
from lz4.frame import LZ4FrameDecompressor

from ..errors import UserError, one_line

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, CHUNK_INDEX = 1, 2, 3, 4, 5, 6, 8
STATISTICS, DATA_END, LAST_KNOWN, PRIVATE = 11, 15, 15, 128
RECORD = 9  # bytes before a record's content: its kind and its length
FOOTER_BYTES = RECORD + 20 + len(MAGIC)

Record = tuple[int, int, bytes]  # kind, where it begins in the file, content
MAX_RATIO = 64  # times the file, whichever is more
MAX_TOPICS = 4096
MAX_REPEATED = 4096  # strings or messages in an array of fixed length


class _Block(NamedTuple):
    """A block's description, in its head or in the index: times in ns, position, sizes."""

    begin: int
    end: int
    at: int
    length: int
    compression: bytes
    stored: int
    size: int  # inflated


def check_mcap(path: Path) -> dict[str, int]:
    """The number of messages per topic in a complete file; raises UserError with what is wrong, and
    where.

    Bytes are checked if the recorder wrote checksums, as ours and ros2 bag's do.
    """
    try:
        if not path.stat().st_size:
            raise UserError(f"{path} is empty: nothing was recorded, or the disk was full")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _check(data)
    except _RefusedError as error:
        raise UserError(f"{path} {error}") from None
    except (ValueError, struct.error) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


class _RefusedError(Exception):
    """The file is refused: it is cut off, or would cost too much to read."""


def _cut_off(size: int) -> _RefusedError:
    return _RefusedError(
        f"is cut off after {size} bytes: its recorder was killed or its disk was full; "
        "`mcap recover` makes a whole bag of what is there"
    )


def _excess(what: str) -> _RefusedError:
    return _RefusedError(f"is refused: {what}")


class _Contents:
    """The topics and messages found in a file's records so far."""

    def __init__(self) -> None:
        self.topics: dict[int, str] = {}
        self.counts: Counter[int] = Counter()
        self._definitions: set[bytes] = set()  # those that came again cost nothing
        self._defined = 0  # bytes

    def take(self, kind: int, at: int, content: bytes) -> None:
        try:
            if kind == CHANNEL:
                channel, _, letters = struct.unpack_from("<HHI", content)
                self.topics[channel] = content[8 : 8 + letters].decode()
            elif kind == MESSAGE:
                self.counts[struct.unpack_from("<HIQQ", content)[0]] += 1
        except (struct.error, UnicodeDecodeError):
            raise ValueError(f"the record at byte {at} cannot be read") from None
        if kind in (SCHEMA, CHANNEL) and content not in self._definitions:
            self._definitions.add(content)
            self._defined += len(content)
            if self._defined > MAX_DEFINITIONS or len(self.topics) > MAX_TOPICS:
                raise _excess(
                    f"it defines more than {MAX_TOPICS} topics, or types of more than "
                    f"{MAX_DEFINITIONS} bytes"
                )

    def check_count(self, said: int) -> None:
        """Raise ValueError where an index counts other messages."""
        if said != self.counts.total():
            raise ValueError(f"its index counts {said} messages, and it has {self.counts.total()}")


def _check(data: mmap.mmap) -> dict[str, int]:
    if data[: len(MAGIC)] != MAGIC:
        zeroed = " (it holds zeros)" if not any(data[: len(MAGIC)]) else ""
        raise ValueError(f"it does not begin as an MCAP file{zeroed}")
    size = len(data)
    whole = size >= FOOTER_BYTES and data[-len(MAGIC) :] == MAGIC
    contents = _Contents()
    blocks: list[_Block] = []
    indexed: list[_Block] = []
    inflated = summary = 0
    for kind, at, content in _records(data, len(MAGIC), size - len(MAGIC) * whole, whole):
        if kind == CHUNK:
            block = _block(content, at)
            blocks.append(block)
            inflated += block.size
            if inflated > max(MAX_INFLATED, MAX_RATIO * size):
                raise _excess(
                    f"its blocks inflate to {MAX_RATIO} times its size and more than "
                    f"{MAX_INFLATED} bytes; `mcap decompress` writes it without compression"
                )
            for inner in _inner(block, content):
                contents.take(*inner)
        elif kind == DATA_END:
            summary = at + RECORD + len(content)
            _check_sum(data, 0, at, struct.unpack_from("<I", content)[0], "the data section")
        elif kind == CHUNK_INDEX:
            indexed.append(_indexed(content))
        elif kind == STATISTICS and summary:
            contents.check_count(struct.unpack_from("<Q", content)[0])
        elif kind == FOOTER:
            start, _, crc = struct.unpack("<QQI", content)
            _check_sum(data, start, at + RECORD + 16, crc, "the index")
            if at + FOOTER_BYTES != size or start not in (0, summary):
                raise ValueError("its index is not where it says")
            if start and sorted(indexed) != sorted(blocks):
                raise ValueError("its index does not name the blocks that it has")
            _check_order(blocks)
            return {topic: contents.counts[channel] for channel, topic in contents.topics.items()}
        else:
            contents.take(kind, at, content)
    raise _cut_off(size)


def _records(data: mmap.mmap, at: int, end: int, whole: bool) -> Iterator[Record]:
    """A file's records; if a record extends beyond the end, says whether the file was cut."""
    while at < end:
        kind, length = data[at], int.from_bytes(data[at + 1 : at + RECORD], "little")
        if not kind or LAST_KNOWN < kind < PRIVATE:
            zeros = "zeros" if not any(data[at : at + 64]) else f"no record (0x{kind:02x})"
            raise ValueError(f"there are {zeros} at byte {at} of {len(data)}")
        if at + RECORD + length > end:
            if not whole:
                raise _cut_off(len(data))
            raise ValueError(f"the record at byte {at} says that it has {length} bytes")
        if length > MAX_BLOCK:
            raise _excess(f"the record at byte {at} has more than {MAX_BLOCK} bytes")
        yield kind, at, data[at + RECORD : at + RECORD + length]
        at += RECORD + length


def _block(content: bytes, at: int) -> _Block:
    """Parse a block's head."""
    try:
        begin, end, size, _, letters = struct.unpack_from("<QQQII", content)
        (stored,) = struct.unpack_from("<Q", content, 32 + letters)
    except struct.error:
        raise ValueError(f"the block at byte {at} has no readable head") from None
    if 40 + letters + stored != len(content):
        raise ValueError(f"the block at byte {at} is not as long as it says")
    if size > MAX_BLOCK:
        raise _excess(f"the block at byte {at} has {size} bytes; {MAX_BLOCK} are the most")
    compression = content[32 : 32 + letters]
    return _Block(begin, end, at, RECORD + len(content), compression, stored, size)


def _indexed(content: bytes) -> _Block:
    """Parse the index's description of a block."""
    begin, end, at, length, offsets = struct.unpack_from("<QQQQI", content)
    rest = content[36 + offsets + 8 :]  # after the messages' own index and its length
    (letters,) = struct.unpack_from("<I", rest)
    stored, size = struct.unpack_from("<QQ", rest, 4 + letters)
    return _Block(begin, end, at, length, rest[4 : 4 + letters], stored, size)


def _inner(block: _Block, content: bytes) -> Iterator[Record]:
    """The records in a chunk, once its checksum is verified."""
    at, size = block.at, block.size
    raw = _inflated(block, content[-block.stored :] if block.stored else b"")
    (crc,) = struct.unpack_from("<I", content, 24)
    when = f"(messages from {block.begin / 1e9:.3f} to {block.end / 1e9:.3f} s)"
    if len(raw) != size or (crc and crc32(raw) != crc):
        raise ValueError(f"the block at byte {at} {when} has a wrong checksum")
    inside = 0
    while inside < size:
        kind, length = raw[inside], int.from_bytes(raw[inside + 1 : inside + RECORD], "little")
        if kind not in (SCHEMA, CHANNEL, MESSAGE) or inside + RECORD + length > size:
            raise ValueError(f"the block at byte {at} {when} holds what is no message")
        yield kind, at, raw[inside + RECORD : inside + RECORD + length]
        inside += RECORD + length


def _inflated(block: _Block, stored: bytes) -> bytes:
    """A block's bytes, never inflated to more than its head says."""
    if not block.compression:
        return stored
    if block.compression not in (b"zstd", b"lz4"):
        name = block.compression[:20].decode("ascii", "replace")
        raise ValueError(f"the block at byte {block.at} is compressed with {name!r}")
    decompressor = (
        zstd.ZstdDecompressor() if block.compression == b"zstd" else LZ4FrameDecompressor()
    )
    try:
        raw: bytes = decompressor.decompress(stored, max_length=block.size + 1)
    except Exception as error:  # each compressor has errors of its own
        text = f"the block at byte {block.at} cannot be decompressed: {error}"
        raise ValueError(text) from None
    if len(raw) > block.size or not decompressor.eof or decompressor.unused_data:
        raise ValueError(f"the block at byte {block.at} is not the {block.size} bytes that it says")
    return raw


def _check_order(blocks: list[_Block]) -> None:
    """Bound the memory of reading in time order, which holds overlapping blocks together."""
    begun = [(block.begin, block.size) for block in blocks]
    ended = [(max(block.begin, block.end) + 1, -block.size) for block in blocks]
    held = 0
    for _, change in sorted(begun + ended):
        held += change
        if held > MAX_AT_ONCE:
            raise _excess(
                f"blocks of the same time have more than {MAX_AT_ONCE} bytes; `mcap sort` puts "
                "its messages in order"
            )


def _check_sum(data: mmap.mmap, start: int, end: int, crc: int, what: str) -> None:
    """Verify a checksum; ``crc`` 0: none was written."""
    with memoryview(data) as view, view[start:end] as part:
        if crc and (start > end or crc32(part) != crc):
            raise ValueError(f"{what} has a wrong checksum")


# As recorders make them: no view, trigger, virtual table, generated column, check or expression.
_PLAIN = re.compile(
    r"CREATE (TABLE|INDEX) \w+( ON \w+)?\s*\((?!.*\bDEFAULT\b)[\w\s,]*\)", re.I | re.S
)


def check_sqlite(path: Path) -> dict[str, int]:
    """The number of messages per topic in a database with intact pages; raises UserError."""
    try:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise UserError(f"{path} is damaged: it does not begin as an sqlite3 file")
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        try:
            return _check_tables(connection)
        finally:
            connection.close()
    except (sqlite3.Error, OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path} is damaged or cut off: {one_line(error)}") from None


def _check_tables(connection: sqlite3.Connection) -> dict[str, int]:
    for name, sql in connection.execute("SELECT name, sql FROM sqlite_master").fetchall():
        if sql is not None and not _PLAIN.fullmatch(sql):  # None: the index of a primary key
            raise ValueError(f"{name!r} in it is no plain table, as `ros2 bag record` makes them")
    [(found,), *_] = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise ValueError(found)
    [(topics, ids)] = connection.execute("SELECT count(*), count(DISTINCT id) FROM topics")
    if topics != ids or topics > MAX_TOPICS:
        raise ValueError(f"it has {topics} topics of {ids} numbers; {MAX_TOPICS} are the most")
    [(odd,)] = connection.execute(
        "SELECT (SELECT count(*) FROM topics WHERE typeof(name) != 'text')"
        " + (SELECT count(*) FROM messages WHERE typeof(timestamp) != 'integer')"
    )
    if odd:
        raise ValueError("it has a topic without a name, or a message without a time")
    return dict(
        connection.execute(
            "SELECT name, count(messages.id) FROM topics "
            "LEFT JOIN messages ON topics.id == messages.topic_id GROUP BY topics.id"
        ).fetchall()
    )


MAX_BLOCK = 1 << 26  # bytes of a record of an MCAP file, and of a block of it when inflated
MAX_AT_ONCE = 2 * MAX_BLOCK  # bytes of blocks of one time, which are held together
MAX_INFLATED = 1 << 29  # bytes that all blocks of a file may inflate to, or
MAX_DEFINITIONS = 1 << 22  # bytes that define types and topics
MAX_METADATA = 1 << 21  # bytes of metadata.yaml
MAX_PARTS = 1 << 22  # bytes of a message that has lists of strings or messages
