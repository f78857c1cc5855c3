"""The embedded pair's words at a regime's times: two real models whose passes take virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ....cloud.model_thread.worker import Worker
from ....decoding.digest import common_prefix
from ....decoding.grammar import Grammar
from ....instruction import instruction_pattern
from ....models import EMBEDDED
from ....models.image import PictureLimits
from ....models.load import load
from ....models.prompt import Prompt, PromptSpec, Request
from ....share import rules_text
from ..regimes import Regime
from ..scripted.pair import DraftVlm, OnPass, ScriptedExits, Sleep, TargetVlm

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
        """Use so many tokens of the vocabulary."""
        self.vlm.crop(vocabulary)

    def prompt(self, request: Request, spec: PromptSpec) -> Prompt:
        """The prompt of a request."""
        return self.vlm.prompt(request, spec)

    def grammar(self, text: str, spec: PromptSpec) -> Grammar:
        """The grammar that this text describes."""
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


MAX_TOKENS = 48  # of an answer


class EmbeddedPair:
    """Both real models and what is known of them, for any number of robots of one process."""

    def __init__(self) -> None:
        self.target, self.drafter = _memoized("target"), _memoized("drafter")
        self._drafters = {1.0: self.drafter}
        self.instructions = instruction_pattern(EMBEDDED / "target")
        self.spec = self.target.vlm.spec(rules_text(), MAX_TOKENS)
        self.target.vlm.crop(self.spec.vocabulary)
        self.drafter.vlm.crop(self.spec.vocabulary)

    def forget(self) -> None:
        """Keep no rows: other pictures follow."""
        for model in (self.target, *self._drafters.values()):
            model.forget()

    def drafter_that_keeps(self, share: float) -> MemoizedRows:
        """The draft model with this share of the tokens of its pictures."""
        if share not in self._drafters:
            model, image = _memoized("drafter"), self.spec.image
            tokens = max(1, round(share * image.max_pixels / image.token_pixels))
            model.vlm.limit_picture(PictureLimits(max_image_tokens=tokens))
            model.vlm.crop(self.spec.vocabulary)
            self._drafters[share] = model
        return self._drafters[share]


def _memoized(name: str) -> MemoizedRows:
    return MemoizedRows(load(str(EMBEDDED / name), threads=1, passes="fixed"))


@cache
def loaded_pair() -> EmbeddedPair:
    """The pair of this process."""
    return EmbeddedPair()


def embedded_worker(
    pair: EmbeddedPair,
    regime: Regime,
    clock: Callable[[], float],
    sleep: Sleep,
    on_pass: OnPass,
    drafts: bool,
) -> Worker:
    """The cloud's worker with target and exits that hit as published; ``drafts``: it has a draft
    model, too."""
    exits: Any = ScriptedExits(regime) if regime.exit_hit else None
    target: Any = TargetVlm(regime, sleep, pair.target)
    drafter: Any = DraftVlm(regime, sleep, pair.drafter)
    target.on_pass = drafter.on_pass = on_pass
    own = drafter if drafts else None
    return Worker(target, pair.spec, own, None, clock, exits, pair.instructions)
