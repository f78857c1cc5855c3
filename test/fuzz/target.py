"""The target that fuzzed verifiers serve, and its own answers."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

from fuzz.drafts import MAX_TOKENS, TOKENIZER, VOCABULARY
from helpers.bounded_toy import BoundedToy
from helpers.checkpoints import jpeg, own_tokens

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.history import HistorySpec, history_digest
from edge_cloud_spec.instruction import check_instruction
from edge_cloud_spec.models.image import ImageSpec, decode_image
from edge_cloud_spec.models.prompt import ORDERS, PromptSpec, Request
from edge_cloud_spec.wire.messages import Open
from edge_cloud_spec_lab.harness.toy import ToyGrammar, ToyVlm

END = 0
SPEC = PromptSpec(
    *("template", "rules", ImageSpec(784, 784, 14, 2, 2), (END,), MAX_TOKENS, "fuzz", VOCABULARY),
    history=HistorySpec(8),
)
JPEG = jpeg(width=8, height=8)


class Target(ToyVlm):
    """Checks a request as a real target does; its passes cost next to nothing."""

    identity = "fuzz"
    tokenizer_digest = TOKENIZER

    def __init__(self, draft_noise: float = 0.0) -> None:
        super().__init__(5, draft_noise, VOCABULARY)

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        check_instruction(request.instruction)
        if request.order not in ORDERS:
            raise UserError(f"the order {request.order[:80]!r} is unknown")
        decode_image(request.jpeg, spec.image.max_frame_pixels)
        turns = request.under(spec).history
        for turn in turns:
            decode_image(turn.jpeg, spec.image.max_frame_pixels)
        whole = request.instruction.encode() + request.image_digest + history_digest(turns)
        return SimpleNamespace(digest=hashlib.blake2b(whole, digest_size=16).digest())

    def grammar(self, text: str, spec: PromptSpec, owner: str = "") -> ToyGrammar:
        if "@" in text:
            raise UserError(f"the grammar {text[:60]!r} cannot be used: there is an @ in it")
        return ToyGrammar(text, VOCABULARY)

    def start(self, prompt: Any) -> tuple[int, ...]:
        """Each prompt has answers of its own."""
        return tuple(prompt.digest)


class BoundedTarget(Target, BoundedToy):
    """Its sessions hold memory for keys and values, and lose it as real ones do."""


def own_answer(opening: Open) -> tuple[int, ...]:
    """The target's own tokens under greedy or coupled; none under rejection."""
    if opening.rule == "rejection":
        return ()
    turns = opening.history.turns
    request = Request(opening.instruction, opening.jpeg, opening.order, turns)
    return own_tokens(Target(), request, SPEC, opening.policy)
