"""A guess at a verdict, made from an exit's rows while the target's pass goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..decoding.accept import follow
from ..decoding.draft import Draft
from ..decoding.noise import gumbel
from ..decoding.policy import SamplingPolicy, scaled_logits, softmax
from ..decoding.propose import coupled_token

if TYPE_CHECKING:
    from .exits import Exits

NOTHING = -1  # the token after an end token


@dataclass(frozen=True)
class Guess:
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
class Watch:
    """Looks on at one pass, as ``on_exit`` of ``Session.forward``; tells each guess that is new.

    New is what has other tokens than the last one. position: of the first drafted token in the
    answer. first: logits [V] after the prefix, for a pass that leaves them out. open_at: the leaf
    after which the draft goes on.
    """

    exits: Exits
    draft: Draft
    policy: SamplingPolicy
    position: int
    tell: Callable[[Guess], None]
    first: NDArray[np.float32] | None = None
    end_tokens: frozenset[int] = frozenset()
    open_at: int | None = None
    _noise: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # by depth
    _said: tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        self._ids, self._head = self.exits.over(self.draft.tokens)
        self._depths = [0]  # of the token after each node, the prefix first
        for node in range(len(self.draft)):
            self._depths.append(self._depths[self.draft.parent(node) + 1] + 1)

    def __call__(self, index: int, hidden: Tensor) -> None:
        """After the target's layer of this index: hidden rows [m, E] after the nodes, and after

        the prefix where that was left to compute.
        """
        layer = index + 1
        left_out = 1 + len(self.draft) - len(hidden)
        if layer not in self.exits.adapters or (left_out and self.first is None):
            return
        rows = self.exits.logits(layer, hidden, self._head).cpu().numpy()
        guess = self._guess(layer, scaled_logits(rows, self.policy), left_out)
        said = (*(self.draft.tokens[node] for node in guess.path), guess.token)
        if said != self._said:
            self._said = said
            self.tell(guess)

    def _guess(self, layer: int, scaled: NDArray[np.float64], left_out: int) -> Guess:
        """Follow the draft along the exit's own tokens; ``scaled`` [m, S] are its logits."""
        confidence = 1.0

        def token_after(node: int) -> int:
            nonlocal confidence
            if node >= 0 and self.draft.tokens[node] in self.end_tokens:
                return NOTHING
            if node + 1 < left_out:
                assert self.first is not None  # so this one is known, not guessed
                return coupled_token(self.first, self.policy, self.position)
            chances = self._chances(scaled[node + 1 - left_out], self._depths[node + 1])
            place = int(chances.argmax())
            confidence *= float(chances[place])
            return int(self._ids[place])

        taken = follow(self.draft, token_after, self.open_at)
        token = None if taken.token == NOTHING else taken.token
        return Guess(layer, taken.path, token, confidence)

    def _chances(self, scaled: NDArray[np.float64], depth: int) -> NDArray[np.float64]:
        """How likely each token [S] is the final pass's own; its noise is known (cf. ``beliefs``).

        The likeliest is argmax(log P + G), as ``coupled_token`` has it.
        """
        if self.policy.temperature == 0:
            return softmax(scaled)
        if depth not in self._noise:
            self._noise[depth] = gumbel(self.policy.seed, self.position + depth, self._ids)
        return softmax(scaled + self._noise[depth])
