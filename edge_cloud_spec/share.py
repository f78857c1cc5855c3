"""Finds and reads the package's files that are not code."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from edge_cloud_spec.errors import UserError, one_line, refuse

_PACKAGE = "edge_cloud_spec"
MOST_YAML = 2**18  # bytes of a YAML file


def share() -> Path:
    """The folder with `config/` and `launch/`: the checkout, or `share/edge_cloud_spec`.

    A checkout comes first, so that an edited preset is used at once; then the ament prefixes (a
    sourced colcon workspace), then the Python environment (`pip install .`). Raises UserError if
    none of them has the files.
    """
    code = Path(__file__).parent
    # Under colcon and pip the code is in PREFIX/lib/python3.X/{site,dist}-packages (with or
    # without `local/`), beside PREFIX/share.
    prefixes = [
        *(Path(p) for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p),
        Path(sys.prefix),
        *code.parents[3:6],
    ]
    for folder in [code.parent, *(prefix / "share" / _PACKAGE for prefix in prefixes)]:
        if (folder / "package.xml").is_file() and (folder / "config").is_dir():
            return folder
    raise UserError(
        "the package's config folder is missing: install it with `pip install .` or build it with "
        "colcon and source install/setup.bash"
    )


def rules_text() -> str:
    """The system text that explains the action language, for models other than the embedded
    pair."""
    return (share() / "config" / "rules.txt").read_text(encoding="utf-8")


def config_names(kind: str) -> tuple[str, ...]:
    """The names of the packaged files of one kind (``preset``), sorted."""
    return tuple(sorted(path.stem for path in (share() / f"config/{kind}s").glob("*.yaml")))


def read_config(
    kind: str, name: str, known: Collection[str], needed: Collection[str]
) -> tuple[Path, dict[str, Any]]:
    """The path and the fields of a packaged file, or of a given YAML file; raises UserError.

    ``known``: the names of its fields; ``needed``: those that may be neither left out nor empty.
    """
    path = Path(name) if name.endswith(".yaml") else share() / f"config/{kind}s/{name}.yaml"
    if not os.path.isfile(path):  # False also for a name that is too long
        names = ", ".join(config_names(kind))
        raise UserError(
            f"there is no {kind} {name!r}; choose one of {names}, or give the path of a .yaml file"
        )
    chosen = read_yaml(path, kind)
    if not isinstance(chosen, dict):
        raise UserError(f"{kind} {path}: a mapping of fields is expected")
    unknown = sorted(str(field) for field in chosen if field not in known)
    lacking = [field for field in needed if not chosen.get(field)]
    refuse(
        (unknown, f"{kind} {path}: unknown field {one_line(', '.join(unknown))}"),
        (lacking, f"{kind} {path}: it needs the field {', '.join(lacking)}"),
    )
    return path, chosen


class _Plain(yaml.SafeLoader):
    """A YAML loader without aliases (a few lines could expand beyond memory) and without duplicate
    keys (only the last would count)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it repeats itself by aliases: write out what they stand for")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = Counter(str(key.value) for key, _ in node.value)
        if twice := next((key for key, times in keys.items() if times > 1), ""):
            raise yaml.YAMLError(f"it has {twice!r} twice in one place")
        return super().construct_mapping(node, deep)


def path_of(name: str | Path) -> Path:
    """The path of this name, ``~`` expanded, whether or not it exists; raises UserError for what
    cannot be one: too long, with a null byte, in a folder that may not be looked into."""
    path = Path(os.path.expanduser(name))
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (OSError, ValueError) as error:
        raise UserError(
            f"{one_line(path)} is no path here ({getattr(error, 'strerror', error)}): give another"
        ) from None
    return path


def read_file(path: Path, most: int) -> bytes:
    """A file's bytes. Raises OSError, or ValueError if it is no regular file or longer than
    ``most``.

    A pipe would block, and could not be read twice.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most} bytes")
    return content


def read_yaml(path: Path, what: str) -> Any:
    """The content of a YAML file of at most ``MOST_YAML`` bytes, safe to print.

    Raises UserError, which calls the file ``what``.
    """
    try:
        content = yaml.load(read_file(path, MOST_YAML).decode("utf-8-sig"), _Plain)
        repr(content)  # Python refuses to show a number of thousands of digits
    except FileNotFoundError:
        raise UserError(f"there is no {what} {path}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{what} {path} cannot be read: {one_line(error)}") from None
    return content
