"""A real model's logits by prompt and prefix, computed where they are not known yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....decoding.digest import common_prefix
from ....decoding.grammar import Grammar
from ....models.prompt import Prompt, PromptSpec, Request

if TYPE_CHECKING:
    from ....models.session import Session
    from ....models.vlm import Vlm


@dataclass(frozen=True, eq=False)
class PromptPrefix:
    """A place in an answer: the prompt and the tokens after it."""

    prompt: Prompt
    tokens: tuple[int, ...] = ()


class MemoizedRows:
    """A real model as a ``Language``, which computes each row once.

    Robots that see the same pictures say much the same, whatever passes cost them. The model must
    have ``passes: fixed``, so that a row's bits do not depend on who asks first.
    """

    def __init__(self, vlm: Vlm) -> None:
        self.vlm = vlm
        self.identity, self.tokenizer = vlm.identity, vlm.tokenizer
        self.tokenizer_digest = vlm.tokenizer_digest
        self.forget()

    def forget(self) -> None:
        """Keep nothing: other pictures follow."""
        self._rows: dict[tuple[bytes, tuple[int, ...]], np.ndarray] = {}
        self._sessions: dict[bytes, Session] = {}

    def crop(self, vocabulary: int) -> None:
        """See `Vlm.crop`."""
        self.vlm.crop(vocabulary)

    def prompt(self, request: Request, spec: PromptSpec) -> Prompt:
        """See `Vlm.prompt`."""
        return self.vlm.prompt(request, spec)

    def grammar(self, text: str, spec: PromptSpec) -> Grammar:
        """See `Vlm.grammar`."""
        return self.vlm.grammar(text, spec)

    def start(self, prompt: Prompt) -> PromptPrefix:
        """The place before the answer's first token."""
        return PromptPrefix(prompt)

    def after(self, state: PromptPrefix, token: int) -> PromptPrefix:
        """The place one token later."""
        return PromptPrefix(state.prompt, (*state.tokens, token))

    def row(self, state: PromptPrefix) -> np.ndarray:
        """Logits float32 [V] after this prefix."""
        key = (state.prompt.digest, state.tokens)
        if key not in self._rows:
            self._rows[key] = self._compute(state)
        return self._rows[key]

    def _compute(self, prefix: PromptPrefix) -> np.ndarray:
        digest, tokens = prefix.prompt.digest, prefix.tokens
        if digest not in self._sessions:
            self._sessions[digest] = self.vlm.open(prefix.prompt)
        session = self._sessions[digest]
        shared = common_prefix(session.tokens, tokens)
        session.truncate(shared)
        session.extend(tokens[shared:])
        return session.logits_after(-1).copy()
