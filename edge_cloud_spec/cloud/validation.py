"""What a robot may open a session with."""

from __future__ import annotations

from ..decoding.preset import PAYLOADS
from ..decoding.rule import check_rule
from ..decoding.split import MAX_TOLD, RESIDUALS
from ..errors import UserError
from ..wire.messages import PROTOCOL, Open


def check_opening(opening: Open, tokenizer_digest: bytes) -> None:
    """Raise UserError where this cannot be served by a target with this tokenizer."""
    if opening.protocol != PROTOCOL:
        raise UserError(
            f"robot speaks protocol {opening.protocol} and cloud {PROTOCOL}; "
            "install the same version of edge_cloud_spec on both"
        )
    check_rule(opening.rule, opening.policy.temperature)
    _check_payload(opening)
    if opening.tokenizer_digest and opening.tokenizer_digest != tokenizer_digest:
        raise UserError(
            "the robot's drafter and the cloud's target have different tokenizers; "
            "use two checkpoints of one family"
        )


def _check_payload(opening: Open) -> None:
    split, payload = opening.split, opening.payload
    if payload not in PAYLOADS or (payload != "ids" and opening.rule != "rejection"):
        raise UserError(f"payload {payload!r} does not go with rule {opening.rule}")
    if (split is None) == (payload == "probabilities"):
        raise UserError("payload probabilities and split resampling go together")
    if split is not None and (
        split.residual not in RESIDUALS
        or not (split.residual == "dense" or 1 <= split.top_k <= MAX_TOLD)
        or split.tail > MAX_TOLD
    ):
        raise UserError(
            f"a split residual is {', '.join(RESIDUALS)} with top_k and tail up to {MAX_TOLD}"
        )
