"""Options of programs: fields of settings dataclasses, with default, range and purpose.

ROS nodes use them as parameters (``nodes/runtime/parameters.py``), commands as options
(``--max-tokens`` for ``max_tokens``; nested settings are a group), the launch file as arguments,
and docs/parameters.md as rows. A plain field can be set by programs only. A frozen dataclass that
is ``Bounded`` checks itself.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, fields, is_dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

from .errors import UserError

T = TypeVar("T")


def bounded(
    default: float, low: float, high: float, about: str, fixed: bool = False, flag: str = ""
) -> Any:
    """Declare a number from ``low`` to ``high``; an int default makes it a whole number.

    ``fixed``, here and below: read at a program's start and not changed afterwards. ``flag``: the
    command's option, if it is not named as the field.
    """
    metadata = {"range": (low, high), "about": about, "fixed": fixed, "flag": flag}
    return field(default=default, metadata=metadata)


def chosen(default: str, choices: tuple[str, ...], about: str, fixed: bool = False) -> Any:
    """Declare one of ``choices``."""
    return field(default=default, metadata={"choices": choices, "about": about, "fixed": fixed})


def described(default: bool | str, about: str, fixed: bool = False, flag: str = "") -> Any:
    """Declare a switch (bool default) or a free text."""
    return field(default=default, metadata={"about": about, "fixed": fixed, "flag": flag})


def like(settings: Any, name: str, default: Any = None, high: float | None = None) -> Any:
    """Declare the field ``name`` as ``settings`` do, but with this default, or this upper end."""
    item = next(item for item in fields(settings) if item.name == name)
    metadata = dict(item.metadata)
    if high is not None:
        metadata["range"] = (metadata["range"][0], high)
    return field(default=item.default if default is None else default, metadata=metadata)


def about(settings: Any, name: str) -> str:
    """What a field is for, as it was declared."""
    return str(next(item.metadata["about"] for item in fields(settings) if item.name == name))


class Bounded:
    """A dataclass that raises ValueError naming its first field out of range."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, default, metadata in _declared(kind):
            if error := field_error(name, default, getattr(self, name), metadata):
                raise ValueError(error)


@cache
def _declared(settings: Any) -> list[tuple[str, Any, Any]]:
    """The name, default and metadata of each declared field of a class."""
    return [(item.name, item.default, item.metadata) for item in fields(settings) if item.metadata]


def field_error(name: str, default: Any, value: Any, metadata: Any) -> str:
    """What is wrong with ``value`` for the field ``name``, in one sentence; empty if nothing is."""
    kind = type(default)
    fits = type(value) is kind or (
        isinstance(value, (int, float) if kind is float else kind)
        and isinstance(value, bool) == (kind is bool)
    )
    if fits and "range" in metadata:
        low, high = metadata["range"]
        fits = low <= value <= high
    elif fits and "choices" in metadata:
        fits = value in metadata["choices"]
    return "" if fits else f"{name} must be {wanted(default, metadata)}, not {value!r}"


def wanted(default: Any, metadata: Any) -> str:
    """A phrase for the values that a field accepts."""
    if "choices" in metadata:
        return "one of " + ", ".join(each or "''" for each in metadata["choices"])
    kinds = {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}
    return kinds[type(default)] + (f" from {span(metadata)}" if "range" in metadata else "")


def span(metadata: Any) -> str:
    """A phrase for a field's range."""
    low, high = (each if isinstance(each, int) else f"{each:.12g}" for each in metadata["range"])
    return f"{low} up" if high == "inf" else f"{low} to {high}"


def flat_fields(settings: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted name -> (value, metadata) of each declared field, nested ones included."""
    flat: dict[str, tuple[Any, Any]] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            flat |= flat_fields(value, f"{prefix}{item.name}.")
        elif item.metadata:
            flat[prefix + item.name] = (value, item.metadata)
    return flat


def flag(name: str, metadata: Any) -> str:
    """The command line option of a field, which may have a dotted name."""
    return metadata.get("flag") or "--" + name.rpartition(".")[2].replace("_", "-")


def title(settings: Any) -> str:
    """The title of a group of options: the first sentence of its class's docstring."""
    return (settings.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")


def arguments(settings: Any, *names: str, otherwise: str = "") -> dict[str, dict[str, Any]]:
    """What ``add_argument`` takes, by flag, for these fields (none named: all that are not nested).

    The settings' values are the defaults; help shows them, or what is true ``otherwise``.
    """
    found: dict[str, dict[str, Any]] = {}
    for item in fields(settings):
        default, metadata = getattr(settings, item.name), item.metadata
        if not metadata or (names and item.name not in names):
            continue
        option = flag(item.name, metadata)
        shown = otherwise or (default if default or isinstance(default, float) else "")
        found[option] = {
            "default": default,
            "type": partial(from_text, option, default, metadata),
            "choices": metadata.get("choices"),
            "help": (metadata["about"] + f" ({shown})" * bool(str(shown))).replace("%", "%%"),
        }
        if isinstance(default, bool):
            found[option] |= {"nargs": "?", "const": "true"}
    return found


def add_options(parser: argparse._ActionsContainer, settings: Any, otherwise: str = "") -> None:
    """Add an option for each declared field, as ``arguments`` has it.

    What is not given is None, for ``given`` and ``from_options``.
    """
    for option, taken in arguments(settings, otherwise=otherwise).items():
        parser.add_argument(option, **taken | {"default": None})
    for item in fields(settings):
        if is_dataclass(nested := getattr(settings, item.name)):
            add_options(parser.add_argument_group(title(nested)), nested, otherwise)


def given(settings: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Dotted name -> value of each option of ``settings`` that was given."""
    found = {}
    for name, (_, metadata) in flat_fields(settings).items():
        option = flag(name, metadata).strip("-").replace("-", "_")
        if (value := getattr(args, option)) is not None:
            found[name] = value
    return found


def from_options(settings: T, args: argparse.Namespace) -> T:
    """The settings changed by the parsed options; raises UserError."""
    return changed(settings, given(settings, args))


def changed(settings: T, values: Mapping[str, Any]) -> T:
    """The settings with these fields, by dotted name, replaced at once."""
    changes: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, dot, rest = name.partition(".")
        if dot:
            inner.setdefault(head, {})[rest] = value
        else:
            changes[head] = value
    for head, nested in inner.items():
        changes[head] = changed(getattr(settings, head), nested)
    return replace(settings, **changes)  # type: ignore[type-var]


def from_texts(settings: type[T], texts: Mapping[str, str]) -> T:
    """Make settings from a text for each field; raises UserError."""
    declared = flat_fields(settings).items()
    return settings(**{name: from_text(name, *field, texts[name]) for name, field in declared})


def from_text(name: str, default: Any, metadata: Any, text: str) -> Any:
    """Parse the text of one field's value; raises UserError."""
    value: Any = text.lower() if "choices" in metadata else text
    if isinstance(default, bool):
        value = {"true": True, "false": False}.get(text.lower(), text)
    elif not isinstance(default, str):
        with suppress(ValueError):
            value = type(default)(text)
    if error := field_error(name, default, value, metadata):
        raise UserError(error)
    return value


def check_namespace(namespace: str) -> None:
    """Raise UserError if ROS would not accept this namespace."""
    if not re.fullmatch(r"/?([A-Za-z_]\w*(/[A-Za-z_]\w*)*)?/?", namespace, re.ASCII):
        raise UserError(
            f"namespace must be letters, digits and _ (robot1, fleet/robot1), not {namespace!r}"
        )
