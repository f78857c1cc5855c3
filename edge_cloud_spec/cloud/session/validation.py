"""Checks what a robot sends: the request that opens a session, and its drafts."""

from __future__ import annotations

from dataclasses import dataclass

from ...decoding.draft import BadDraft, check_distinct, check_draft
from ...decoding.policy import check_rule
from ...decoding.preset import PAYLOADS
from ...decoding.split import MAX_RESIDUAL_TOKENS, RESIDUALS
from ...decoding.verified_answer import VerifiedAnswer
from ...errors import UserError, refuse
from ...wire.messages import LOG_PROBS, PROTOCOL, DraftMessage, Open, versions_differ


def check_opening(opening: Open, tokenizer_digest: bytes) -> None:
    """Raise UserError if a target with this tokenizer cannot serve the request."""
    oldest = opening.oldest_protocol or opening.protocol
    if not oldest <= PROTOCOL <= opening.protocol:
        raise UserError(versions_differ(opening.protocol, PROTOCOL))
    check_rule(opening.rule, opening.policy.temperature)
    split, payload = opening.split, opening.payload
    refuse(
        (
            payload not in PAYLOADS or (payload != "ids" and opening.rule != "rejection"),
            f"payload {payload!r} does not go with rule {opening.rule}",
        ),
        (
            (split is None) == (payload == "probabilities"),
            "payload probabilities and split resampling go together",
        ),
        (
            split is not None
            and (
                split.residual not in RESIDUALS
                or not (split.residual == "dense" or 1 <= split.top_k <= MAX_RESIDUAL_TOKENS)
                or split.tail > MAX_RESIDUAL_TOKENS
            ),
            f"a split residual is {', '.join(RESIDUALS)} with top_k and tail up to "
            f"{MAX_RESIDUAL_TOKENS}",
        ),
        (
            opening.log_probs not in LOG_PROBS or (opening.log_probs and split),
            f"log probabilities are told of {', '.join(LOG_PROBS[1:])}, and not where the robot "
            "resamples",
        ),
        (
            opening.tokenizer_digest and opening.tokenizer_digest != tokenizer_digest,
            "the robot's drafter and the cloud's target have different tokenizers; use "
            "two checkpoints of one family (bytes goes with a target behind an API only)",
        ),
    )


def check_verified(
    tokens: tuple[int, ...], vocabulary: int, end_tokens: tuple[int, ...], max_tokens: int
) -> None:
    """Raise UserError if an answer cannot continue after these tokens.

    The robot claims that they are verified; a false claim spoils only its own answer.
    """
    refuse(
        (
            len(tokens) >= max_tokens,
            f"an answer of {max_tokens} tokens at most cannot go on after {len(tokens)}",
        ),
        (
            any(token >= vocabulary for token in tokens),
            f"a verified token is outside the vocabulary of {vocabulary}",
        ),
        (
            any(token in end_tokens for token in tokens),
            "the answer ended with one of its verified tokens; start another decode",
        ),
    )


@dataclass(frozen=True)
class DraftRules:
    """Checks the drafts of one session, which have at most ``draft_tokens`` tokens each."""

    opening: Open
    vocabulary: int
    draft_tokens: int

    def knows(self, token: int | None) -> bool:
        """Whether this token is in the vocabulary."""
        return token is not None and 0 <= token < self.vocabulary

    def check_next(self, message: DraftMessage, answer: VerifiedAnswer, *, resamples: bool) -> None:
        """Raise BadDraft if this draft cannot be verified now, at the answer's end.

        resamples: the robot draws the recovered token, so its draft must begin with that.
        """
        resampled = message.resampled
        ends = resampled in answer.end_tokens or answer.room <= 1
        refuse(
            (
                resamples == (resampled is None),
                "after a split rejection a draft begins with the resampled token, and only then",
            ),
            (
                resampled is not None and not self.knows(resampled),
                f"the resampled token {resampled} is outside the vocabulary",
            ),
            (
                resampled is not None and ends,
                "the answer ended with the resampled token; close the decode",
            ),
            error=BadDraft,
        )
        self.check(message, answer.max_tokens - message.base.length)

    def check(self, message: DraftMessage, room: int) -> None:
        """Raise BadDraft if a draft cannot be verified at a prefix after which ``room`` tokens may
        follow."""
        draft, open_at, payload = message.draft, message.open_at, self.opening.payload
        chain = tuple(range(-1, draft.drafted - 1))
        has_rows, has_values = draft.rows is not None, draft.values is not None
        drawn = draft.looked_up != len(draft) or has_rows or has_values
        refuse(
            (
                len(draft) > self.draft_tokens,
                f"a draft has at most {self.draft_tokens} tokens here, not {len(draft)}; choose a "
                "smaller shape, or serve with --draft-tokens",
            ),
            (
                drawn and has_rows != (payload in ("dense", "sparse")),
                f"the rows of Q do not go with payload {payload}",
            ),
            (
                drawn and has_values != (payload == "probabilities"),
                f"the probabilities of tokens do not go with payload {payload}",
            ),
            (
                open_at is not None and next(draft.children(open_at), None) is not None,
                f"a draft goes on after one of its leaves, not after node {open_at}",
            ),
            (
                has_values and (draft.parents or chain)[: draft.drafted] != chain,
                "multi-candidate rejection needs the rows of Q",
            ),
            error=BadDraft,
        )
        check_draft(draft, self.vocabulary)
        refuse(
            (
                draft.depth > room,
                f"a draft of depth {draft.depth} where the answer has room for {room}",
            ),
            (
                open_at is not None and open_at >= len(draft),
                f"node {open_at} is not one of the draft's {len(draft)}",
            ),
            error=BadDraft,
        )
        if not self.opening.replacement:
            check_distinct(draft)
