"""The options of a command: the fields that its settings declare (``bounds``), by their names.

``max_tokens`` is ``--max-tokens``. Settings within settings are a group of options.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from .bounds import field_error
from .errors import UserError

T = TypeVar("T")
Parser = argparse._ActionsContainer  # a parser, or a group of one


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
    """The option of a field."""
    return metadata.get("flag") or "--" + name.rpartition(".")[2].replace("_", "-")


def title(settings: Any) -> str:
    """Of the group of options that settings within settings are: what their class says first."""
    return (settings.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")


def add_options(parser: Parser, settings: Any) -> None:
    """An option for each declared field; ``settings`` has the defaults."""
    for item in fields(settings):
        default = getattr(settings, item.name)
        if is_dataclass(default):
            add_options(parser.add_argument_group(title(default)), default)
        elif item.metadata:
            about = item.metadata["about"].replace("%", "%%")
            about += " (%(default)s)" if default or isinstance(default, float) else ""
            more: dict[str, Any] = {"type": type(default), "choices": item.metadata.get("choices")}
            if isinstance(default, bool):
                more = {"action": "store_true"}
            parser.add_argument(flag(item.name, item.metadata), default=default, help=about, **more)


def from_options(settings: T, args: argparse.Namespace) -> T:
    """These settings with the options that were given; raises UserError."""
    values: dict[str, Any] = {}
    for item in fields(settings):  # type: ignore[arg-type]
        default = getattr(settings, item.name)
        if is_dataclass(default):
            values[item.name] = from_options(default, args)
        elif item.metadata:
            option = flag(item.name, item.metadata)
            value = values[item.name] = getattr(args, option.strip("-").replace("-", "_"))
            if error := field_error(option, default, value, item.metadata):
                raise UserError(error)
    try:
        return replace(settings, **values)  # type: ignore[type-var]
    except ValueError as error:
        raise UserError(str(error)) from None


def from_texts(settings: type[T], texts: Mapping[str, str]) -> T:
    """Settings of this class from a text for each of some fields; raises UserError."""
    values: dict[str, Any] = {}
    for name, (default, metadata) in flat_fields(settings).items():
        text = texts.get(name, str(default))
        value: Any = text.lower() if "choices" in metadata else text
        if isinstance(default, bool):
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif isinstance(default, int) and re.fullmatch(r"-?\d+", text, re.ASCII):
            value = int(text)
        if error := field_error(name, default, value, metadata):
            raise UserError(error)
        values[name] = value
    return settings(**values)


def parsed(settings: T, arguments: Sequence[str]) -> T:
    """These settings as the command line ``arguments`` changes them; raises UserError."""
    parser = argparse.ArgumentParser()
    add_options(parser, settings)
    return from_options(settings, parser.parse_args(arguments))
