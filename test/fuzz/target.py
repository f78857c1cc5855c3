"""The target that fuzzed verifiers serve, and its own answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fuzz.drafts import MAX_TOKENS, TOKENIZER, VOCABULARY
from helpers.bounded_toy import BoundedToy
from helpers.checkpoints import jpeg, own_tokens

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.image import ImageSpec, decode_image
from edge_cloud_spec.models.prompt import PromptSpec, check_request
from edge_cloud_spec.request import Request
from edge_cloud_spec.wire.messages import Open
from edge_cloud_spec_lab.harness.toy import ToyGrammar, ToyVlm

END = 0
SPEC = PromptSpec("template", ImageSpec(784, 784, 14, 2, 2), (END,), MAX_TOKENS, "fuzz", VOCABULARY)
JPEG = jpeg(width=8, height=8)


class Target(ToyVlm):
    """Checks a request as a real target does; its passes cost next to nothing."""

    identity = "fuzz"
    tokenizer_digest = TOKENIZER

    def __init__(self, draft_noise: float = 0.0) -> None:
        super().__init__(5, draft_noise, VOCABULARY)

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        check_request(request, spec)
        for picture in request.pictures:
            decode_image(picture.data, spec.image.max_frame_pixels)
        return SimpleNamespace(digest=request.digest, input_ids=())

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
    return own_tokens(Target(), opening.request, SPEC, opening.policy)
