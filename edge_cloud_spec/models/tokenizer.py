"""Text to tokens and back, and the digest that identifies a checkpoint's vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any


def tokens_of(tokenizer: Any) -> list[str | None]:
    """The token text of each id, None where the tokenizer has a gap."""
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    return [by_id.get(index) for index in range(max(by_id) + 1)]


def tokenizer_digest(tokenizer: Any) -> bytes:
    """16 bytes that name the meaning of all ids."""
    text = "\0".join("" if token is None else token for token in tokens_of(tokenizer))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


class TextStream:
    """Text of a growing answer, without the last character while its bytes are incomplete."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self.text = ""

    def add(self, tokens: Sequence[int], *, ended: bool = False) -> str:
        """The text that these tokens add; ``ended``: no byte follows that would complete it."""
        self._tokens += tokens
        whole: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        whole = whole if ended else whole.rstrip("\N{REPLACEMENT CHARACTER}")
        new = whole[len(self.text) :]
        self.text = whole
        return new


class TokenTexts:
    """Decodes each token id by itself, for logs and topics; cached, since every draft needs it."""

    def __init__(self, tokenizer: Any) -> None:
        self._text = cache(lambda token: tokenizer.decode([token]))

    def of(self, tokens: Sequence[int]) -> list[str]:
        """The texts of these tokens, one each."""
        return [self._text(token) for token in tokens]
