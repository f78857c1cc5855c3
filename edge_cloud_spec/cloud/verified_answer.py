"""The verified answer of one session, as the cloud has it."""

from __future__ import annotations

from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft


class VerifiedAnswer:
    """The verified tokens, their digest, and where the answer ends.

    At most ``max_tokens`` tokens; nothing follows one of ``end_tokens``.
    """

    def __init__(self, base: PrefixDigest, end_tokens: tuple[int, ...], max_tokens: int) -> None:
        """base: digest of the empty answer."""
        self.tokens: list[int] = []
        self.digest = self._base = base
        self.end_tokens = end_tokens
        self.max_tokens = max_tokens

    @property
    def room(self) -> int:
        """How many tokens the answer may still get."""
        return self.max_tokens - len(self.tokens)

    def extend(self, tokens: tuple[int, ...]) -> None:
        """These tokens are verified now."""
        self.digest = self.digest.extend(tokens)
        self.tokens += tokens

    def was_at(self, place: PrefixDigest) -> bool:
        """Whether this is the digest of the answer so far, or of a prefix of it."""
        return place == self._base.extend(self.tokens[: place.length])

    def until_end(
        self, draft: Draft, path: tuple[int, ...], token: int | None
    ) -> tuple[tuple[int, ...], int | None, str]:
        """Cut an accepted path and the token after it at an end token or at the length limit.

        Returns the path, the token, and how the answer ends there: "end", "length" or empty.
        """
        for depth, node in enumerate(path, start=1):
            if draft.tokens[node] in self.end_tokens:
                return path[:depth], None, "end"
            if depth == self.room:
                return path[:depth], None, "length"
        if token in self.end_tokens:
            return path, token, "end"
        return path, token, "length" if token is not None and len(path) + 1 == self.room else ""
