"""MCAP files, record by record, as any writer may lay them out."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import lz4.frame
from backports import zstd

MAGIC = b"\x89MCAP0\r\n"
COMPRESSED = {"": bytes, "zstd": zstd.compress, "lz4": lz4.frame.compress}


def text(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def record(kind: int, content: bytes) -> bytes:
    return struct.pack("<BQ", kind, len(content)) + content


def schema(number: int, name: str, encoding: str, definition: bytes) -> bytes:
    named = text(name.encode()) + text(encoding.encode()) + text(definition)
    return record(3, struct.pack("<H", number) + named)


def channel(number: int, of: int, topic: str, encoding: str = "cdr") -> bytes:
    """A topic whose type is the schema ``of`` (0: none)."""
    named = text(topic.encode()) + text(encoding.encode()) + text(b"")
    return record(4, struct.pack("<HH", number, of) + named)


def message(data: bytes, stamp: int = 1, of: int = 1) -> bytes:
    return record(5, struct.pack("<HIQQ", of, 0, stamp, stamp) + data)


def block(
    stored: bytes, size: int, compression: bytes = b"", stamp: int = 1, crc: int = 0
) -> bytes:
    head = struct.pack("<QQQI", stamp, stamp, size, crc) + text(compression)
    return record(6, head + struct.pack("<Q", len(stored)) + stored)


def chunk(records: bytes, compression: str = "") -> bytes:
    """A block of these records with its checksum."""
    stored = COMPRESSED[compression](records)
    return block(stored, len(records), compression.encode(), crc=crc32(records))


def write_mcap(
    path: Path,
    content: bytes,
    index: bytes = b"",
    start: int | None = None,
    profile: bytes = b"ros2",
) -> Path:
    """A whole file. ``index``: records of its summary; ``start``: where the footer says it is."""
    head = MAGIC + record(1, text(profile) + text(b"")) + content + record(15, bytes(4))
    start = (len(head) if index else 0) if start is None else start
    path.write_bytes(head + index + record(2, struct.pack("<QQI", start, 0, 0)) + MAGIC)
    return path


def in_parts(records: Sequence[bytes], size: int, compression: str | None) -> bytes:
    """The records in blocks of ``size`` (``compression`` None: in no block)."""
    parts = [b"".join(records[at : at + size]) for at in range(0, len(records), size)]
    return b"".join(parts if compression is None else (chunk(p, compression) for p in parts))
