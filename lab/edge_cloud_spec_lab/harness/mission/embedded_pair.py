"""The embedded pair in virtual time: real models, with the times of a cost profile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_cloud_spec.decoding.digest import common_prefix
from edge_cloud_spec.instruction import instruction_pattern
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.image import PictureLimits
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Prompt

from ...tokens import ANSWER_TOKENS
from ..scripted.model import FakeVlm

if TYPE_CHECKING:
    from edge_cloud_spec.models.session import Session
    from edge_cloud_spec.models.vlm import Vlm


class MemoizedRows(FakeVlm):
    """A real model whose logits are cached by prompt and tokens, so that each is computed once.

    Robots that see the same pictures decode much the same, whatever passes cost; and rounding,
    which depends on the pass, is then the same for all of them.
    """

    def __init__(self, vlm: Vlm) -> None:
        self.vlm = vlm
        self.speak_as(vlm, "crop", "prompt", "grammar")
        self.forget()

    def forget(self) -> None:
        """Clear the cache, because other pictures follow."""
        self._rows: dict[tuple[Any, ...], np.ndarray] = {}
        self._sessions: dict[bytes, Session] = {}

    def start(self, prompt: Prompt) -> tuple[Any, ...]:
        """The state before the answer's first token."""
        return (prompt,)

    def row(self, state: tuple[Any, ...]) -> np.ndarray:
        """Logits float32 [V] after the prefix with this state."""
        row: np.ndarray = self.rows([state])[0]
        return row

    def rows(self, states: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """Logits float32 [n, V] after each of these states, which share one prompt."""
        prompt = states[0][0]
        keys = [(prompt.digest, *tokens) for _, *tokens in states]
        if missing := [key[1:] for key in keys if key not in self._rows]:
            self._compute(prompt, missing)
        return np.stack([self._rows[key] for key in keys])

    def _compute(self, prompt: Prompt, answers: Sequence[tuple[int, ...]]) -> None:
        """Compute the logits after these answers in one pass, sharing their common prefix."""
        if prompt.digest not in self._sessions:
            self._sessions[prompt.digest] = self.vlm.open(prompt)
        session = self._sessions[prompt.digest]
        base = answers[0]
        for answer in answers:
            base = base[: common_prefix(base, answer)]
        known = common_prefix(session.tokens, base)
        session.truncate(known)
        session.extend(base[known:])
        nodes = {base: -1}
        for answer in answers:
            for end in range(len(base) + 1, len(answer) + 1):
                nodes.setdefault(answer[:end], len(nodes) - 1)
        tree = list(nodes)[1:]
        rows = session.forward([node[-1] for node in tree], [nodes[node[:-1]] for node in tree])
        for node, row in zip(nodes, rows, strict=True):
            self._rows[(prompt.digest, *node)] = row.copy()
        longest = max(nodes, key=len)
        session.commit([nodes[longest[:end]] for end in range(len(base) + 1, len(longest) + 1)])


class EmbeddedPair:
    """Both real models and their cached logits, shared by all robots of a process."""

    def __init__(self) -> None:
        self.target, self.drafter = _memoized("target"), _memoized("drafter")
        self._drafters = {1.0: self.drafter}
        self.instructions = instruction_pattern(EMBEDDED / "target")
        self.spec = self.target.vlm.spec(ANSWER_TOKENS)
        self.target.vlm.crop(self.spec.vocabulary)
        self.drafter.vlm.crop(self.spec.vocabulary)

    def forget(self) -> None:
        """Clear the caches, because other pictures follow."""
        for model in (self.target, *self._drafters.values()):
            model.forget()

    def drafter_that_keeps(self, share: float) -> MemoizedRows:
        """The draft model that keeps this share of its pictures' tokens."""
        if share not in self._drafters:
            model, image = _memoized("drafter"), self.spec.image
            tokens = max(1, round(share * image.max_pixels / image.token_pixels))
            model.vlm.limit_picture(PictureLimits(max_image_tokens=tokens))
            model.vlm.crop(self.spec.vocabulary)
            self._drafters[share] = model
        return self._drafters[share]


def _memoized(name: str) -> MemoizedRows:
    return MemoizedRows(load(str(EMBEDDED / name), threads=1))


@cache
def loaded_pair() -> EmbeddedPair:
    """This process's pair."""
    return EmbeddedPair()
