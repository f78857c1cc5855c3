"""A draft model that proposes a known answer, with mistakes: many robots on a few cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...models.prompt import PromptSpec, Request
from ...models.vlm import Vlm
from .scripted.model import ScriptedSession
from .scripted.prefill import ScriptedPrefill

State = tuple[int, ...]  # the tokens of the answer


class ReplayedDrafts:
    """Makes the prompts of ``model``, and drafts ``answer``, each ``wrong_every``th token wrong."""

    def __init__(self, model: Vlm, answer: tuple[int, ...], wrong_every: int = 5) -> None:
        self._model, self._answer, self._wrong_every = model, answer, wrong_every
        self.identity, self.tokenizer_digest = model.identity, model.tokenizer_digest
        self._vocabulary = 0

    def crop(self, vocabulary: int) -> None:
        """As many tokens as the target has."""
        self._vocabulary = vocabulary

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        """The model's own prompt, so that both sides have one digest."""
        return self._model.prompt(request, spec)

    def open(self, prompt: Any) -> ScriptedSession:
        """A session that costs nothing."""
        return ScriptedSession(self, ())

    def prefill(self, prompt: Any) -> ScriptedPrefill[ScriptedSession]:
        """`open`, which is a single step."""
        return ScriptedPrefill(lambda: self.open(prompt))

    def after(self, state: State, token: int) -> State:
        return (*state, token)

    def row(self, state: State) -> np.ndarray:
        """Float32 [V]: all on the next token of the answer, or on a wrong one."""
        place = len(state)
        token = self._answer[place] if place < len(self._answer) else 0
        wrong = place % self._wrong_every == self._wrong_every - 1
        row = np.zeros(self._vocabulary, np.float32)
        row[(token + wrong) % self._vocabulary] = 20.0
        return row

    def spend(self, rows: int) -> None:
        """Nothing."""
