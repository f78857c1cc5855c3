"""Drafted tokens as text, and the verified text that follows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CLOSE = tuple(";:,.!?")
_SPECIAL = re.compile(r"<\|\w+\|>")  # tokens that are no text, as the Qwen family writes them


def joined(words: Sequence[str]) -> str:
    """Words as one text; most tokenizers' tokens contain their blanks, some tokenizers' do not."""
    words = [word for word in words if not _SPECIAL.fullmatch(word.strip())]
    if any(word.startswith((" ", "\u2581")) for word in words):
        return " ".join("".join(words).replace("\u2581", " ").split())
    text = ""
    for word in words:
        text += word if not text or word.startswith(_CLOSE) else f" {word}"
    return " ".join(text.split())


def branched(branches: Iterable[Sequence[str]]) -> str:
    """Branches of a tree, separated by |."""
    return " | ".join(text for text in map(joined, branches) if text)


def after(text: str, words: Sequence[str]) -> str:
    """What of ``text`` comes after ``words``, whose blanks may differ from the text's."""
    rest = text.lstrip()
    words = [word for word in words if not _SPECIAL.fullmatch(word.strip())]
    for character in "".join("".join(words).replace("\u2581", " ").split()):
        if not rest.startswith(character):
            return ""  # the words are not the text's
        rest = rest[len(character) :].lstrip()
    return " ".join(rest.split())
