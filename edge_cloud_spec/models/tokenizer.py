"""Text to tokens and back, and the digest that identifies a checkpoint's vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any


def tokens_of(tokenizer: Any) -> list[str | None]:
    """The token text of each id; None for an unused id."""
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    return [by_id.get(index) for index in range(max(by_id) + 1)]


def tokenizer_digest(tokenizer: Any) -> bytes:
    """A 16-byte hash of the text of all ids."""
    text = "\0".join("" if token is None else token for token in tokens_of(tokenizer))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


class TextStream:
    """Decodes a growing answer to text; holds back a last character whose bytes are incomplete."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self.text = ""

    def add(self, tokens: Sequence[int], *, ended: bool = False) -> str:
        """The text that these tokens add; ``ended``: the answer is over, so nothing is held
        back."""
        self._tokens += tokens
        whole: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        whole = whole if ended else whole.rstrip("\N{REPLACEMENT CHARACTER}")
        new = whole[len(self.text) :]
        self.text = whole
        return new
