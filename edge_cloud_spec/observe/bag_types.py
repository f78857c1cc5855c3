"""The types that a bag defines: a message read by them costs no more than its bytes allow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rosbags.interfaces import Connection, Nodetype
from rosbags.interfaces.typing import Typesdict

from .bag_bounds import MAX_BLOCK, MAX_DEFINITIONS, MAX_REPEATED


def check_definitions(connections: Iterable[Connection]) -> None:
    """Raise ValueError where there is too much to parse, which is done for each topic anew."""
    if sum(len(connection.msgdef.data) for connection in connections) > MAX_DEFINITIONS:
        raise ValueError(f"its types are defined by more than {MAX_DEFINITIONS} bytes")


def check_types(types: Typesdict) -> None:
    """Raise ValueError for an array whose length costs what its bytes do not say.

    rosbags makes a line of code of each string or message in it; and of elements without bytes a
    few bytes could tell of any number.
    """
    for name, (_, fields) in types.items():
        for field, desc in fields:
            if desc[0] == Nodetype.ARRAY:
                element, length = desc[1]
                if not 1 <= length <= (MAX_REPEATED if _is_part(element) else MAX_BLOCK):
                    raise ValueError(f"its type {name} has an array of {length} in {field}")


def has_lists_of_parts(name: str, types: Typesdict) -> bool:
    """Whether a message of this type is read into more objects than it has fields."""
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
    """Whether it is an object of its own, and no number in an array."""
    return bool(element[0] == Nodetype.NAME or element[1][0] == "string")
