"""A bag that is written while a robot runs: it ends in order, whatever its disk does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import cast

from rosbags.interfaces import Connection, Qos
from rosbags.rosbag2 import StoragePlugin, Writer, WriterError

from ..errors import UserError
from .bag import VERSION, types
from .mcap_file import RecoverableMcap

METADATA_BYTES = 1 << 15  # kept for metadata.yaml, which is written last


class _McapBag(Writer):
    STORAGE_PLUGINS = MappingProxyType({StoragePlugin.MCAP: RecoverableMcap})


class BagWriter:
    """Writes serialized messages; may be closed by another thread than writes.

    ``topics`` maps names to types (``std_msgs/msg/String``), ``offered`` to their QoS where it is
    known. When a message cannot be written (disk full), the bag is ended so that it can be read,
    ``problem`` says it in one sentence, and later messages are dropped. Raises UserError where no
    bag can be begun.
    """

    def __init__(
        self, folder: Path, topics: Mapping[str, str], offered: Mapping[str, Qos] | None = None
    ) -> None:
        self.folder, self.problem, self.messages = folder, "", 0
        self._first, self._last = 0, 0
        store = types()
        try:
            self._writer = _McapBag(folder, version=VERSION, storage_plugin=StoragePlugin.MCAP)
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
        self._lock = threading.Lock()  # a node is closed by another thread than hears for it

    @property
    def seconds(self) -> float:
        """From the first message to the last."""
        return (self._last - self._first) / 1e9

    def note(self, key: str, value: str) -> None:
        """Put this into the bag's ``custom_data``, under this key."""
        self._writer.set_custom_data(key, value)

    def write(self, topic: str, stamp: int, cdr: bytes) -> None:
        """One message of ``topic``, received at ``stamp`` (ns)."""
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
        """End the file; without this it has no index."""
        with self._lock:
            if not self._open:
                return
            try:
                self._writer.close()
                self._open = False
            except OSError as error:
                self._end_early(error)

    def _end_early(self, error: OSError) -> None:
        """Take back what does not fit until the index does."""
        self._open = False
        storage = cast("RecoverableMcap | None", self._writer.storage)
        readable = False
        while storage is not None and not readable:
            try:
                if not storage.take_back():
                    break
                self._writer.counts = dict(storage.channel_stats)
                self.messages = sum(storage.channel_stats.values())
                self._writer.max_timestamp = self._last = storage.message_end_time
                self._writer.close()
                readable = True
            except OSError:
                storage = cast("RecoverableMcap | None", self._writer.storage)
        with contextlib.suppress(Exception):
            self._writer.abort()
        self.problem = f"the recording to {self.folder} ended: {error.strerror or error}; " + (
            f"the bag so far ({self.messages} messages, {self.seconds:.0f} s) can be read"
            if readable
            else "free the disk and record again"
        )
