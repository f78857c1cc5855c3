"""The verified answer of a decode as it grows; robot and cloud each have one."""

from __future__ import annotations

from collections.abc import Sequence

from .digest import PrefixDigest
from .draft import Draft

UNBOUNDED = 2**32  # stands for no length limit, and for an unknown vocabulary


class VerifiedAnswer:
    """The verified tokens, the digests of all their prefixes, and where the answer ends.

    It has at most ``max_tokens`` tokens, all below ``vocabulary``; an end token is the last.
    ``resampled`` is the last token if the robot drew it and has not sent it to the cloud yet.
    """

    def __init__(self, limit: int = 0) -> None:
        """limit: the most tokens, whatever the prompt allows (0: no limit)."""
        self.tokens: list[int] = []
        self.resampled: int | None = None
        self.end_tokens: Sequence[int] = ()
        self.max_tokens, self.vocabulary = limit or UNBOUNDED, UNBOUNDED
        self._limit = self.max_tokens
        self._places: list[PrefixDigest] = []  # digests of all prefixes, by length

    def begin(
        self,
        base: PrefixDigest,
        end_tokens: Sequence[int] = (),
        max_tokens: int = UNBOUNDED,
        vocabulary: int = UNBOUNDED,
    ) -> None:
        """Set the prompt's limits; ``base`` is the digest of the empty answer."""
        self._places = [base]
        self.end_tokens, self.vocabulary = end_tokens, vocabulary
        self.max_tokens = min(self._limit, max_tokens)

    def forget_prompt(self) -> None:
        """Drop the digests, as the prompt is being replaced; ``begin`` sets new ones."""
        self._places = []

    @property
    def begun(self) -> bool:
        """Whether ``begin`` was called, so that digests exist."""
        return bool(self._places)

    @property
    def digest(self) -> PrefixDigest:
        """The digest of all verified tokens."""
        return self._places[-1]

    @property
    def shared(self) -> PrefixDigest:
        """The digest without a resampled token, which the cloud does not have yet."""
        return self._places[-1 if self.resampled is None else -2]

    @property
    def verified(self) -> tuple[int, ...]:
        """The verified tokens."""
        return tuple(self.tokens)

    @property
    def room(self) -> int:
        """How many more tokens the answer may have."""
        return self.max_tokens - len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append verified tokens."""
        for token in tokens:
            self._places.append(self.digest.extend((token,)))
        self.tokens += tokens
        self.resampled = None

    def resample(self, token: int) -> None:
        """Append a token that the robot drew; its next message carries it to the cloud."""
        self.extend((token,))
        self.resampled = token

    def is_at(self, place: PrefixDigest) -> bool:
        """Whether this is the digest of all verified tokens."""
        return self._places[-1:] == [place]

    def was_at(self, place: PrefixDigest) -> bool:
        """Whether this is the digest of the answer so far, or of a prefix of it."""
        return place.length < len(self._places) and self._places[place.length] == place

    def rest_of(self, place: PrefixDigest, draft: Draft) -> Draft | None:
        """The part of a draft, made at ``place`` in the answer, that follows the answer's end.

        None if it is empty, or the answer differs from the draft; see ``Draft.below``.
        """
        return draft.below(self.tokens[place.length :]) if self.was_at(place) else None

    def until_end(
        self, draft: Draft, path: tuple[int, ...], token: int | None
    ) -> tuple[tuple[int, ...], int | None, str]:
        """Cut an accepted path and the token after it at an end token or the length limit.

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
