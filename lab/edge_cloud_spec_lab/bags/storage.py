"""Reads the messages of a bag's file, MCAP or sqlite3, whoever wrote it.

Only what is wanted must be understood: topics of other encodings, records of other kinds and an
index, whether there or not, are passed over. As a file may come from a stranger, nothing is
inflated or held beyond a bound, and a database computes nothing.
"""

from __future__ import annotations

import heapq
import io
import math
import mmap
import re
import shutil
import sqlite3
import struct
from binascii import crc32
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import lz4.frame
from backports import zstd

from edge_cloud_spec.errors import UserError, one_line

MAX_BLOCK = 1 << 27  # bytes of a block, or a message, when inflated
MAX_AT_ONCE = 2 * MAX_BLOCK  # bytes of messages that are held to put them in order
MAX_INFLATED = 1 << 29  # bytes that a file may inflate to, or
MAX_RATIO = 1024  # times its size, whichever is more
MAX_TOPICS = 4096
MAX_TEXT_BYTES = 1 << 16  # bytes of a topic's name, or of a type's definition
RUN_BYTES = 1 << 20  # bytes of a file whose messages are put in order together
HELD_MESSAGE_BYTES = 256  # bytes that a message takes beside its own

MCAP, SQLITE, ZSTD = b"\x89MCAP0\r\n", b"SQLite format 3\0", b"\x28\xb5\x2f\xfd"
SCHEMA_RECORD, CHANNEL_RECORD, MESSAGE_RECORD, CHUNK_RECORD, DATA_END_RECORD = 3, 4, 5, 6, 15
RECORD_HEAD = struct.Struct("<BQ")  # kind, and bytes of the content behind it
MESSAGE_HEAD = struct.Struct("<HIQQ")  # of a message: channel, number, when logged and sent (ns)
OTHERS = {  # what is no file of a rosbag2, by its first bytes
    b"": "it is empty: nothing was recorded, or the disk was full",
    b"version https://git-lfs": "it is a Git LFS pointer: run `git lfs pull` where it was cloned",
    b"#ROSBAG V": "it is of ROS 1: `rosbags-convert --src THIS.bag --dst FOLDER` writes a rosbag2",
}
RECOVER = "`mcap recover`, or sqlite3's `.recover`, makes a whole bag of what is there"
NO_BAG = "no bag: give the folder of a rosbag2, or its .mcap or .db3 file"
DECOMPRESS = "if you trust it, decompress it first (`mcap decompress`, `zstd -d`)"


class Topic(NamedTuple):
    name: str
    kind: str  # with its encoding, if that is not ROS 2's
    definition: str


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """A context in which any error of reading this file becomes UserError."""
    try:
        yield
    except (struct.error, sqlite3.Error, MemoryError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}): {RECOVER}") from None
    except (OSError, ValueError, EOFError, zstd.ZstdError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from None


def open_storage(path: Path) -> Storage:
    """The messages of a file, whose first bytes say what it is. Raises what ``refusing`` takes."""
    if not path.is_file():
        raise ValueError(f"it is {NO_BAG}")
    with path.open("rb") as file:
        head = file.read(32)
    if why := [OTHERS[begin] for begin in OTHERS if head[: len(begin) or 1] == begin]:
        raise ValueError(why[0])
    is_sqlite = head.startswith(SQLITE)
    logs = [path.with_name(path.name + end) for end in ("-wal", "-journal")]
    left = [log for log in logs if log.is_file() and log.stat().st_size and is_sqlite]
    if not left and not head.startswith(ZSTD):
        return SqliteStorage(path) if is_sqlite else McapStorage(path)
    with TemporaryDirectory() as room:  # what is open can be read when its name is gone
        copy = Path(room) / path.name
        if not left:
            _inflate(path, copy)
            return open_storage(copy)
        for each in (path, *left):  # of a recorder that was killed; sqlite3 completes the copy
            shutil.copyfile(each, copy.with_name(each.name))
        return SqliteStorage(copy, "")


def _inflate(path: Path, to: Path) -> None:
    left = max(MAX_INFLATED, MAX_RATIO * path.stat().st_size)
    with zstd.open(path) as source, to.open("wb") as target:
        while piece := source.read(RUN_BYTES):
            left -= target.write(piece)
            if left < 0:
                raise ValueError(f"it inflates to too much: {DECOMPRESS}")


def inflated(stored: bytes | memoryview, most: int, compression: str = "zstd") -> bytes:
    """The bytes that were compressed, if they are no more than ``most``; else ValueError."""
    try:
        with {"zstd": zstd.open, "lz4": lz4.frame.open}[compression](io.BytesIO(stored)) as file:
            raw: bytes = file.read(most + 1)
    except Exception as error:  # each compressor has errors of its own
        raise ValueError(f"bytes cannot be decompressed: {one_line(error)}") from None
    if len(raw) > most:
        raise ValueError(f"more than {most} bytes were compressed together: {DECOMPRESS}")
    return raw


class McapStorage:
    """An MCAP file. ``topics`` by number; ``counts``: messages by the topic's number; ``first``:
    when the first was logged, ns."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        end, left = len(self._data) - len(MCAP), max(MAX_INFLATED, MAX_RATIO * len(self._data))
        if self._data[: len(MCAP)] != MCAP:
            raise ValueError(f"by its first bytes it is {NO_BAG}")
        if self._data[end:] != MCAP or end < len(MCAP):
            raise ValueError(
                f"it is cut off after {len(self._data)} bytes, as its recorder was killed or its "
                f"disk was full: {RECOVER}"
            )
        self._types: dict[int, tuple[str, str]] = {}  # name and definition
        self._channels: dict[int, tuple[str, str, int]] = {}  # name, encoding, and number of type
        self._runs: list[tuple[float, int, int]] = []  # first time, where it begins, and ends
        self.counts: Counter[int] = Counter()
        for kind, at, stop in _records(self._data, len(MCAP), end):
            first, begin = math.inf, at - RECORD_HEAD.size
            for inner, content in self._within(begin, stop):
                left -= len(content)
                if inner == MESSAGE_RECORD:
                    channel, _, stamp, _ = MESSAGE_HEAD.unpack_from(content)
                    self.counts[channel] += 1
                    first = min(first, stamp)
                elif inner in (SCHEMA_RECORD, CHANNEL_RECORD):
                    self._define(inner, bytes(content))
            if left < 0 or max(len(self._types), len(self._channels)) > MAX_TOPICS:
                raise ValueError(
                    f"it has over {MAX_TOPICS} topics, or inflates to too much: {DECOMPRESS}"
                )
            if kind == DATA_END_RECORD and bytes(self._data[at : at + 4]) not in (
                bytes(4),
                crc32(self._data[:begin]).to_bytes(4, "little"),
            ):
                raise ValueError(f"its data have a wrong checksum: {RECOVER}")
            if self._runs and kind != CHUNK_RECORD and stop - self._runs[-1][1] < RUN_BYTES:
                first, begin = min(first, self._runs[-1][0]), self._runs.pop()[1]
            self._runs.append((first, begin, stop))
        self.first = min((first for first, _, _ in self._runs), default=math.inf)
        self.topics = {  # once all is read: some writers name the type of a topic behind it
            number: _topic(name, encoding, *self._types.get(of, ("", "")))
            for number, (name, encoding, of) in self._channels.items()
        }

    def _define(self, kind: int, content: bytes) -> None:
        number, schema = struct.unpack_from("<HH", content)
        if kind == SCHEMA_RECORD:
            name, encoding, definition = _texts(content, 2, 3)
            self._types[number] = name, definition if encoding == "ros2msg" else ""
        else:
            name, encoding = _texts(content, 4, 2)
            self._channels[number] = name, encoding, schema

    def messages(self, wanted: Collection[int]) -> Iterator[tuple[int, int, bytes]]:
        """Number of topic, time (ns) and content of these topics' messages, in order of time."""
        held: list[tuple[int, int, int, bytes]] = []
        number = size = 0
        for first, begin, end in [*sorted(self._runs), (math.inf, 0, 0)]:
            while held and held[0][0] <= first:
                stamp, _, channel, data = heapq.heappop(held)
                size -= HELD_MESSAGE_BYTES + len(data)
                yield channel, stamp, data
            for kind, content in self._within(begin, end):
                if kind == MESSAGE_RECORD and MESSAGE_HEAD.unpack_from(content)[0] in wanted:
                    channel, _, stamp, _ = MESSAGE_HEAD.unpack_from(content)
                    number, size = (
                        number + 1,
                        size + HELD_MESSAGE_BYTES + len(content) - MESSAGE_HEAD.size,
                    )
                    heapq.heappush(
                        held, (stamp, number, channel, bytes(content[MESSAGE_HEAD.size :]))
                    )
                if size > MAX_AT_ONCE:
                    raise ValueError(
                        f"it has more than {MAX_AT_ONCE} bytes of messages out of order: "
                        "`mcap sort` puts them in order"
                    )

    def _within(self, begin: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Kind and content of the records from ``begin`` to ``end``, and of those in blocks."""
        for kind, at, stop in _records(self._data, begin, end):
            content = self._data[at:stop]
            if kind == CHUNK_RECORD:
                raw = _block(content, at - RECORD_HEAD.size)
                yield from ((inner, raw[a:b]) for inner, a, b in _records(raw, 0, len(raw)))
            else:
                yield kind, content


def _records(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Kind of each record, and where its content begins and ends."""
    while at < end:
        kind, length = RECORD_HEAD.unpack_from(data, at)
        begin, at = at + RECORD_HEAD.size, at + RECORD_HEAD.size + length
        if not kind or at > end:
            what = f"a record says that it has {length} bytes" if kind else "there are zeros"
            raise ValueError(f"{what} at byte {begin - RECORD_HEAD.size} of {len(data)}: {RECOVER}")
        yield kind, begin, at


def _block(content: memoryview, at: int) -> memoryview:
    """The records of a chunk, which is at this byte, once its checksum is verified."""
    _, _, size, crc, letters = struct.unpack_from("<QQQII", content)
    (length,) = struct.unpack_from("<Q", content, 32 + letters)
    raw = content[40 + letters : 40 + letters + length]
    if letters and length:
        compression = bytes(content[32 : 32 + letters]).decode("ascii", "replace")
        raw = memoryview(inflated(raw, min(size, MAX_BLOCK), compression))
    if len(raw) != size or (crc and crc32(raw) != crc):
        raise ValueError(f"the block at byte {at} has a wrong checksum: {RECOVER}")
    return raw


def _texts(content: bytes, at: int, count: int) -> list[str]:
    """So many texts from byte ``at`` on, cut to ``MAX_TEXT_BYTES``."""
    found = []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", content, at)
        found.append(
            content[at + 4 : at + 4 + min(length, MAX_TEXT_BYTES)].decode("utf-8", "replace")
        )
        at += 4 + length
    return found


def _topic(name: str, encoding: str, kind: str, definition: str) -> Topic:
    # Some writers leave out the "msg".
    kind = kind.replace("/", "/msg/") if kind.count("/") == 1 else kind or "no type"
    return Topic(name, kind if encoding == "cdr" else f"{kind} in {encoding}", definition)


# No view, and no expression in a column or an index, which could compute anything.
PLAIN = re.compile(
    r"CREATE (TABLE|(UNIQUE )?INDEX) [\w\"'`]+( ON [\w\"'`]+)?\s*\([\w\s,\"'`]*\)", re.IGNORECASE
)


class SqliteStorage:
    """An sqlite3 file, with ``topics``, ``counts`` and ``first`` as of ``McapStorage``."""

    def __init__(self, path: Path, mode: str = "?mode=ro&immutable=1") -> None:
        self._database = sqlite3.connect(path.absolute().as_uri() + mode, uri=True)
        read = self._database.execute
        made = read(
            "SELECT sql FROM sqlite_master WHERE sql LIKE '%messages%' OR sql LIKE '%topics%'"
        ).fetchall()
        if not made or not all(PLAIN.fullmatch(sql) for (sql,) in made):
            raise ValueError("it has no plain tables, as `ros2 bag record` makes them")
        for table in ("topics", "messages"):
            if (found := read(f"PRAGMA integrity_check({table})").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(found)
        rows = read("SELECT id, name, serialization_format, type FROM topics").fetchmany(MAX_TOPICS)
        self.topics = {row[0]: _topic(f"{row[1]}", f"{row[2]}", f"{row[3]}", "") for row in rows}
        self.counts = Counter(
            dict(read("SELECT topic_id, count(*) FROM messages GROUP BY topic_id"))
        )
        ((first,),) = read("SELECT min(CAST(timestamp AS INTEGER)) FROM messages")
        self.first: float = math.inf if first is None else first

    def messages(self, wanted: Collection[int]) -> Iterator[tuple[int, int, bytes]]:
        """As those of ``McapStorage``."""
        yield from self._database.execute(
            "SELECT topic_id, CAST(timestamp AS INTEGER), CAST(data AS BLOB) FROM messages WHERE "
            f"data NOTNULL AND topic_id IN ({','.join('?' * len(wanted))}) "
            "ORDER BY timestamp, rowid",
            [*wanted],
        )


Storage = McapStorage | SqliteStorage
