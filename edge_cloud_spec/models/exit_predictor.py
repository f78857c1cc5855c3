"""A guess at a verdict, made from an exit's rows while the target's pass goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..decoding.accept import follow
from ..decoding.draft import Draft
from ..decoding.noise import gumbel
from ..decoding.policy import SamplingPolicy, scaled_logits
from ..decoding.propose import coupled_token

if TYPE_CHECKING:
    from .exits import Exits

NOTHING = -1  # the token after an end token
CERTAIN = (
    0.999  # a likelier token is the guess whatever the noise: it would change one in a thousand
)


@dataclass(frozen=True)
class ExitPrediction:
    """What an exit takes the verdict to be; never acted on.

    layer: how many of the target's layers it rests on. path: nodes of the draft, root to leaf.
    token: the recovered or bonus token; None where the answer ends with the path, or the draft goes
    on. confidence: that all of it is right, from 0 to 1.
    """

    layer: int
    path: tuple[int, ...]
    token: int | None
    confidence: float


@dataclass(eq=False)
class ExitPredictor:
    """Looks on at one pass, as ``on_layer`` of ``Session.forward``; tells each guess that is new.

    New is what has other tokens than the last one. position: of the first drafted token in the
    answer. first: logits [V] after the prefix, for a pass that leaves them out. open_at: the leaf
    after which the draft goes on.
    """

    exits: Exits
    draft: Draft
    policy: SamplingPolicy
    position: int
    tell: Callable[[ExitPrediction], None]
    first: NDArray[np.float32] | None = None
    end_tokens: frozenset[int] = frozenset()
    open_at: int | None = None
    _noise: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # by position
    _said: tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        self._ids, self._head = self.exits.over(self.draft.tokens)

    def __call__(self, index: int, hidden: Tensor) -> None:
        """After the target's layer of this index: hidden rows [m, E] after the nodes, and after

        the prefix where that was left to compute.
        """
        layer = index + 1
        if layer not in self.exits.adapters:
            return
        left_out = 1 + len(self.draft) - len(hidden)
        if left_out and self.first is None:
            return
        guess = self._guess(layer, self._scaled(layer, hidden), left_out)
        said = (*(self.draft.tokens[node] for node in guess.path), guess.token)
        if said != self._said and guess.confidence > 0:  # not so where something is no number
            self._said = said
            self.tell(guess)

    def _scaled(self, layer: int, hidden: Tensor) -> Tensor:
        """Logits [m, S] of the policy's distribution, but for a factor at temperature 0."""
        rows = self.exits.logits(layer, hidden, self._head)
        policy = self.policy
        if policy.temperature == 0:
            return rows
        if policy.top_k or policy.top_p < 1:
            return torch.from_numpy(scaled_logits(rows.cpu().numpy(), policy))
        return rows / policy.temperature

    def _guess(self, layer: int, scaled: Tensor, left_out: int) -> ExitPrediction:
        """Follow the draft along the exit's own tokens; ``scaled`` [m, S] are its logits."""
        best = torch.softmax(scaled, -1).max(-1)
        chances, places = best.values.tolist(), best.indices.tolist()
        confidence, position = 1.0, self.position - 1

        def token_after(node: int) -> int:
            nonlocal confidence, position
            position += 1
            if node >= 0 and self.draft.tokens[node] in self.end_tokens:
                return NOTHING
            row = node + 1 - left_out
            if row < 0:
                assert self.first is not None  # so this one is known, not guessed
                return coupled_token(self.first, self.policy, position)
            chance, place = chances[row], places[row]
            if self.policy.temperature > 0 and chance < CERTAIN:
                chance, place = self._with_noise(scaled[row], position)
            confidence *= chance
            return int(self._ids[place])

        taken = follow(self.draft, token_after, self.open_at)
        token = None if taken.token == NOTHING else taken.token
        return ExitPrediction(layer, taken.path, token, confidence)

    def _with_noise(self, scaled: Tensor, position: int) -> tuple[float, int]:
        """argmax(log P + G) as ``coupled_token`` has it, its place in [S], and how likely that is

        to be the final pass's own, whose noise this is (cf. ``beliefs``).
        """
        if position not in self._noise:
            self._noise[position] = gumbel(self.policy.seed, position, self._ids)
        scores = scaled.cpu().numpy() + self._noise[position]
        place = int(scores.argmax())
        return float(1 / np.exp(scores - scores[place]).sum()), place
