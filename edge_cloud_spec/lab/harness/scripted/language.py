"""What a scripted model says: logits by the prefix; its times are another matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ....decoding.grammar import Grammar
from ....errors import UserError
from ....models.prompt import PromptSpec, Request
from .calibrated import VOCABULARY, CalibratedModel


class Language(Protocol):
    """What names a model and makes its prompts, and its logits; a state names a prefix.

    ``tokenizer``: None where tokens are no text.
    """

    identity: str
    tokenizer: Any
    tokenizer_digest: bytes

    def crop(self, vocabulary: int) -> None:
        """See `Vlm.crop`."""

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        """See `Vlm.prompt`."""

    def grammar(self, text: str, spec: PromptSpec) -> Grammar:
        """See `Vlm.grammar`."""

    def start(self, prompt: Any) -> Any:
        """The state before the answer's first token."""

    def after(self, state: Any, token: int) -> Any:
        """The state one token later."""

    def row(self, state: Any) -> np.ndarray:
        """Logits float32 [V] after the prefix with this state."""


@dataclass(frozen=True)
class ScriptedPrompt:
    """A prompt that is the seed of its answer."""

    seed: int
    digest: bytes


class CalibratedLanguage(CalibratedModel):
    """That of a calibrated model, for requests made by ``request_of``."""

    identity = "scripted"
    tokenizer = None
    tokenizer_digest = b"scripted"

    def crop(self, vocabulary: int) -> None:
        """There is one vocabulary."""
        assert vocabulary == VOCABULARY

    def prompt(self, request: Request, spec: PromptSpec) -> ScriptedPrompt:
        """The request's picture is the seed."""
        return ScriptedPrompt(int.from_bytes(request.jpeg, "little"), request.image_digest)

    def grammar(self, text: str, spec: PromptSpec) -> Grammar:
        """There is none: UserError."""
        raise UserError("a calibrated model's tokens are no text, so no grammar fits them")

    def start(self, prompt: ScriptedPrompt) -> int:
        """See ``Language``."""
        return self.begin(prompt.seed)
