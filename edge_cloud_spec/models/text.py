"""Tokens to text while they are still arriving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TextStream:
    """Text of a growing answer; a character whose bytes are not all there yet is held back."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self.text = ""

    def add(self, tokens: Sequence[int]) -> str:
        """The text that these tokens add."""
        self._tokens += tokens
        whole = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        whole = whole.rstrip("\N{REPLACEMENT CHARACTER}")
        new = whole[len(self.text) :]
        self.text = whole
        return new


def words_of(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Each token as text of its own, for people to read."""
    return [tokenizer.decode([token]) for token in tokens]
