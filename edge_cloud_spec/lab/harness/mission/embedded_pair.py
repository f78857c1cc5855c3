"""The embedded pair's words at a regime's times: two real models whose passes take virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ....cloud.model_thread.worker import Worker
from ....instruction import instruction_pattern
from ....models import EMBEDDED
from ....models.image import PictureLimits
from ....models.load import load
from ....share import rules_text
from ..regimes import Regime
from ..scripted.pair import DraftVlm, OnPass, ScriptedExits, Sleep, TargetVlm
from .memoized_rows import MemoizedRows

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
