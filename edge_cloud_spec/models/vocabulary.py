"""Do two checkpoints mean the same by a token id? Families pad their vocabularies differently."""

from __future__ import annotations

import hashlib
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
