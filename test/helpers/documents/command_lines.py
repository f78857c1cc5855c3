"""Command lines of a document, held against the parsers and files that would take them."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from edge_cloud_spec.bringup.launch_arguments import ARGUMENTS
from edge_cloud_spec.cli import _COMMANDS, _parser

ROOT = Path(__file__).resolve().parents[3]
LAUNCH = "ros2 launch edge_cloud_spec go2_nav.launch.py"
_SEPARATORS = set("&;|")


def commands_of(line: str) -> Iterator[list[str]]:
    """The simple commands of a shell line, without assignments before them and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in [*lexer, ";"]:
        if set(word) <= _SEPARATORS:
            yield words
            words, redirected = [], False
        elif set(word) <= set("<>"):
            redirected = True
        elif not redirected and (words or not re.match(r"[A-Z_]+=", word)):
            words.append(word)


def line_error(line: str) -> str:
    """Why one of our parsers would refuse a line of a shell block; empty where none does."""
    try:
        commands = [words for words in commands_of(line) if words]
    except ValueError as error:
        return f"{line!r}: {error}"
    return next(filter(None, map(_command_error, commands)), "")


def _command_error(words: list[str]) -> str:
    if words[0] == "edge-cloud-spec":
        return _refusal(words[1:])
    if words[0] == "make":
        return _make_error(words[1:])
    if words[:3] == LAUNCH.split()[:3]:
        return _launch_error(words[3:])
    return ""


def _refusal(arguments: list[str]) -> str:
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            _parser(arguments[:2]).parse_args(arguments)
    except SystemExit as end:
        return told.getvalue().strip().rpartition("\n")[2] if end.code else ""
    return ""


def _make_error(words: list[str]) -> str:
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]\w*)(?: [a-z]\w*)*:", text, re.MULTILINE))
    targets |= {name for line in re.findall(r"^([a-z ]+):", text, re.M) for name in line.split()}
    variables = set(re.findall(r"^([A-Z_]+) *[?:]?=", text, re.MULTILINE))
    for word in words:
        name, is_variable, value = word.partition("=")
        if is_variable and name not in variables:
            return f"make: no variable {name}"
        if name == "ARGS" and words[0] == "demo":
            return _refusal(["demo", *shlex.split(value)])
        if not is_variable and not word.startswith("-") and word not in targets:
            return f"make: no target {word}"
    return ""


def _launch_error(words: list[str]) -> str:
    if words[:1] != ["go2_nav.launch.py"]:
        return f"no launch file {words[:1]}"
    for word in words[1:]:
        name, given, _ = word.partition(":=")
        if name not in (ARGUMENTS if given else ("--show-args", "-s")):
            return f"go2_nav.launch.py: no argument {word}"
    return ""


def mention_error(span: str) -> str:
    """The same for a command named in a sentence, which may leave values out (`serve --keep`)."""
    words = span.split()
    if words[0] in ("make", "ros2"):
        return line_error(span)
    words = words[1:] if words[0] == "edge-cloud-spec" else words
    if not words or words[0] not in _COMMANDS or words == span.split()[:1]:
        return ""
    parser = _parser(words[:2])
    for word in words:
        subparsers = next(
            (a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None
        )
        if word.startswith("--"):
            if word.partition("=")[0] not in parser._option_string_actions:
                return f"{span!r}: no option {word}"
        elif subparsers is not None and re.fullmatch(r"[a-z][a-z-]*", word):
            if word not in subparsers.choices:
                return f"{span!r}: no subcommand {word}"
            parser = subparsers.choices[word]
    return ""
