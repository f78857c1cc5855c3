"""Reads the messages of a bag."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from contextlib import suppress
from filecmp import cmp
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from edge_cloud_spec.errors import UserError, one_line
from edge_cloud_spec.nodes.drafting.camera import TYPES as CAMERAS
from edge_cloud_spec.observe.bag_writer import PACKAGE, types
from edge_cloud_spec.share import read_yaml

from .storage import MAX_BLOCK, ZSTD, Storage, Topic, inflated, open_storage, refusing

MAX_MESSAGE = 1 << 23  # bytes of a message that is no picture: each may become an object
MAX_ARRAY = 4096  # elements of an array of fixed length, which cost without a byte
Messages = Iterator[tuple[int, str, Any]]
STORED = (".mcap", ".db3", ".mcap.zstd", ".db3.zstd", ".bag")


class Bag:
    """A bag, given as its folder or one of its files. Raises UserError.

    ``topics``: type by full name, of topics with messages.
    """

    def __init__(self, path: Path) -> None:
        self._storages = []
        for file in _files(path):
            with refusing(file):
                self._storages.append((file, open_storage(file)))
        self._kinds = {
            topic[:2]: None
            for _, storage in self._storages
            for number, topic in storage.topics.items()
            if storage.counts[number]
        }
        # Of a topic's types the one that can be read.
        self.topics = dict(sorted(self._kinds, key=lambda each: each[1] in types().fielddefs))

    def read(self, topics: Mapping[str, str]) -> Messages:
        """(ns, name, message) of these topics, full names by name, in order of time.

        Raises UserError, also for a topic that has messages of two types.
        """
        known, there = types().fielddefs, self.topics
        names = {(full, there[full]): n for n, full in topics.items() if there.get(full) in known}
        for full, kind in self._kinds:
            if full in topics.values() and kind in known and kind != there[full]:
                raise UserError(
                    f"the bag has {kind} and {there[full]} on {full}: give it as two bags, or "
                    "name another topic"
                )

        def messages(file: Path, storage: Storage) -> Messages:
            wanted = {n: topic for n, topic in storage.topics.items() if topic[:2] in names}
            with refusing(file):
                for number, stamp, data in storage.messages(wanted):
                    topic = wanted[number]
                    yield stamp, names[topic[:2]], _message(topic, data)

        yield from _in_order([(each[1].first, messages(*each)) for each in self._storages])


def _in_order(files: list[tuple[float, Messages]]) -> Messages:
    """The messages of files in order of time, each file from the time of its first one on, so that
    not all are read at once."""
    running: list[tuple[int, int, str, Any, Messages]] = []
    waiting = sorted(enumerate(files), key=lambda each: -each[1][0])
    while waiting or running:
        if waiting and not (running and running[0][0] < waiting[-1][1][0]):
            number, (_, messages) = waiting.pop()
        else:
            stamp, number, name, message, messages = heapq.heappop(running)
            yield stamp, name, message
        if (following := next(messages, None)) is not None:
            stamp, name, message = following
            heapq.heappush(running, (stamp, number, name, message, messages))


def _is_copy(path: Path, other: Path) -> bool:
    with refusing(other):
        return cmp(path, other, shallow=False)


def _files(bag: Path) -> list[Path]:
    """The files that a bag's metadata.yaml names, else all that are in its folder, each content
    once: a copy, and what was compressed from a file that is there, hold no other messages."""
    if not bag.exists():
        raise UserError(f"there is no bag {bag}")
    if not bag.is_dir():
        return [bag]
    found: list[Path] = []
    with suppress(UserError, LookupError, TypeError):
        metadata = read_yaml(bag / "metadata.yaml", "the metadata")["rosbag2_bagfile_information"]
        named = dict.fromkeys(Path(str(name)).name for name in metadata["relative_file_paths"])
        found = [bag / name for name in named]
    if not found:
        found = [path for path in bag.iterdir() if path.name.endswith(STORED)]
        found.sort(key=lambda path: (len(path.name), path.name))  # 10 comes after 9
        copies = {
            other
            for path, other in combinations(filter(Path.is_file, found), 2)
            if other == path.with_name(f"{path.name}.zstd") or _is_copy(path, other)
        }
        found = [path for path in found if path not in copies]
    if not found:
        raise UserError(f"{bag} cannot be read as a bag: it has no .mcap or .db3 file")
    if missing := [path.name for path in found if not path.is_file()]:
        raise UserError(
            f"{bag} is not whole: its file {missing[0]} is missing; copy it there, or give the "
            "file itself that you have"
        )
    return found


def _message(topic: Topic, data: bytes) -> Any:
    """Read with the bag's own definition if the type is ours, as an earlier version may have
    another."""
    try:
        data = inflated(data, MAX_BLOCK) if data.startswith(ZSTD) else data
        if len(data) > MAX_MESSAGE and topic.kind not in CAMERAS.values():
            raise ValueError(f"it has more than {MAX_MESSAGE} bytes")
        definition = topic.definition if topic.kind.startswith(PACKAGE) else ""
        return _types_of(topic.kind, definition).deserialize_cdr(data, topic.kind)
    except Exception as error:  # of bytes that are no message of this type
        raise ValueError(f"a damaged message on {topic.name}: {one_line(error)}") from None


@lru_cache(maxsize=256)
def _types_of(kind: str, definition: str) -> Typestore:
    if not definition:
        return types()
    defined = get_types_from_msg(definition, kind)
    fields = [field for _, fields in defined.values() for field in fields]
    sizes = [int(inner[1]) for _, (node, inner) in fields if node == Nodetype.ARRAY]
    if sizes and not 1 <= min(sizes) <= max(sizes) <= MAX_ARRAY:
        raise ValueError(f"its type has arrays of {min(sizes)} to {max(sizes)} elements")
    store = get_typestore(Stores.EMPTY)
    store.register(defined)
    return store
