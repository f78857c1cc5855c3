"""Digests that identify a prefix of an answer, equally on robot and cloud."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..request import digest_of

_MASK = 2**64 - 1


@dataclass(frozen=True)
class PrefixDigest:
    """The number of verified tokens, and their 64-bit rolling hash, seeded with the request."""

    length: int
    hash: int

    @property
    def short(self) -> int:
        """32 bits of the hash: enough to notice that two sides are at different prefixes."""
        return self.hash >> 32

    def extend(self, tokens: Sequence[int]) -> PrefixDigest:
        """The digest after appending these tokens."""
        rolled = self.hash
        for token in tokens:
            rolled = ((rolled ^ (token + 1)) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
            rolled ^= rolled >> 29
        return PrefixDigest(self.length + len(tokens), rolled)


def request_digest(*parts: bytes | str | float) -> PrefixDigest:
    """The digest of the empty prefix of one request.

    ``parts``: everything that determines the answer: nonce, image, prompt, policy and both models'
    identities.
    """
    # Numpy's numbers, too, are hashed as their text.
    named = (part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return PrefixDigest(0, int.from_bytes(digest_of(*named, size=8), "little"))


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """The length of the common prefix of two sequences."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:  # as a rule, and fast
        return size
    return next((at for at in range(size) if one[at] != other[at]), size)
