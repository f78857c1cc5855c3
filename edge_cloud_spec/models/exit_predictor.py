"""A prediction of the verdict from an exit's rows, while the target's pass continues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..decoding.accept import follow
from ..decoding.draft import Draft
from ..decoding.grammar import AllowedAfter, forced_token, masked
from ..decoding.noise import gumbel
from ..decoding.policy import SamplingPolicy, scaled_logits
from ..decoding.propose import coupled_token

NOTHING = -1  # the token after an end token
CERTAIN = 0.999  # the noise is left out for a likelier token: it changes fewer than 1 in 1000


@dataclass(frozen=True)
class ExitPrediction:
    """An exit's prediction of the verdict; never acted on.

    layer: how many of the target's layers are before it. path: nodes of the draft, root to leaf.
    token: the recovered or bonus token; None where the answer ends with the path, or the verdict is
    open. confidence: that all of it is right, from 0 to 1.
    """

    layer: int
    path: tuple[int, ...]
    token: int | None
    confidence: float


class _Rows:
    """Logits [m, S], each one's likeliest place in [S], and how likely that is."""

    def __init__(self, scaled: Tensor) -> None:
        self.scaled = scaled
        best = torch.softmax(scaled, -1).max(-1)
        self.chances, self.places = best.values.tolist(), best.indices.tolist()


@dataclass(eq=False)
class ExitPredictor:
    """Predicts the verdict of one pass, as ``on_layer`` of ``Session.forward``.

    ``on_prediction`` is called with each prediction that has other tokens than the last one.
    layers: after how many there are exits. ids: tokens [S] that they may predict. logits: float32
    [m, S] from hidden rows [m, E] after these layers. position: of the first drafted token in the
    answer. first: logits [V] after the prefix, for a pass that leaves them out. open_at: the leaf
    after which the draft continues, so that the verdict is open there. allowed: by a grammar.
    """

    layers: frozenset[int]
    ids: NDArray[np.int64]
    logits: Callable[[int, Tensor], Tensor]
    draft: Draft
    policy: SamplingPolicy
    position: int
    on_prediction: Callable[[ExitPrediction], None]
    first: NDArray[np.float32] | None = None
    end_tokens: frozenset[int] = frozenset()
    open_at: int | None = None
    allowed: AllowedAfter | None = None
    _noise: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # by position
    _reported: tuple[int | None, ...] | None = None

    def __call__(self, index: int, hidden: Tensor) -> None:
        """Called after the target's layer of this index.

        hidden: rows [m, E] of the nodes, after the prefix's row where the pass computes that too.
        """
        layer = index + 1
        if layer not in self.layers:
            return
        left_out = 1 + len(self.draft) - len(hidden)
        if left_out and self.first is None:
            return
        prediction = self._predict(layer, self.logits(layer, hidden), left_out)
        tokens = (*(self.draft.tokens[node] for node in prediction.path), prediction.token)
        if tokens != self._reported and prediction.confidence > 0:  # false where it is NaN
            self._reported = tokens
            self.on_prediction(prediction)

    def _scaled(self, logits: Tensor) -> Tensor:
        """Logits [m, S] of the policy's distribution, but for a factor at temperature 0."""
        policy = self.policy
        if policy.temperature == 0:
            return logits
        if policy.top_k or policy.top_p < 1:
            return torch.from_numpy(scaled_logits(logits.cpu().numpy(), policy))
        return logits / policy.temperature

    def _predict(self, layer: int, logits: Tensor, left_out: int) -> ExitPrediction:
        """Follow the draft along the exit's own tokens; ``logits`` [m, S] are its own."""
        every = _Rows(self._scaled(logits)) if self.allowed is None else None
        confidence, position = 1.0, self.position - 1

        def token_after(node: int) -> int:
            nonlocal confidence, position
            position += 1
            if node >= 0 and self.draft.tokens[node] in self.end_tokens:
                return NOTHING
            row = node + 1 - left_out
            if row < 0:
                assert self.first is not None  # so this one is known, not predicted
                first = self.first if self.allowed is None else masked(self.first, self.allowed(-1))
                return coupled_token(first, self.policy, position)
            rows = every
            if self.allowed is not None:
                allowed = self.allowed(node)
                if (forced := forced_token(allowed)) is not None:
                    return forced
                outside = torch.from_numpy(~allowed[self.ids]).to(logits.device)
                rows = _Rows(self._scaled(logits[row : row + 1].masked_fill(outside, -torch.inf)))
                row = 0
            assert rows is not None
            chance, place = rows.chances[row], rows.places[row]
            if self.policy.temperature > 0 and chance < CERTAIN:
                chance, place = self._with_noise(rows.scaled[row], position)
            confidence *= chance
            return int(self.ids[place])

        taken = follow(self.draft, token_after, self.open_at)
        token = None if taken.token == NOTHING else taken.token
        return ExitPrediction(layer, taken.path, token, confidence)

    def _with_noise(self, scaled: Tensor, position: int) -> tuple[float, int]:
        """How likely the exit's token is the final pass's own, and its place in [S].

        argmax(log P + G) with the final pass's noise, as ``coupled_token`` has it (cf.
        ``beliefs``).
        """
        if position not in self._noise:
            self._noise[position] = gumbel(self.policy.seed, position, self.ids)
        scores = scaled.cpu().numpy() + self._noise[position]
        place = int(scores.argmax())
        return float(1 / np.exp(scores - scores[place]).sum()), place
