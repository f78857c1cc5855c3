"""What a Markdown page holds that can be checked: headings, links, code spans and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_FENCE = re.compile(r"^ *(```+|~~~+)([\w-]*)[^\n]*\n(.*?)^ *\1 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_SHELL = ("", "sh", "bash", "shell", "console")


@dataclass(frozen=True)
class Link:
    """``[text](target)``; of a target ``page#heading`` the two parts."""

    text: str
    target: str

    @property
    def path(self) -> str:
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        return self.target.partition("#")[2]


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
        found = [Link(*pair) for pair in _LINK.findall(self.prose)]
        return [link for link in found if not re.match(r"\w+:", link.target)]

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
