"""Whether an MCAP file is whole: every record in its place, every checksum right.

rosbags follows the index at the end of a file; a block that was zeroed, flipped or cut before it
would be noticed late, as a message that cannot be read, or not at all.
"""

from __future__ import annotations

import mmap
import struct
from binascii import crc32
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, CHUNK_INDEX = 1, 2, 3, 4, 5, 6, 8
STATISTICS, DATA_END, LAST_KNOWN, PRIVATE = 11, 15, 15, 128
RECORD = 9  # bytes before a record's content: its kind and its length
FOOTER_BYTES = RECORD + 20 + len(MAGIC)
MAX_CHUNK = 1 << 30  # bytes, decompressed

Record = tuple[int, int, bytes]  # kind, where it begins in the file, content


def check_mcap(path: Path) -> dict[str, int]:
    """The messages of each topic of a whole file; raises UserError with what is wrong, and where.

    Bytes are checked where the recorder wrote checksums, as ours and ros2 bag's do.
    """
    try:
        if not path.stat().st_size:
            raise UserError(f"{path} is empty: nothing was recorded, or the disk was full")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _check(data)
            except ValueError as error:
                raise UserError(f"{path} is damaged: {error}") from None
            except _CutError as error:
                raise UserError(
                    f"{path} is cut off after {error}: its recorder was killed or its disk was "
                    "full; `mcap recover` makes a whole bag of what is there"
                ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


class _CutError(Exception):
    """The file ends before its footer."""


def _check(data: mmap.mmap) -> dict[str, int]:
    if data[: len(MAGIC)] != MAGIC:
        zeroed = " (it holds zeros)" if not any(data[: len(MAGIC)]) else ""
        raise ValueError(f"it does not begin as an MCAP file{zeroed}")
    size = len(data)
    whole = size >= FOOTER_BYTES and data[-len(MAGIC) :] == MAGIC
    channels: dict[int, str] = {}
    counts: Counter[int] = Counter()
    chunks: set[int] = set()
    indexed: set[int] = set()
    ended = False
    for kind, at, content in _records(data, len(MAGIC), size - len(MAGIC) * whole, whole):
        if kind == CHUNK:
            chunks.add(at)
            _count(_inner(content, at), channels, counts)
        elif kind == DATA_END:
            ended = True
            _check_sum(data, 0, at, struct.unpack_from("<I", content)[0], "the data section")
        elif kind == CHUNK_INDEX:
            indexed.add(struct.unpack_from("<QQQ", content)[2])
        elif kind == STATISTICS and ended:
            said = struct.unpack_from("<Q", content)[0]
            if said != counts.total():
                raise ValueError(f"its index counts {said} messages, and it has {counts.total()}")
        elif kind == FOOTER:
            start, _, crc = struct.unpack("<QQI", content)
            _check_sum(data, start, at + RECORD + 16, crc, "the index")
            if start and indexed != chunks:
                raise ValueError("its index does not name the blocks that it has")
            return {topic: counts[channel] for channel, topic in channels.items()}
        else:
            _count([(kind, at, content)], channels, counts)
    raise _CutError(f"{size} bytes")


def _records(data: mmap.mmap, at: int, end: int, whole: bool) -> Iterator[Record]:
    """The file's records; a record that goes beyond the end says whether it was cut."""
    while at < end:
        kind, length = data[at], int.from_bytes(data[at + 1 : at + RECORD], "little")
        if not kind or LAST_KNOWN < kind < PRIVATE:
            zeros = "zeros" if not any(data[at : at + 64]) else f"no record (0x{kind:02x})"
            raise ValueError(f"there are {zeros} at byte {at} of {len(data)}")
        if at + RECORD + length > end:
            if not whole:
                raise _CutError(f"{len(data)} bytes")
            raise ValueError(f"the record at byte {at} says that it has {length} bytes")
        yield kind, at, data[at + RECORD : at + RECORD + length]
        at += RECORD + length


def _inner(content: bytes, at: int) -> Iterator[Record]:
    """The records of a chunk, when its checksum is right."""
    try:
        begin, end, size, crc, letters = struct.unpack_from("<QQQII", content)
        compression = content[32 : 32 + letters].decode("ascii")
        stored = content[32 + letters + 8 :]
        length = int.from_bytes(content[32 + letters : 40 + letters], "little")
    except (struct.error, UnicodeDecodeError):
        raise ValueError(f"the block at byte {at} has no readable head") from None
    if length != len(stored) or size > MAX_CHUNK:
        raise ValueError(f"the block at byte {at} is not as long as it says")
    raw = _decompressed(stored, compression, at)
    when = f"(messages from {begin / 1e9:.3f} to {end / 1e9:.3f} s)"
    if len(raw) != size or (crc and crc32(raw) != crc):
        raise ValueError(f"the block at byte {at} {when} has a wrong checksum")
    inside = 0
    while inside < size:
        kind, length = raw[inside], int.from_bytes(raw[inside + 1 : inside + RECORD], "little")
        if kind not in (SCHEMA, CHANNEL, MESSAGE) or inside + RECORD + length > size:
            raise ValueError(f"the block at byte {at} {when} holds what is no message")
        yield kind, at, raw[inside + RECORD : inside + RECORD + length]
        inside += RECORD + length


def _decompressed(stored: bytes, compression: str, at: int) -> bytes:
    from rosbags.rosbag2.storage_mcap import DECOMPRESSORS

    if compression not in DECOMPRESSORS:
        raise ValueError(f"the block at byte {at} is compressed with {compression[:20]!r}")
    try:
        return DECOMPRESSORS[compression](stored, 0)
    except Exception as error:  # each compressor has errors of its own
        raise ValueError(f"the block at byte {at} cannot be decompressed: {error}") from None


def _count(
    records: Iterator[Record] | list[Record], channels: dict[int, str], counts: Counter[int]
) -> None:
    for kind, at, content in records:
        try:
            if kind == CHANNEL:
                channel, _, letters = struct.unpack_from("<HHI", content)
                channels[channel] = content[8 : 8 + letters].decode()
            elif kind == MESSAGE:
                counts[struct.unpack_from("<H", content)[0]] += 1
        except (struct.error, UnicodeDecodeError):
            raise ValueError(f"the record at byte {at} cannot be read") from None


def _check_sum(data: mmap.mmap, start: int, end: int, crc: int, what: str) -> None:
    """``crc``: 0 where none was written."""
    if crc and (start > end or crc32(data[start:end]) != crc):
        raise ValueError(f"{what} has a wrong checksum")
