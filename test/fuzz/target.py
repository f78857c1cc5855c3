"""The target that fuzzed verifiers serve, and its own answers."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

from fuzz.drafts import MAX_TOKENS, TOKENIZER, VOCABULARY
from helpers.checkpoints import jpeg

from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.harness.scripted_model import ScriptedModel, ScriptedSession
from edge_cloud_spec.instruction import check_instruction
from edge_cloud_spec.models.image import ImageSpec, decode_image
from edge_cloud_spec.models.prompt import ORDERS, PromptSpec, Request
from edge_cloud_spec.wire.messages import Open

END = 0
SPEC = PromptSpec(
    "template", "rules", ImageSpec(784, 784, 14, 2, 2), (END,), MAX_TOKENS, "fuzz", VOCABULARY
)
JPEG = jpeg(width=8, height=8)


class Target(ScriptedModel):
    """Checks a request as a real target does; its passes cost next to nothing."""

    identity = "fuzz"
    tokenizer_digest = TOKENIZER

    def __init__(self, agreement: float = 1.0) -> None:
        super().__init__(VOCABULARY, 5, agreement)

    def crop(self, vocabulary: int) -> None:
        assert vocabulary == VOCABULARY

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        check_instruction(request.instruction)
        if request.order not in ORDERS:
            raise UserError(f"the order {request.order[:80]!r} is unknown")
        decode_image(request.jpeg, spec.image.max_frame_pixels)
        whole = request.instruction.encode() + request.image_digest
        return SimpleNamespace(digest=hashlib.blake2b(whole, digest_size=16).digest())

    def open(self, prompt: Any) -> ScriptedSession:
        return super().open(prompt.digest)


def own_answer(opening: Open) -> tuple[int, ...]:
    """The target's own tokens under greedy or coupled; none under rejection."""
    if opening.rule == "rejection":
        return ()
    target = Target()
    request = Request(opening.instruction, opening.jpeg, opening.order)
    session = target.open(target.prompt(request, SPEC))
    while session.length < MAX_TOKENS and END not in session.tokens[-1:]:
        logits = session.forward(())[0]
        session.extend([coupled_token(logits, opening.policy, session.length)])
    return session.tokens
