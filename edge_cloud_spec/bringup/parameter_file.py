"""A file of ROS parameters: which node each section is for, and whether the graph has that node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..share import read_yaml

_PARAMETERS = "ros__parameters"


@dataclass(frozen=True)
class ParameterFile:
    """A parameter file; ``sections``: node names as written there (``/**/drafter``), and their
    values."""

    path: Path
    sections: tuple[tuple[str, Mapping[str, Any]], ...]

    @classmethod
    def read(cls, path: Path) -> ParameterFile:
        """Read a parameter file; raises UserError if that is impossible or it is none."""
        content = read_yaml(path, "parameter file")
        if content is not None and not isinstance(content, dict):
            raise UserError(f"the parameter file {path} names no nodes")
        return cls(path, tuple(_sections(content or {}, path)))

    def of(self, node: str) -> dict[str, Any]:
        """The values, by dotted name, for a node of this full name; later sections override earlier
        ones."""
        values: dict[str, Any] = {}
        for name, given in self.sections:
            if _matches(name, node):
                values |= given
        return values

    def check_names(self, names: Sequence[str], namespace: str) -> None:
        """Raise UserError for a section that is probably meant for one of these nodes but does not
        match it.

        Sections for nodes of other packages are ignored.
        """
        for section, _ in self.sections:
            name = section.rpartition("/")[2]
            if "*" in name:
                continue
            nearest = get_close_matches(name, names, 1, 0.75)
            if not nearest:
                continue
            if name not in names:
                raise UserError(
                    f"the parameter file {self.path} has a node {section}, which the graph has not;"
                    f" did you mean {nearest[0]}?"
                )
            full = full_name(namespace, name)
            mine = [s for s, _ in self.sections if s.rpartition("/")[2] == name]
            if not any(_matches(one, full) for one in mine):
                raise UserError(
                    f"the parameter file {self.path} has parameters of {section}, but the node is"
                    f" {full}; /**/{name} fits any namespace"
                )


def full_name(namespace: str, name: str) -> str:
    """``/namespace/name``."""
    return "/" + "/".join(part for part in (namespace.strip("/"), name) if part)


def _sections(tree: dict[Any, Any], path: Path, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}/{str(key).strip('/')}"
        if not isinstance(value, dict):
            raise UserError(f"the parameter file {path} has {key!r} where a node is expected")
        if _PARAMETERS in value:
            given = value[_PARAMETERS]
            if given is not None and not isinstance(given, dict):
                raise UserError(f"the parameter file {path} has no parameters under {name}")
            yield name, _flat(given or {})
        else:
            yield from _sections(value, path, name)


def _flat(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _matches(section: str, node: str) -> bool:
    """Whether rcl applies this section to the node: ``*`` matches one name, ``**`` any number."""
    pattern = ""
    for part in section.strip("/").split("/"):
        pattern += {"**": r"(/\w+)*", "*": r"/\w+"}.get(part, "/" + re.escape(part))
    return re.fullmatch(pattern, node) is not None
