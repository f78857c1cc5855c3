"""Tokens to text while more of them arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TextStream:
    """Text of a growing answer, without the last character while its bytes are incomplete."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self.text = ""

    def add(self, tokens: Sequence[int]) -> str:
        """The text that these tokens add."""
        self._tokens += tokens
        whole: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        whole = whole.rstrip("\N{REPLACEMENT CHARACTER}")
        new = whole[len(self.text) :]
        self.text = whole
        return new


class TokenTexts:
    """The text of each token by itself, for people to read; cached, since drafts wait for it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def of(self, tokens: Sequence[int]) -> list[str]:
        """The texts of these tokens, one each."""
        for token in tokens:
            if token not in self._known:
                self._known[token] = self._tokenizer.decode([token])
        return [self._known[token] for token in tokens]
