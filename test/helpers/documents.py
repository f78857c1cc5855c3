"""What the tests of the documents read: Markdown pages, symbols of the code, and command lines."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from edge_cloud_spec.bringup.launch_arguments import ARGUMENTS
from edge_cloud_spec.cli import all_commands, parser_of
from edge_cloud_spec.errors import UserError

Members = dict[str, set[str]]


class Symbols:
    """What Python files define, and the messages of .msg, .action and .proto."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.names: set[str] = set()
        self.members: Members = {}  # of a class, or of a module under its last name
        self._types: Members = {}  # attribute -> the classes that it is annotated with
        self._bases: Members = {}
        for path in files:
            if path.suffix == ".py":
                self._read_module(path)
            elif path.suffix in (".action", ".msg"):
                fields = re.findall(r"^[\w/\[\]]+ +(\w+)", path.read_text(), re.MULTILINE)
                self._add(path.stem, fields)
            elif path.suffix == ".proto":
                for name, body in re.findall(r"message (\w+) \{(.*?)\n\}", path.read_text(), re.S):
                    self._add(name, re.findall(r"(\w+) = \d+", body))

    def knows(self, name: str) -> bool:
        """Whether `name` or `owner.name` is defined; an owner is a module, class or attribute."""
        owner, dot, last = name.rpartition(".")
        if not dot:
            return name in self.names
        holder = owner.rpartition(".")[2]
        holders = {holder, *self._types.get(holder, set())}
        holders |= {base for each in holders for base in self._bases.get(each, set())}
        return any(last in self.members.get(each, set()) for each in holders)

    def _add(self, owner: str, members: Iterable[str]) -> None:
        found = set(members)
        self.names |= {owner, *found}
        self.members.setdefault(owner, set()).update(found)

    def _read_module(self, path: Path) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = path.parent.name if path.name == "__init__.py" else path.stem
        self._add(module, defined_in(tree))
        self._add(path.parent.name, [module])  # `edge.speculator`
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self._add(node.name, _members(node))
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                self._bases.setdefault(node.name, set()).update(bases)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                words = re.findall(r"[A-Z]\w+", ast.unparse(node.annotation))
                self._types.setdefault(node.target.id, set()).update(words)


def defined_in(tree: ast.Module) -> set[str]:
    """The names that stand at the top of a module, its imports left out."""
    found: set[str] = set()
    for node in tree.body:
        found |= set(_targets(node))
    return found


def _members(node: ast.ClassDef) -> set[str]:
    found = {name for item in node.body for name in _targets(item)}
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store):
            found.add(item.attr)  # self.name = ...
    return found


def _targets(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign():
            yield from (item.id for target in node.targets for item in _names(target))


def _names(target: ast.expr) -> Iterator[ast.Name]:
    return (item for item in ast.walk(target) if isinstance(item, ast.Name))


ROOT = Path(__file__).resolve().parents[2]
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
            _parser(*arguments[:2]).parse_args(arguments)
    except SystemExit as end:
        return told.getvalue().strip().rpartition("\n")[2] if end.code else ""
    except UserError as error:
        return str(error)
    return ""


def _make_error(words: list[str]) -> str:
    text = (ROOT / "Makefile").read_text()
    targets = {name for line in re.findall(r"^([a-z -]+):", text, re.M) for name in line.split()}
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


@cache
def _commands() -> frozenset[str]:
    return frozenset(all_commands()[0])


@cache
def _parser(*chosen: str) -> argparse.ArgumentParser:
    return parser_of(chosen)


def mention_error(span: str) -> str:
    """The same for a command named in a sentence, which may leave values out (`serve --keep`)."""
    words = span.split()
    if words[0] in ("make", "ros2"):
        return line_error(span)
    words = words[1:] if words[0] == "edge-cloud-spec" else words
    if not words or words[0] not in _commands() or words == span.split()[:1]:
        return ""
    parser = _parser(*words[:2])
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


_FENCE = re.compile(r"^ *(```+|~~~+)([\w-]*)[^\n]*\n(.*?)^ *\1 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_SHELL = ("", "sh", "bash", "shell", "console")


@dataclass(frozen=True)
class Link:
    """``[text](target)``; of a target ``page#heading`` the two parts."""

    text: str
    target: str
    path: str
    anchor: str


@dataclass(frozen=True)
class Page:
    """One page's text."""

    text: str

    @cached_property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        return _FENCE.sub("", self.text)

    @property
    def anchors(self) -> set[str]:
        """The names of the headings, as GitHub makes them."""
        names: set[str] = set()
        for heading in re.findall(r"^#{1,6} +(.+?) *#*$", self.prose, re.MULTILINE):
            shown = _LINK.sub(r"\1", heading).lower().replace("`", "")
            name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
            found = [name, *(f"{name}-{count}" for count in range(1, 99))]
            names.add(next(each for each in found if each not in names))
        return names

    @property
    def links(self) -> list[Link]:
        """All links but those to other hosts."""
        return [
            Link(text, target, *target.partition("#")[::2])
            for text, target in _LINK.findall(self.prose)
            if not re.match(r"\w+:", target)
        ]

    @property
    def spans(self) -> list[str]:
        """What stands in backticks."""
        return [span.strip() for span in _SPAN.findall(self.prose)]

    @property
    def commands(self) -> Iterator[str]:
        """The command lines of fenced shell blocks, prompts and continuations taken away."""
        for _, language, body in _FENCE.findall(self.text):
            if language in _SHELL:
                for line in body.replace("\\\n", " ").splitlines():
                    yield re.sub(r"^\s*[$>] ", "", line).strip()
