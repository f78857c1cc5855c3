"""The draft model at work: tokens proposed after a verified prefix, one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..decoding.choose import SeededChooser
from ..decoding.draft import Draft
from ..decoding.policy import SamplingPolicy
from ..decoding.propose import coupled_token, sampled_token

if TYPE_CHECKING:
    from .session import Session


@dataclass(frozen=True)
class Recipe:
    """How proposals are drawn: the request's acceptance rule and sampling policy."""

    rule: str
    policy: SamplingPolicy


class Drafter:
    """A draft session that follows the verified prefix, whatever was drafted beyond it."""

    def __init__(self, session: Session, recipe: Recipe) -> None:
        self._session = session
        self._recipe = recipe
        self._chooser = SeededChooser(recipe.policy.seed)
        self._tokens: list[int] = []  # what the session holds after the prompt

    def follow(self, prefix: tuple[int, ...]) -> None:
        """Continue from these tokens; what the cache shares with them is kept."""
        pairs = zip(self._tokens, prefix, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if shared < len(self._tokens):
            self._session.truncate(shared)
        self._session.extend(prefix[shared:])
        self._tokens = list(prefix)

    def step(self) -> tuple[int, NDArray[np.float32] | None]:
        """Propose the next token, and Q [V] that it was drawn from under ``rejection``."""
        logits = self._session.forward(())[0]
        position = len(self._tokens)
        row: NDArray[np.float32] | None = None
        if self._recipe.rule == "rejection":
            token, row = sampled_token(logits, self._recipe.policy, position, self._chooser)
        else:
            token = coupled_token(logits, self._recipe.policy, position)
        self._session.extend((token,))
        self._tokens.append(token)
        return token, row

    def chain(self, length: int, end_tokens: tuple[int, ...]) -> Draft:
        """Propose a chain of at most this length; nothing follows an end token."""
        tokens: list[int] = []
        rows: list[NDArray[np.float32]] = []
        while len(tokens) < length and not (tokens and tokens[-1] in end_tokens):
            token, row = self.step()
            tokens.append(token)
            if row is not None:
                rows.append(row)
        return Draft(tuple(tokens), rows=np.stack(rows) if rows else None)
