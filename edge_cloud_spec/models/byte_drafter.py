"""Byte vocabulary for targets behind an API: token ids are UTF-8 bytes, and one more ends the
answer.

A robot with ``model.path: bytes`` needs no model: it decodes the verifier's text and drafts
nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..instruction import LIKE_CONTROL
from ..request import MOST_PICTURES, Request
from . import BYTES
from .image import NO_PICTURES
from .prompt import Prompt, PromptImage, PromptSpec, chat_of, prompt_digest

END_TOKEN = 256
BYTE_VOCABULARY = 257
BYTES_A_TOKEN = 4  # approximately, for English text; converts limits in tokens to bytes
BYTES_DIGEST = hashlib.blake2b(b"UTF-8, 256: end", digest_size=16).digest()


class ByteTokenizer:
    """The subset of a tokenizer that ``TextStream`` and ``text_tokens`` use."""

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens; invalid or incomplete UTF-8 becomes a replacement character."""
        return bytes(token for token in tokens if token < END_TOKEN).decode("utf-8", "replace")


def byte_spec(
    max_tokens: int, target: str, system_text: str | None = None, pictures: int = MOST_PICTURES
) -> PromptSpec:
    """The prompt specification for byte tokens. max_tokens is in a model's tokens, and is
    converted."""
    room = max_tokens * BYTES_A_TOKEN
    # A picture is sent unchanged, whatever its size.
    form = (BYTES, NO_PICTURES, (END_TOKEN,), room, target, BYTE_VOCABULARY)
    return PromptSpec(*form, system_text=system_text, pictures=pictures)


class ByteDrafter:
    """A ``Drafter`` that only makes prompts and reads bytes."""

    identity = BYTES
    tokenizer = ByteTokenizer()
    tokenizer_digest = BYTES_DIGEST
    vocabulary = BYTE_VOCABULARY
    chains_only = True

    def crop(self, vocabulary: int) -> None:
        """Raises UserError if the verifier's vocabulary is not the byte vocabulary."""
        if vocabulary != BYTE_VOCABULARY:
            raise UserError(
                "the verifier's target has a tokenizer of its own: set model.path to a checkpoint "
                "that has the same"
            )

    def spec(self, max_tokens: int) -> PromptSpec:
        """The prompt specification for a robot without a cloud."""
        return byte_spec(max_tokens, BYTES)

    def prompt(self, request: Request, spec: PromptSpec) -> Prompt:
        """The bytes of the request's texts; UserError: they cannot be used."""
        text = repr(chat_of(request, spec, LIKE_CONTROL))
        ids, grid = np.frombuffer(text.encode(), np.uint8).astype(np.int64), (0, 0, 0)
        digests = [each.shown for each in request.pictures]
        return Prompt(
            ids,
            tuple(PromptImage(digest, grid, lambda: np.empty((0, 0))) for digest in digests),
            prompt_digest(ids, [(grid, digest) for digest in digests]),
        )

    def grammar(self, text: str, spec: PromptSpec, owner: str = "") -> Any:
        """None: nothing is drafted, so no grammar is needed."""

    def prefill(self, prompt: Prompt) -> Any:
        """Returns this drafter, whose ``step`` raises UserError."""
        return self

    def step(self, rows: int, on_layer: object = None) -> bool:
        """Raises UserError: there is no model."""
        raise UserError(
            "a robot without a draft model (model.path: bytes) cannot draft or decide alone: take "
            "preset cloud_ar, or a drafter"
        )
