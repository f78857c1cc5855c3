"""The answer of one decode, as far as it is verified."""

from __future__ import annotations

from ..decoding.digest import PrefixDigest
from .events import PromptReady


class VerifiedPrefix:
    """The verified tokens, their digest as either side has it, and what may follow them.

    ``max_tokens``: the robot's limit on the answer; 0: the prompt's limit alone.
    """

    def __init__(self, max_tokens: int) -> None:
        self.tokens: list[int] = []
        self.digest: PrefixDigest | None = None  # None until both digest and prompt are known
        self.shared: PrefixDigest | None = None  # without a resampled token: the cloud has it too
        self.resampled: int | None = None  # the robot's own token after the last verdict
        self._max_tokens = max_tokens
        self._prompt: PromptReady | None = None

    def begin(self, base: PrefixDigest, prompt: PromptReady | None = None) -> None:
        """The empty answer has this digest; the prompt is known where the robot drafts."""
        self._prompt = prompt
        self.digest = self.shared = base

    def invalidate(self) -> None:
        """The prompt is replaced: there is no digest until ``begin``."""
        self._prompt = self.digest = self.shared = None

    def settle(self, tokens: tuple[int, ...]) -> None:
        """A verdict's tokens are the next ones."""
        self._extend(tokens)
        self.shared, self.resampled = self.digest, None

    def resample(self, token: int) -> None:
        """The robot's own token is the next one; the next message carries it to the cloud."""
        self._extend((token,))
        self.resampled = token

    def hand_over(self) -> None:
        """Another verifier takes all tokens from the robot, a resampled one among them."""
        self.shared, self.resampled = self.digest, None

    def append_unverified(self, tokens: tuple[int, ...]) -> None:
        """Append the draft model's own tokens, where no cloud verifies; without a digest."""
        self.tokens += tokens

    def after(self, tokens: tuple[int, ...]) -> PrefixDigest:
        """The digest of the answer with these tokens after it."""
        assert self.digest is not None
        return self.digest.extend(tokens)

    def _extend(self, tokens: tuple[int, ...]) -> None:
        self.digest = self.after(tokens)
        self.tokens += tokens

    @property
    def room(self) -> int:
        """How many tokens the answer may still get."""
        assert self._prompt is not None
        limit = self._prompt.max_tokens
        return min(self._max_tokens or limit, limit) - len(self.tokens)

    @property
    def vocabulary(self) -> int:
        """Tokens are below this."""
        return 2**32 if self._prompt is None else self._prompt.vocabulary

    def ends_with(self, token: int) -> bool:
        """Whether nothing follows this token."""
        assert self._prompt is not None
        return token in self._prompt.end_tokens

    def error(self, tokens: tuple[int, ...]) -> str:
        """Why these cannot be the next tokens; else empty."""
        if any(token >= self.vocabulary for token in tokens):
            return f"the cloud said a token outside the vocabulary of {self.vocabulary}"
        if self._prompt is not None and len(tokens) > self.room:
            return "the cloud said more tokens than the answer has room for"
        return ""
