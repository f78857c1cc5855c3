"""Text to tokens and back, and whether two checkpoints mean the same by a token id."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from ..errors import UserError


def tokens_of(tokenizer: Any) -> list[str | None]:
    """The token text of each id, None where the tokenizer has a gap."""
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    return [by_id.get(index) for index in range(max(by_id) + 1)]


def tokenizer_digest(tokenizer: Any, size: int | None = None) -> bytes:
    """16 bytes that name the meaning of the ids below `size` (default: all the tokenizer has)."""
    tokens = tokens_of(tokenizer)[:size]
    text = "\0".join("" if token is None else token for token in tokens)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


def common_vocabulary(
    draft: Any, target: Any, draft_rows: int | None = None, target_rows: int | None = None
) -> int:
    """Number of ids, from 0 up, that both tokenizers and both models' logits have.

    Checkpoints of one family differ in padding rows, and a later one may have added tokens at the
    end; both are cropped. A token that differs below that is another tokenizer: UserError names it.
    """
    ours, theirs = tokens_of(draft), tokens_of(target)
    size = min(len(ours), len(theirs), draft_rows or len(ours), target_rows or len(theirs))
    for index in range(size):
        if ours[index] != theirs[index]:
            raise UserError(
                f"the two models have different tokenizers: id {index} is {ours[index]!r} for the "
                f"draft model and {theirs[index]!r} for the target; choose two models of one family"
            )
    return size


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
