"""``make changelog``: CHANGELOG.rst in the form of REP 132, the releases of CHANGELOG.md.

bloom and catkin's commands read it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TITLE = "Changelog for package edge_cloud_spec"
_SPAN = re.compile(r"`([^`]+)`|\*\*(.+?)\*\*|\[([^\[\]]+)\]\(([^()\s]+)\)", re.DOTALL)


def releases(markdown: str) -> str:
    """The reStructuredText of the versions in a changelog; a version is one section."""
    texts = []
    for section in re.split(r"^## ", markdown, flags=re.MULTILINE):
        title, _, body = section.partition("\n")
        if re.match(r"\d+\.\d+\.\d+ ", title):
            texts.append(f"{title}\n{'-' * len(title)}\n{_body(body)}")
    line = "^" * len(TITLE)
    return "\n".join([line, TITLE, line, "", *texts])


def _body(text: str) -> str:
    """A heading in a section is a paragraph: catkin passes over what stands in a section of it."""
    text = re.sub(r"^### (.+)$", r"**\1**", text, flags=re.MULTILINE)
    return _SPAN.sub(_span, text).rstrip("\n") + "\n"


def _span(found: re.Match[str]) -> str:
    literal, strong, label, target = found.groups()
    glued = "\\ " if found.string[found.end() :][:1].isalnum() else ""  # `name`s
    if literal:
        return f"``{literal}``{glued}"
    if strong:  # which holds no literal in reStructuredText
        parts = [part.strip() for part in re.split(r"(`[^`]+`)", strong)]
        return " ".join(f"`{p}`" if p[0] == "`" else f"**{p}**" for p in parts if p) + glued
    return f"`{label.replace('`', '')} <{target}>`__{glued}"


if __name__ == "__main__":
    source, written = map(Path, sys.argv[1:])
    written.write_text(releases(source.read_text("utf-8")), "utf-8")
