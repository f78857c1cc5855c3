"""Bags read without a full ROS: checked first, so that a damaged one is named and not followed."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml
from rosbags.highlevel import AnyReader
from rosbags.interfaces import Connection
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from ..errors import UserError
from ..share import share
from .mcap_check import check_mcap

PACKAGE = "edge_cloud_spec"
VERSION: Literal[9] = 9  # of the rosbag2 metadata; Jazzy and later read it


@lru_cache(maxsize=1)
def types() -> Typestore:
    """The types of ROS 2 Jazzy and of this package."""
    store = get_typestore(Stores.ROS2_JAZZY)
    ours: dict[str, Any] = {}
    for path in sorted((share() / "msg").glob("*.msg")):
        ours |= get_types_from_msg(path.read_text("utf-8"), f"{PACKAGE}/msg/{path.stem}")
    store.register(ours)
    return store


class Bag:
    """A bag whose files are whole: its folder, or one of its files. Raises UserError.

    ``topics`` are the types of its topics that have messages, by full name. ``custom_data`` is what
    its recorder noted in metadata.yaml; empty where it did not, or for a single file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise UserError(f"there is no bag {path}")
        metadata = _metadata(path)
        self._counts = _check_bag(path, metadata) if metadata is not None else _check_file(path)
        noted = metadata.get("custom_data") if metadata else None
        noted = noted if isinstance(noted, dict) else {}
        self.custom_data = {str(key): str(value) for key, value in noted.items()}
        with _Reading(path) as reader:
            self.topics = {c.topic: c.msgtype for c in reader.connections if c.msgcount}

    def read(self, topics: Collection[str]) -> Iterator[tuple[int, str, bytes, Any]]:
        """(ns, topic without its leading slash, CDR, message) of these topics, in order of time.

        Messages are read with the bag's own types, so a bag of an earlier version reads too.
        """
        bag = self.path
        with _Reading(bag) as reader:
            wanted = [c for c in reader.connections if c.topic.lstrip("/") in topics]
            left = Counter({c.topic: self._counts.get(c.topic, 0) for c in wanted})
            messages = reader.messages(connections=wanted) if wanted else iter(())
            while (found := _next(bag, messages)) is not None:
                connection, stamp, data = found
                left[connection.topic] -= 1
                try:
                    message = reader.deserialize(data, connection.msgtype)
                except Exception as error:  # of bytes that are no message of this type
                    raise UserError(
                        f"{bag} has a damaged message on {connection.topic}: {_line(error)}"
                    ) from None
                yield stamp, connection.topic.lstrip("/"), bytes(data), message
        lost = [topic for topic, count in left.items() if count and self._counts]
        if lost:
            raise UserError(f"{bag} is damaged: its metadata.yaml does not fit {lost[0]}")


def read_bag(bag: Path, topics: Collection[str]) -> Iterator[tuple[int, str, bytes, Any]]:
    """``Bag.read`` of a bag that is read once; raises UserError."""
    yield from Bag(bag).read(topics)


class _Reading:
    """An open reader; whatever rosbags raises at opening becomes a UserError."""

    def __init__(self, bag: Path) -> None:
        self._bag = bag

    def __enter__(self) -> AnyReader:
        try:
            self._reader = AnyReader([self._bag], default_typestore=types())
            self._reader.open()
        except Exception as error:  # the classes differ between formats and kinds of damage
            raise UserError(f"{self._bag} cannot be read as a bag: {_line(error)}") from None
        return self._reader

    def __exit__(self, *_: object) -> None:
        self._reader.close()


def _next(
    bag: Path, messages: Iterator[tuple[Connection, int, bytes]]
) -> tuple[Connection, int, bytes] | None:
    try:
        return next(messages, None)
    except Exception as error:
        raise UserError(f"{bag} is damaged: {_line(error)}") from None


def _check_bag(bag: Path, metadata: dict[str, Any]) -> dict[str, int]:
    """The messages of each topic; UserError unless the files hold what metadata.yaml says.

    Empty where the files are compressed as a whole: only rosbags reads what is inside.
    """
    try:
        files = [bag / Path(str(name)).name for name in metadata["relative_file_paths"]]
        said = {
            str(each["topic_metadata"]["name"]): int(each["message_count"])
            for each in metadata["topics_with_message_count"]
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{bag / 'metadata.yaml'} is damaged ({_line(error)}): `ros2 bag reindex` makes it anew"
        ) from None
    counts: Counter[str] = Counter()
    for file in files:
        if not file.exists():
            raise UserError(f"{bag} is not whole: its file {file.name} is missing")
        if file.suffix not in _CHECKS:
            return {}
        counts.update(_CHECKS[file.suffix](file))
    wrong = next((t for t in sorted({*said, *counts}) if said.get(t, 0) != counts[t]), None)
    if wrong is not None:
        raise UserError(
            f"{bag} is damaged: its metadata.yaml counts {said.get(wrong, 0)} messages of "
            f"{wrong}, and its files hold {counts[wrong]}"
        )
    return dict(counts)


def _check_file(path: Path) -> dict[str, int]:
    if path.suffix not in _CHECKS:
        raise UserError(f"{path} is no bag: give its folder, or its .mcap or .db3 file")
    return _CHECKS[path.suffix](path)


def _metadata(bag: Path) -> dict[str, Any] | None:
    """What metadata.yaml says; None where the bag is a file."""
    if not bag.is_dir():
        return None
    path = bag / "metadata.yaml"
    files = sorted(p for p in bag.iterdir() if p.suffix in _CHECKS)
    if not path.exists() and not files:
        raise UserError(f"{bag} cannot be read as a bag: it has no metadata.yaml and no .mcap file")
    if not path.exists():
        raise UserError(
            f"{bag} has no metadata.yaml: its recorder was killed, or it was left behind; "
            f"`ros2 bag reindex` makes it, or give the file itself: {files[0]}"
        )
    try:
        content = yaml.safe_load(path.read_text("utf-8"))["rosbag2_bagfile_information"]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({_line(error)}): `ros2 bag reindex` makes it anew"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: `ros2 bag reindex` makes it anew")
    return content


def _check_sqlite(path: Path) -> dict[str, int]:
    """The messages of each topic of a database whose pages are where they should be."""
    try:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise UserError(f"{path} is damaged: it does not begin as an sqlite3 file")
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        try:
            [(found,), *_] = connection.execute("PRAGMA integrity_check(1)").fetchall()
            if found != "ok":
                raise UserError(f"{path} is damaged: {_line(found)}")
            return dict(
                connection.execute(
                    "SELECT name, count(messages.id) FROM topics "
                    "LEFT JOIN messages ON topics.id == messages.topic_id GROUP BY topics.id"
                ).fetchall()
            )
        finally:
            connection.close()
    except (sqlite3.Error, OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path} is damaged or cut off: {_line(error)}") from None


def _line(error: object) -> str:
    """The first words of an error, on one line."""
    text = " ".join(str(error).split())[:200]
    return text or type(error).__name__


_CHECKS: dict[str, Callable[[Path], dict[str, int]]] = {
    ".mcap": check_mcap,
    ".db3": _check_sqlite,
}
