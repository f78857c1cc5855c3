"""Renders chat templates as transformers does: jinja2's sandbox, and the names that templates use.

A template comes with a checkpoint, and on a robot from the cloud: it is code that is not trusted.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

COMPILED_TEMPLATES = 8  # of the checkpoint, and of the clouds that a robot moves between


class _Generation(Extension):
    """``{% generation %}``: marks what a model is trained on, and renders what stands in it."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_rendered"), [], [], body)
        return block.set_lineno(line)

    def _rendered(self, caller: Macro) -> str:
        return str(caller())


class _Dict:
    """``dict`` of a template: makes one, and shows nothing else of the class."""

    def __call__(self, *given: Any, **named: Any) -> dict[Any, Any]:
        return dict(*given, **named)

    def fromkeys(self, *given: Any) -> dict[Any, Any]:
        return dict.fromkeys(*given)


class _Namespace(Namespace):
    """``namespace`` of a template; its attributes do not reach into Python."""

    def __init__(*given: Any, **named: Any) -> None:
        own, given = given[0], given[1:]
        attributes = dict(*given, **named)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(own, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no attribute {name!r}")


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    # A robot and a cloud of two time zones must render the same prompt.
    return datetime.now(timezone.utc).strftime(form)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own filter, it leaves the characters of HTML as they are."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(COMPILED_TEMPLATES)
def compiled(template: str) -> Template:
    """The compiled template; raises jinja2's TemplateError."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = _json
    sandbox.globals |= {
        "raise_exception": _refuse,
        "strftime_now": _now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return sandbox.from_string(template)
