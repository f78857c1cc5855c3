"""The verified answer of one session, as the cloud has it."""

from __future__ import annotations

from ...decoding.digest import PrefixDigest
from ...decoding.draft import Draft
from ...decoding.grammar import Grammar, forced_tokens


class VerifiedAnswer:
    """The verified tokens, their digest, and where the answer ends.

    At most ``max_tokens`` tokens; nothing follows one of ``end_tokens``. It is in the ``grammar``.
    """

    def __init__(
        self,
        base: PrefixDigest,
        end_tokens: tuple[int, ...],
        max_tokens: int,
        grammar: Grammar | None = None,
    ) -> None:
        """base: digest of the empty answer."""
        self._grammar = grammar
        self.tokens: list[int] = []
        self.base = base
        self._places = [base]  # digests of all its prefixes, by their lengths
        self.end_tokens = end_tokens
        self.max_tokens = max_tokens

    @property
    def digest(self) -> PrefixDigest:
        """The digest of all verified tokens."""
        return self._places[-1]

    @property
    def room(self) -> int:
        """How many tokens the answer may still get."""
        return self.max_tokens - len(self.tokens)

    def forced(self, most: int) -> Draft:
        """The next tokens, where the grammar leaves no choice: a pass judges them and one more."""
        if self._grammar is None:
            return Draft(())
        count = min(most, self.room - 1)
        return Draft(forced_tokens(self._grammar, self.tokens, self.end_tokens, count))

    def extend(self, tokens: tuple[int, ...]) -> None:
        """Append tokens that were verified."""
        for token in tokens:
            self._places.append(self.digest.extend((token,)))
        self.tokens += tokens

    def was_at(self, place: PrefixDigest) -> bool:
        """Whether this is the digest of the answer so far, or of a prefix of it."""
        return place.length < len(self._places) and self._places[place.length] == place

    def rest_of(self, place: PrefixDigest, draft: Draft) -> Draft | None:
        """The part of a draft, made at this place of the answer, that follows the answer.

        None if there is none, or the answer went elsewhere; see ``Draft.below``.
        """
        return draft.below(self.tokens[place.length :]) if self.was_at(place) else None

    def until_end(
        self, draft: Draft, path: tuple[int, ...], token: int | None
    ) -> tuple[tuple[int, ...], int | None, str]:
        """An accepted path and the token after it, up to an end token or the length limit.

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
