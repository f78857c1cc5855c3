"""Options of programs: fields of settings, each with its default, range and purpose, declared once.

The ROS nodes make parameters of them (``nodes/runtime/parameters.py``), the commands options
(``--max-tokens`` of ``max_tokens``; settings within settings are a group), the launch file
arguments, and docs/parameters.md rows. A field that is not declared so is for programs alone. A
frozen dataclass that is ``Bounded`` checks itself.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, is_dataclass, replace
from functools import partial
from math import inf
from typing import Any, TypeVar

from .errors import UserError

T = TypeVar("T")


def bounded(
    default: float, low: float, high: float, about: str, fixed: bool = False, flag: str = ""
) -> Any:
    """A number from ``low`` to ``high``; an int default makes it a whole number.

    ``fixed``, here and below: read when a program starts, not changed while it runs. ``flag``: a
    command's option, where it is not named as the field.
    """
    metadata = {"range": (low, high), "about": about, "fixed": fixed, "flag": flag}
    return field(default=default, metadata=metadata)


def chosen(default: str, choices: tuple[str, ...], about: str, fixed: bool = False) -> Any:
    """One of ``choices``."""
    return field(default=default, metadata={"choices": choices, "about": about, "fixed": fixed})


def described(default: bool | str, about: str, fixed: bool = False, flag: str = "") -> Any:
    """A switch or a free text."""
    return field(default=default, metadata={"about": about, "fixed": fixed, "flag": flag})


class Bounded:
    """A dataclass that raises ValueError naming its first field that is out of its range."""

    def __post_init__(self) -> None:
        bounded_fields = [item for item in fields(self) if item.metadata]  # type: ignore[arg-type]
        for item in bounded_fields:
            value = getattr(self, item.name)
            error = field_error(item.name, item.default, value, item.metadata)
            if error:
                raise ValueError(error)


def field_error(name: str, default: Any, value: Any, metadata: Any) -> str:
    """What is wrong with ``value`` for the field ``name``, in one sentence; empty if nothing is."""
    kinds = (int, float) if type(default) is float else type(default)
    fits = isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool)
    low, high = metadata.get("range", (value, value))
    fits = fits and low <= value <= high and value in metadata.get("choices", (value,))
    return "" if fits else f"{name} must be {wanted(default, metadata)}, not {value!r}"


def wanted(default: Any, metadata: Any) -> str:
    """The values that a field takes, as a phrase."""
    if "choices" in metadata:
        return f"one of {', '.join(metadata['choices'])}"
    kinds = {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}
    return kinds[type(default)] + (f" from {span(metadata)}" if "range" in metadata else "")


def span(metadata: Any) -> str:
    """The range of a field, as a phrase."""
    low, high = metadata["range"]
    return f"{low:.12g} up" if high == inf else f"{low:.12g} to {high:.12g}"


def flat_fields(settings: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted name -> (value, metadata) of each field that is declared."""
    flat: dict[str, tuple[Any, Any]] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            flat |= flat_fields(value, f"{prefix}{item.name}.")
        elif item.metadata:
            flat[prefix + item.name] = (value, item.metadata)
    return flat


def flag(name: str, metadata: Any) -> str:
    """The command line's option of a field, which may have a dotted name."""
    return metadata.get("flag") or "--" + name.rpartition(".")[2].replace("_", "-")


def title(settings: Any) -> str:
    """The title of a group of options: what the class of its settings says first."""
    return (settings.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")


def add_options(parser: argparse._ActionsContainer, settings: Any) -> None:
    """An option for each declared field; ``settings`` has the defaults."""
    for item in fields(settings):
        name, default, metadata = item.name, getattr(settings, item.name), item.metadata
        if is_dataclass(default):
            add_options(parser.add_argument_group(title(default)), default)
        elif metadata:
            is_switch = isinstance(default, bool)
            switch: dict[str, Any] = {"nargs": "?", "const": "true"} if is_switch else {}
            parser.add_argument(
                flag(name, metadata),
                default=default,
                type=partial(from_text, flag(name, metadata), default, metadata),
                choices=metadata.get("choices"),
                **switch,
                help=metadata["about"].replace("%", "%%")
                + (" (%(default)s)" if default or isinstance(default, float) else ""),
            )


def from_options(settings: T, args: argparse.Namespace) -> T:
    """These settings with what the options say; raises UserError."""
    values: dict[str, Any] = {}
    for item in fields(settings):  # type: ignore[arg-type]
        if is_dataclass(default := getattr(settings, item.name)):
            values[item.name] = from_options(default, args)
        elif item.metadata:
            option = flag(item.name, item.metadata).strip("-").replace("-", "_")
            values[item.name] = getattr(args, option)
    return replace(settings, **values)  # type: ignore[type-var]


def parsed(settings: T, arguments: Sequence[str]) -> T:
    """These settings as this command line changes them; raises UserError."""
    parser = argparse.ArgumentParser()
    add_options(parser, settings)
    return from_options(settings, parser.parse_args(arguments))


def from_texts(settings: type[T], texts: Mapping[str, str]) -> T:
    """Settings of this class, from a text for each field; raises UserError."""
    declared = flat_fields(settings).items()
    return settings(**{name: from_text(name, *field, texts[name]) for name, field in declared})


def from_text(name: str, default: Any, metadata: Any, text: str) -> Any:
    """The value of a field that was given as a text; raises UserError."""
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
    """Raise UserError where ROS would take no node into this namespace."""
    if not re.fullmatch(r"/?([A-Za-z_]\w*(/[A-Za-z_]\w*)*)?/?", namespace, re.ASCII):
        raise UserError(
            f"namespace must be letters, digits and _ (robot1, fleet/robot1), not {namespace!r}"
        )
