"""The names that source files define, read from their syntax trees without importing them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

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
