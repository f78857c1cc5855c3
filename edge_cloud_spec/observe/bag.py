"""Reads bags without a full ROS, after a check that refuses damaged ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from rosbags.highlevel import AnyReader
from rosbags.interfaces import Connection, Nodetype
from rosbags.interfaces.typing import Typesdict
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from ..errors import UserError, one_line
from ..share import read_yaml, share
from .bag_check import (
    MAX_BLOCK,
    MAX_DEFINITIONS,
    MAX_METADATA,
    MAX_PARTS,
    MAX_REPEATED,
    MAX_TOPICS,
    check_mcap,
    check_sqlite,
)

PACKAGE = "edge_cloud_spec"
VERSION: Literal[9] = 9  # of the rosbag2 metadata; Jazzy and later read it


@lru_cache(maxsize=1)
def types() -> Typestore:
    """The message types of ROS 2 Jazzy and of this package."""
    store = get_typestore(Stores.ROS2_JAZZY)
    ours: dict[str, Any] = {}
    for path in sorted((share() / "msg").glob("*.msg")):
        ours |= get_types_from_msg(path.read_text("utf-8"), f"{PACKAGE}/msg/{path.stem}")
    store.register(ours)
    return store


class Bag:
    """A bag, given as its folder or one of its files, and checked as a whole. Raises UserError.

    ``topics``: type by full name, of topics with messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise UserError(f"there is no bag {path}")
        self._counts = _check_bag(path, _metadata(path)) if path.is_dir() else _check_file(path)
        with _reading(path) as reader:
            self.topics = {c.topic: c.msgtype for c in reader.connections if c.msgcount}

    def read(self, topics: Mapping[str, str]) -> Iterator[tuple[int, str, Any]]:
        """(ns, name, message) of these topics, full names by name, in order of time.

        Messages are read with the bag's own types, so that bags of earlier versions can be read.
        """
        bag, names = self.path, {full: name for name, full in topics.items()}
        with _reading(bag) as reader:
            wanted = [c for c in reader.connections if c.topic in names]
            left = Counter({c.topic: self._counts.get(c.topic, 0) for c in wanted})
            for connection, stamp, data in reader.messages(wanted) if wanted else ():
                left[connection.topic] -= 1
                try:
                    types_of = reader.typestore.fielddefs
                    if len(data) > MAX_PARTS and has_lists_of_parts(connection.msgtype, types_of):
                        raise ValueError(f"it has more than {MAX_PARTS} bytes")
                    message = reader.deserialize(data, connection.msgtype)
                except Exception as error:  # of bytes that are no message of this type
                    raise UserError(
                        f"{bag} has a damaged message on {connection.topic}: {one_line(error)}"
                    ) from None
                yield stamp, names[connection.topic], message
        lost = [topic for topic, count in left.items() if count]
        if lost:
            raise UserError(f"{bag} is damaged: its metadata.yaml does not fit {lost[0]}")


def robot_topics(
    types: Mapping[str, str], wanted: Mapping[str, str], namespace: str = ""
) -> dict[str, str]:
    """The full names of one robot's ``wanted`` topics, by their relative names. Raises UserError.

    ``types``: of the bag's topics. ``wanted``: the type of each, empty for any. ``namespace``: the
    robot's, if the bag has several.
    """
    found: dict[str, dict[str, str]] = {}
    for full, name in product(types, wanted):
        if full.endswith(f"/{name}"):
            found.setdefault(full.removesuffix(name).strip("/"), {})[name] = full
    robots = {space: names for space, names in found.items() if names.keys() & ROBOTS} or found
    namespace = namespace.strip("/")
    if not namespace and len(robots) > 1 and "" not in robots:
        named = ", ".join(sorted(robots))
        raise UserError(f"the bag has several robots, choose one: --namespace {named}")
    if namespace and namespace not in robots:
        raise UserError(f"the bag has none of the graph's topics under /{namespace}")
    topics = robots.get(namespace) or next(iter(robots.values()), {})
    for name, full in topics.items():
        if wanted[name] not in ("", types[full]):
            raise UserError(
                f"the bag has {types[full]} on {full}, not {wanted[name]}: "
                "use the edge_cloud_spec that recorded it"
            )
    return topics


ROBOTS = {"instruction", "verified_tokens"}
"""A namespace that has none of these is no robot's, where another has."""


def topic_of(types: Mapping[str, str], given: str, kinds: Collection[str], option: str) -> str:
    """The only topic of these types, or the ``given`` one; empty if there is none.

    Raises UserError naming the option.
    """
    fitting = [topic for topic, kind in types.items() if kind in kinds]
    found = [t for t in fitting if t.strip("/") == given.strip("/")] if given else fitting
    if len(found) > 1 or (given and not found):
        there = ", ".join(fitting) or "none"
        raise UserError(f"{option} must name a topic of {' or '.join(kinds)}; the bag has {there}")
    return found[0] if found else ""


@contextmanager
def _reading(bag: Path) -> Iterator[AnyReader]:
    """An open reader; exceptions of rosbags, also while it is used, become UserErrors."""
    try:
        with Reader(bag) as found:
            check_definitions(found.connections)
        with AnyReader([bag], default_typestore=types()) as reader:
            check_types(reader.typestore.fielddefs)
            yield reader
    except UserError:
        raise
    except Exception as error:  # the classes differ between formats and kinds of damage
        raise UserError(f"{bag} cannot be read as a bag: {one_line(error)}") from error


def _check_bag(bag: Path, metadata: dict[str, Any]) -> dict[str, int]:
    """The number of messages per topic; UserError unless the files agree with metadata.yaml."""
    try:
        files = [bag / Path(str(name)).name for name in metadata["relative_file_paths"]]
        topics = metadata["topics_with_message_count"]
        said = {str(each["topic_metadata"]["name"]): int(each["message_count"]) for each in topics}
        qos = [str(each["topic_metadata"].get("offered_qos_profiles")) for each in topics]
        compression = str(metadata.get("compression_mode") or "none").lower()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{bag / 'metadata.yaml'} is damaged ({one_line(error)}): "
            "`ros2 bag reindex` makes it anew"
        ) from None
    if compression != "none" or any(file.suffix not in _CHECKS for file in files):
        raise UserError(
            f"{bag} is compressed as a whole, or no rosbag2 in MCAP or sqlite3: "
            "`ros2 bag convert` writes it without compression"
        )
    if len(topics) > MAX_TOPICS or len({*files}) < len(files) or any("*" in each for each in qos):
        raise UserError(
            f"{bag / 'metadata.yaml'} is damaged: it has more than {MAX_TOPICS} topics, or names a "
            "file twice, or repeats itself by aliases"
        )
    counts: Counter[str] = Counter()
    for file in files:
        if not file.is_file():
            raise UserError(f"{bag} is not whole: its file {file.name} is missing")
        counts.update(_CHECKS[file.suffix](file))
    wrong = next((t for t in sorted({*said, *counts}) if said.get(t, 0) != counts[t]), None)
    if wrong is not None:
        raise UserError(
            f"{bag} is damaged: its metadata.yaml counts {said.get(wrong, 0)} messages of "
            f"{wrong}, and its files hold {counts[wrong]}"
        )
    return dict(counts)


def _check_file(path: Path) -> dict[str, int]:
    if path.suffix not in _CHECKS or not path.is_file():
        raise UserError(f"{path} is no bag: give its folder, or its .mcap or .db3 file")
    return _CHECKS[path.suffix](path)


def _metadata(bag: Path) -> dict[str, Any]:
    """The content of metadata.yaml."""
    path = bag / "metadata.yaml"
    files = sorted(p for p in bag.iterdir() if p.suffix in _CHECKS)
    if not path.is_file() and not files:
        raise UserError(f"{bag} cannot be read as a bag: it has no metadata.yaml and no .mcap file")
    if not path.is_file():
        raise UserError(
            f"{bag} has no metadata.yaml: its recorder was killed, or it was left behind; "
            f"`ros2 bag reindex` makes it, or give the file itself: {files[0]}"
        )
    try:
        content = read_yaml(path, MAX_METADATA)["rosbag2_bagfile_information"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({one_line(error)}): `ros2 bag reindex` makes it anew"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: `ros2 bag reindex` makes it anew")
    return content


_CHECKS: dict[str, Callable[[Path], dict[str, int]]] = {
    ".mcap": check_mcap,
    ".db3": check_sqlite,
}


def check_definitions(connections: Iterable[Connection]) -> None:
    """Raise ValueError if the type definitions are too large; rosbags parses them per topic."""
    if sum(len(connection.msgdef.data) for connection in connections) > MAX_DEFINITIONS:
        raise ValueError(f"its types are defined by more than {MAX_DEFINITIONS} bytes")


def check_types(types: Typesdict) -> None:
    """Raise ValueError for arrays whose cost is not bounded by their bytes.

    rosbags generates a line of code for each string or message in a fixed array; and an array of
    empty elements may claim any length in a few bytes.
    """
    for name, (_, fields) in types.items():
        for field, desc in fields:
            if desc[0] == Nodetype.ARRAY:
                element, length = desc[1]
                if not 1 <= length <= (MAX_REPEATED if _is_part(element) else MAX_BLOCK):
                    raise ValueError(f"its type {name} has an array of {length} in {field}")


def has_lists_of_parts(name: str, types: Typesdict) -> bool:
    """Whether a message of this type may be parsed into more objects than it has fields."""
    left, seen = [name], {name}
    while left:
        for _, desc in types[left.pop()][1]:
            repeated = desc[0] in (Nodetype.ARRAY, Nodetype.SEQUENCE)
            if repeated and _is_part(desc[1][0]):
                return True
            if desc[0] == Nodetype.NAME and desc[1] not in seen:
                seen.add(desc[1])
                left.append(desc[1])
    return False


def _is_part(element: Any) -> bool:
    """Whether an element becomes an object of its own, unlike a number in an array."""
    return bool(element[0] == Nodetype.NAME or element[1][0] == "string")
