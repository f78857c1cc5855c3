"""The answer of one decode: its verified tokens, the open request, and what a verdict settles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..decoding.digest import PrefixDigest
from ..decoding.draft import Draft
from ..decoding.random_source import RandomSource
from ..decoding.split import (
    SparseResidual,
    Split,
    fallback_error,
    resample,
    resample_from,
    residual_error,
)
from ..decoding.token_distribution import TokenDistribution
from ..wire.messages import DraftMessage, Generate, Residual, Resume, RowRequest, Verdict
from .events import Action, PromptReady, Send

MAX_EARLY = 64  # verdicts that overtook an earlier one
MAX_TOKENS = 2**32  # of an answer whose limit nobody said

Prefix = tuple[int, ...]  # verified tokens, and perhaps those that a verdict would add


class VerifiedPrefix:
    """The verified tokens, their digest as either side has it, and what may follow them.

    ``session`` names the cloud's session that has them too. ``max_tokens``: the robot's limit on
    the answer; 0: the prompt's limit alone.
    """

    def __init__(self, max_tokens: int) -> None:
        self.tokens: list[int] = []
        self.session = ""  # empty until the cloud has opened one
        self.digest: PrefixDigest | None = None  # None until both digest and prompt are known
        self.shared: PrefixDigest | None = None  # without a resampled token: the cloud has it too
        self.resampled: int | None = None  # the robot's own token after the last verdict
        self._max_tokens = max_tokens
        self._prompt: PromptReady | None = None

    @property
    def verified(self) -> Prefix:
        """The verified tokens."""
        return tuple(self.tokens)

    def begin(self, base: PrefixDigest, prompt: PromptReady | None = None) -> None:
        """The empty answer has this digest; the prompt is known where the robot drafts."""
        self._prompt = prompt
        self.digest = self.shared = base

    def invalidate(self) -> None:
        """The prompt is replaced: there is no digest until ``begin``."""
        self._prompt = self.digest = self.shared = None

    def settle(self, tokens: Prefix) -> None:
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

    def resume(self) -> list[Action]:
        """Send the verified prefix to the session; nothing before both sides have begun."""
        if self.shared is None or not self.session:
            return []
        return [Send(Resume(self.session, self.shared))]

    def append_unverified(self, tokens: Prefix) -> None:
        """Append the draft model's own tokens, where no cloud verifies; without a digest."""
        self.tokens += tokens

    def after(self, tokens: Prefix) -> PrefixDigest:
        """The digest of the answer with these tokens after it."""
        assert self.digest is not None
        return self.digest.extend(tokens)

    def _extend(self, tokens: Prefix) -> None:
        self.digest = self.after(tokens)
        self.tokens += tokens

    @property
    def room(self) -> int:
        """How many tokens the answer may still get; a robot that makes no prompt knows its own
        limit alone."""
        limit = MAX_TOKENS if self._prompt is None else self._prompt.max_tokens
        return min(self._max_tokens or limit, limit) - len(self.tokens)

    @property
    def vocabulary(self) -> int:
        """Tokens are below this."""
        return 2**32 if self._prompt is None else self._prompt.vocabulary

    def ends_with(self, token: int) -> bool:
        """Whether nothing follows this token."""
        assert self._prompt is not None
        return token in self._prompt.end_tokens

    def verdict_error(self, verdict: Verdict, tokens: Prefix | None) -> str:
        """Why this verdict, which settles these tokens, cannot be the next one; else empty."""
        if tokens is None:
            return "the cloud accepted tokens that were not drafted"
        if not (tokens or verdict.finish or verdict.residual):
            return "the cloud's verdict settles nothing"
        if any(token >= self.vocabulary for token in tokens):
            return f"the cloud said a token outside the vocabulary of {self.vocabulary}"
        if len(tokens) > self.room:
            return "the cloud said more tokens than the answer has room for"
        return ""


def settled_by(verdict: Verdict, draft: Draft | None) -> tuple[int, Prefix | None]:
    """How many tokens were tested, and those that the verdict settles; ``draft``: ours, if any.

    A verdict that carries its accepted tokens is complete in itself, whatever was asked for: the
    cloud judged other tokens than ours, or says it again. Another one names nodes of the draft.
    None: it is not on this draft.
    """
    last = () if verdict.token is None else (verdict.token,)
    drafted = 0 if draft is None else len(draft)
    if verdict.generated:
        drafted = verdict.drafted
    if len(verdict.tokens) == len(verdict.path):
        return verdict.drafted or drafted, verdict.tokens + last
    accepted = None if draft is None else draft.path_tokens(verdict.path)
    return drafted, None if accepted is None else accepted + last


class EarlyVerdicts:
    """Verdicts that overtook an earlier one, since the cloud went on with a pushed draft.

    Each is kept by its prefix, until the answer reaches that prefix.
    """

    def __init__(self) -> None:
        self._kept: dict[PrefixDigest, Verdict] = {}

    def keep(self, verdict: Verdict, here: PrefixDigest | None) -> bool:
        """Keep a verdict beyond ``here`` (None: the robot does not know where it is yet).

        False: one is kept for its prefix, or MAX_EARLY are.
        """
        passed = 0 if here is None else here.length
        for old in [old for old in self._kept if old.length < passed]:
            del self._kept[old]
        if verdict.base in self._kept or len(self._kept) >= MAX_EARLY:
            return False
        self._kept[verdict.base] = verdict
        return True

    def take(self, here: PrefixDigest) -> Verdict | None:
        """The verdict on what follows ``here``, if it arrived already."""
        return self._kept.pop(here, None)


# What the cloud is asked for


@dataclass(frozen=True)
class Rejection:
    """A rejected place where the robot draws the recovered token (split resampling)."""

    base: PrefixDigest  # of the draft
    residual: Residual  # what the cloud sent of P
    row: TokenDistribution  # Q


@dataclass(frozen=True)
class PendingRequest:
    """A request to the cloud that is not answered yet.

    For a draft: ``drawn`` is the draft with the rows of Q that it was drawn from, which may not be
    sent, and the cloud's pass over it begins at about ``starts`` (s). For a dense row P:
    ``rejection`` whose short form gave no token.
    """

    message: DraftMessage | Generate | RowRequest
    drawn: Draft | None = None
    starts: float = 0.0
    rejection: Rejection | None = None

    @property
    def draft(self) -> Draft | None:
        """The draft whose verdict is awaited, as it was sent."""
        return self.message.draft if isinstance(self.message, DraftMessage) else None

    def handed_over(self, here: PrefixDigest | None) -> PendingRequest:
        """This request for another verifier, which knows only the prefix ``here``."""
        if isinstance(self.message, DraftMessage):
            return replace(self, message=replace(self.message, resampled=None))
        if self.rejection is not None and here is not None:
            return row_request(replace(self.rejection, base=here))
        return self


def row_request(rejection: Rejection) -> PendingRequest:
    """Ask for all of P at a rejected place."""
    return PendingRequest(RowRequest(rejection.base), rejection=rejection)


# Split resampling: the robot draws the recovered token where the cloud rejects


class Resampler:
    """Draws the recovered token of a rejection, with the request's own randomness."""

    def __init__(self, split: Split | None, random_source: RandomSource) -> None:
        self._split, self._random_source = split, random_source

    def rejection(self, verdict: Verdict, drawn: Draft | None) -> Rejection | None:
        """The recovered token's distributions: the verdict's residual of P, and the draft's Q."""
        path = verdict.path
        if verdict.residual is None or self._split is None:
            return None
        if drawn is None or drawn.rows is None or len(path) == len(drawn):
            return None
        if verdict.tokens and drawn.path_tokens(path) != verdict.tokens:
            return None  # it is repeated, and on another draft
        return Rejection(verdict.base, verdict.residual, drawn.row(path[-1] if path else -1))

    def error(self, verdict: Verdict, drawn: Draft | None, vocabulary: int) -> str:
        """Why this verdict's residual cannot be one of the draft; else empty."""
        if verdict.residual is None:
            return ""
        rejection = self.rejection(verdict, drawn)
        settled = verdict.token is not None or bool(verdict.finish)
        if rejection is None or self._split is None or settled:
            return "the cloud wants us to resample what was not drawn, or is settled"
        return residual_error(verdict.residual, self._split, rejection.row, vocabulary)

    def draw(
        self, rejection: Rejection, position: int, dense: TokenDistribution | None = None
    ) -> int | None:
        """The recovered token; None where the short form of P gives none without ``dense``."""
        target, row, random_source = rejection.residual, rejection.row, self._random_source
        if isinstance(target, SparseResidual):
            return resample(target, row, position, random_source, dense)
        return resample_from(target, row, position, random_source)


def dense_row_error(rejection: Rejection, dense: TokenDistribution, vocabulary: int) -> str:
    """Why this cannot be the P that a rejection awaits; else empty."""
    assert isinstance(rejection.residual, SparseResidual)
    return fallback_error(dense, rejection.residual, rejection.row, vocabulary)
