"""Writes a bag while a robot runs; the bag stays readable if its disk fails or fills up."""

from __future__ import annotations

import contextlib
import threading
from binascii import crc32
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any, Literal, cast

from rosbags.interfaces import Connection, Qos
from rosbags.rosbag2 import StoragePlugin, Writer, WriterError
from rosbags.rosbag2.enums import CompressionMode
from rosbags.rosbag2.storage_mcap import McapWriter, PendingChunk
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from ..errors import UserError
from ..share import share

PACKAGE = "edge_cloud_spec"
VERSION: Literal[9] = 9  # of the rosbag2 metadata; Jazzy and later read it
METADATA_BYTES = 1 << 15  # kept for metadata.yaml, which is written last
CRC_AT = 33  # bytes of a chunk's record before its checksum
BLOCK_S = 2.0  # after which a block is written; a power cut loses no more


@lru_cache(maxsize=1)
def types() -> Typestore:
    """The message types of ROS 2 Jazzy and of this package."""
    store = get_typestore(Stores.ROS2_JAZZY)
    ours: dict[str, Any] = {}
    for path in sorted((share() / "msg").glob("*.msg")):
        ours |= get_types_from_msg(path.read_text("utf-8"), f"{PACKAGE}/msg/{path.stem}")
    store.register(ours)
    return store


class _Unbuffered(FileIO):
    """A file whose writes are complete when they return; nothing is buffered."""

    def write(self, data: Any) -> int:
        left = memoryview(data)
        while left.nbytes:
            left = left[super().write(left) :]
        return memoryview(data).nbytes


class RecoverableMcap(McapWriter):
    """rosbags' MCAP writer with checksums, whose last blocks can be removed."""

    def __init__(self, path: Path, compression: CompressionMode) -> None:
        super().__init__(path, compression)
        self.bio.close()
        self._file = file = _Unbuffered(self.path, "r+")
        self.bio = cast(Any, file)  # what rosbags writes to
        # Where each block ends, with the messages by channel, and the last stamp, until there.
        self._ends: list[tuple[int, dict[int, int], int]] = [(file.seek(0, 2), {}, 0)]

    def write(self, connection: Connection, timestamp: int, data: bytes | memoryview) -> None:
        if timestamp - self.chunk.message_start_time > BLOCK_S * 1e9:
            self.close_chunk()
        super().write(connection, timestamp, data)

    def close_chunk(self) -> None:
        start, raw = self._file.tell(), self.chunk.bio.getvalue()
        super().close_chunk()
        self._file.seek(start + CRC_AT)
        self._file.write(crc32(raw).to_bytes(4, "little"))
        end = self._file.seek(0, 2)
        self._ends.append((end, dict(self.channel_stats), self.message_end_time))

    def take_back(self) -> bool:
        """Drop the unwritten block, else the last written one; False if there was none.

        The file then ends after the block before.
        """
        if not self.chunk.bio.tell():
            if not self.chunks:
                return False
            self._ends.pop()
            self.chunks.pop()
        self.chunk = PendingChunk(2**63 - 1, 0, BytesIO(), defaultdict(list))
        end, counts, self.message_end_time = self._ends[-1]
        self.channel_stats = dict.fromkeys(self.channel_stats, 0) | counts
        self._file.truncate(end)
        self._file.seek(0, 2)
        return True


class BagWriter:
    """Writes serialized messages; another thread may close it.

    ``topics`` maps names to types (``std_msgs/msg/String``), ``offered`` to their QoS if known. If
    a message cannot be written (disk full), the bag is ended so that it can be read, ``problem``
    says so in one sentence, and later messages are dropped. Raises UserError if no bag can be
    created.
    """

    def __init__(
        self, folder: Path, topics: Mapping[str, str], offered: Mapping[str, Qos] | None = None
    ) -> None:
        self.folder, self.problem, self.messages = folder, "", 0
        self._first, self._last = 0, 0
        store = types()
        try:
            self._writer = Writer(folder, version=VERSION, storage_plugin=StoragePlugin.MCAP)
            self._writer.STORAGE_PLUGINS = {StoragePlugin.MCAP: RecoverableMcap}
            self._writer.open()
            (folder / "metadata.yaml.tmp").write_bytes(bytes(METADATA_BYTES))
        except WriterError:
            raise UserError(f"{folder} is there already: record to another folder") from None
        except OSError as error:
            raise UserError(
                f"nothing can be recorded to {folder}: {error.strerror or error}"
            ) from None
        self._connections: dict[str, Connection] = {
            topic: self._writer.add_connection(
                f"/{topic.lstrip('/')}",
                kind,
                typestore=store,
                offered_qos_profiles=[offered[topic]] if offered and topic in offered else (),
            )
            for topic, kind in topics.items()
        }
        self._open = True
        self._lock = threading.Lock()  # another thread may close than the one that receives

    @property
    def text(self) -> str:
        """The number of messages, and the seconds from the first to the last, as text."""
        return f"{self.messages} messages, {(self._last - self._first) / 1e9:.0f} s"

    def write(self, topic: str, stamp: int, cdr: bytes) -> None:
        """Write one message of ``topic``, received at ``stamp`` (ns)."""
        with self._lock:
            if not self._open:
                return
            try:
                self._writer.write(self._connections[topic], stamp, cdr)
            except OSError as error:
                self._end_early(error)
                return
            self._first = self._first or stamp
            self._last = max(self._last, stamp)
            self.messages += 1

    def close(self) -> None:
        """End the file with its index."""
        with self._lock:
            if not self._open:
                return
            try:
                self._writer.close()
                self._open = False
            except OSError as error:
                self._end_early(error)

    def _end_early(self, error: OSError) -> None:
        """Remove blocks until the index fits on the disk."""
        self._open = False
        readable = False
        while storage := cast("RecoverableMcap | None", self._writer.storage):
            with contextlib.suppress(OSError, ValueError):  # ValueError: its file is closed already
                if not storage.take_back():
                    break
                self._writer.counts = dict(storage.channel_stats)
                self.messages = sum(storage.channel_stats.values())
                self._writer.max_timestamp = self._last = storage.message_end_time
                self._writer.close()
                readable = True
        with contextlib.suppress(Exception):
            self._writer.abort()
        self.problem = f"the recording to {self.folder} ended: {error.strerror or error}; " + (
            f"the bag so far ({self.text}) can be read"
            if readable
            else "free the disk and record again"
        )
