"""An MCAP file that tells damage by checksums, and that can be ended when its disk is full."""

from __future__ import annotations

import struct
from binascii import crc32
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

from rosbags.interfaces import Connection
from rosbags.rosbag2.enums import CompressionMode
from rosbags.rosbag2.storage_mcap import McapWriter, PendingChunk

CRC_AT = 33  # bytes of a chunk's record before its checksum
BLOCK_S = 2.0  # after which a block is written; a power cut loses no more
FOOTER = struct.Struct("<QQI8s")  # start of the summary, of its offsets; checksum, magic
SUM_BYTES = 4 + 8  # the checksum and the magic, which it does not cover


class _Unbuffered:
    """A file whose writes are whole when they return; what did not fit is not kept anywhere."""

    def __init__(self, path: Path) -> None:
        self._raw = path.open("r+b", buffering=0)
        self._raw.seek(0, 2)
        self.tell, self.seek, self.close = self._raw.tell, self._raw.seek, self._raw.close

    def write(self, data: bytes | memoryview) -> int:
        left = memoryview(data)
        while left.nbytes:
            left = left[self._raw.write(left) :]
        return memoryview(data).nbytes

    def truncate(self, size: int) -> None:
        self._raw.truncate(size)
        self._raw.seek(size)


@dataclass(frozen=True)
class _Block:
    """A chunk that is in the file: where it ends, what it holds, its last stamp (ns)."""

    end: int
    counts: Mapping[int, int]
    last: int


class RecoverableMcap(McapWriter):
    """rosbags' writer, with checksums and blocks that can be taken back."""

    def __init__(self, path: Path, compression: CompressionMode) -> None:
        super().__init__(path, compression)
        self.bio.close()
        self._file = file = _Unbuffered(self.path)
        self.bio = cast(Any, file)  # what rosbags writes to
        self._begin = self._file.tell()
        self._blocks: list[_Block] = []

    def write(self, connection: Connection, timestamp: int, data: bytes | memoryview) -> None:
        if timestamp - self.chunk.message_start_time > BLOCK_S * 1e9:
            self.close_chunk()
        super().write(connection, timestamp, data)

    def close_chunk(self) -> None:
        start, pending = self._file.tell(), self.chunk
        super().close_chunk()
        end = self._file.tell()
        self._file.seek(start + CRC_AT)
        self._file.write(crc32(pending.bio.getvalue()).to_bytes(4, "little"))
        self._file.seek(end)
        counts = {channel: len(messages) for channel, messages in pending.msgs.items()}
        self._blocks.append(_Block(end, counts, pending.message_end_time))

    def take_back(self) -> bool:
        """Forget the block that does not fit, else the last one; whether there was one.

        The file ends after the block before it.
        """
        pending = self.chunk
        if pending.bio.tell():
            counts = {channel: len(messages) for channel, messages in pending.msgs.items()}
            self.chunk = PendingChunk(2**63 - 1, 0, BytesIO(), defaultdict(list))
        elif self._blocks:
            counts = dict(self._blocks.pop().counts)
            self.chunks.pop()
        else:
            return False
        for channel, count in counts.items():
            self.channel_stats[channel] -= count
        self.message_end_time = max((block.last for block in self._blocks), default=0)
        self._file.truncate(self._blocks[-1].end if self._blocks else self._begin)
        return True

    def close(self, version: int, metadata: str) -> None:
        super().close(version, metadata)
        with self.path.open("r+b") as file:
            file.seek(-FOOTER.size, 2)
            start = FOOTER.unpack(file.read())[0]
            file.seek(start)
            summary = file.read()[:-SUM_BYTES]
            file.seek(-SUM_BYTES, 2)
            file.write(crc32(summary).to_bytes(4, "little"))
