"""A run as an MCAP bag, written and read without a full ROS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rosbags.highlevel import AnyReader, AnyReaderError
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from ..errors import UserError
from ..share import share

PACKAGE = "edge_cloud_spec"
VERSION: Literal[9] = 9  # of the rosbag2 metadata; Jazzy and later read it


def types() -> Typestore:
    """The types of ROS 2 Jazzy and of this package."""
    store = get_typestore(Stores.ROS2_JAZZY)
    ours: dict[str, Any] = {}
    for path in sorted((share() / "msg").glob("*.msg")):
        ours |= get_types_from_msg(path.read_text("utf-8"), f"{PACKAGE}/msg/{path.stem}")
    store.register(ours)
    return store


class BagWriter:
    """Writes serialized messages; used by one thread at a time, then closed.

    ``topics`` maps names to types (``std_msgs/msg/String``).
    """

    def __init__(self, folder: Path, topics: dict[str, str]) -> None:
        store = types()
        self._writer = Writer(folder, version=VERSION, storage_plugin=StoragePlugin.MCAP)
        self._writer.open()
        self._connections = {
            topic: self._writer.add_connection(f"/{topic.lstrip('/')}", kind, typestore=store)
            for topic, kind in topics.items()
        }

    def write(self, topic: str, stamp: int, cdr: bytes) -> None:
        """One message of ``topic``, received at ``stamp`` (ns)."""
        self._writer.write(self._connections[topic], stamp, cdr)

    def close(self) -> None:
        """End the file; without this it has no index."""
        self._writer.close()


def read_bag(folder: Path, topics: tuple[str, ...]) -> Iterator[tuple[int, str, bytes, Any]]:
    """(ns, topic without its leading slash, CDR, message) of these topics, in order of time.

    Messages are read with the bag's own types, so a bag of an earlier version reads too. Raises
    UserError.
    """
    if not folder.exists():
        raise UserError(f"there is no bag {folder}")
    try:
        reader = AnyReader([folder])
        reader.open()
    except Exception as error:  # the classes differ between bag formats
        raise UserError(f"{folder} cannot be read as a bag: {error}") from error
    try:
        wanted = [c for c in reader.connections if c.topic.lstrip("/") in topics]
        for connection, stamp, data in reader.messages(connections=wanted):
            try:
                message = reader.deserialize(data, connection.msgtype)
            except AnyReaderError as error:
                raise UserError(
                    f"{folder} has a damaged message on {connection.topic}: {error}"
                ) from None
            yield stamp, connection.topic.lstrip("/"), bytes(data), message
    finally:
        reader.close()
