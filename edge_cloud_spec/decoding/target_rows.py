"""The target's logits as acceptance rules use them: a token, or the distribution P.

The interface allows logits on another device; the numpy implementation is here. For a large
vocabulary, float32 bounds select the few candidate tokens, and float64 decides among them:
``screened_token`` always returns the token of ``coupled_token``, and ``screened_support`` the
tokens of ``truncated``, in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from .noise import GUMBEL_MAX, LOG_2_31, GumbelBounds, Purpose, gumbel
from .policy import SamplingPolicy, check_top, scaled_logits, softmax
from .processors import AdjustmentAfter
from .propose import coupled_token
from .random_source import RandomSource
from .token_distribution import TokenDistribution, distribution_of

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]

SCORE_MARGIN = 1e-3  # of scores, see ``_loudest_few``
CHUNK_TOKENS = 8192  # tokens per chunk, which fit a core's cache
MAX_INVERSE_TEMPERATURE = 1e30  # the largest 1 / T in float32
POSSIBLE_ONE_IN = 8  # noise is computed at once if at most one token in so many can win
UNSURE = 1e-9  # of a probability, whose float64 sum depends on the order


def screened_token(logits: Logits, policy: SamplingPolicy, position: int) -> int:
    """The token of ``coupled_token`` for logits float32 [V], computed faster."""
    best = int(logits.argmax())  # NaN counts as the largest
    check_top(logits[best])
    if policy.temperature == 0:
        return best
    ids = (
        screened_support(logits, policy)
        if policy.top_k or policy.top_p < 1
        else _loudest_few(logits, best, policy, position)
    )
    return int(ids[_scores(logits, best, ids, policy, position).argmax()])


def _scaled(few: Logits, top: np.float32, temperature: float) -> NDArray[np.float64]:
    """``scaled_logits`` of a few tokens, equal to the last bit. top: the largest logit of all."""
    with np.errstate(over="ignore"):
        scaled: NDArray[np.float64] = (few.astype(np.float64) - np.float64(top)) / temperature
    return scaled


def scores_of(
    few: Logits, top: np.float32, ids: Ids, policy: SamplingPolicy, position: int
) -> NDArray[np.float64]:
    """log P + G up to a constant, float64: the values compared by ``coupled_token``.

    few: the logits of these ids. top: the largest logit of all.
    """
    scaled = _scaled(few, top, policy.temperature)
    scores: NDArray[np.float64] = scaled + gumbel(policy.seed, position, ids)
    return scores


def _scores(
    logits: Logits, best: int, ids: Ids, policy: SamplingPolicy, position: int
) -> NDArray[np.float64]:
    return scores_of(logits[ids], logits[best], ids, policy, position)


def _loudest_few(logits: Logits, best: int, policy: SamplingPolicy, position: int) -> Ids:
    """Ascending ids, among them every token whose score s + G is the largest.

    s = (logit - top) / T is at most 0. Let b be one token's own score in float64, so that a winner
    has s + G >= b. G < GUMBEL_MAX, so it has s > b - GUMBEL_MAX > -41, as b is at least -3.7 for
    the likeliest token and below GUMBEL_MAX for any. ``GumbelBounds`` gives B >= G up to 1e-5. In
    float32 s is computed by a subtraction, a multiplication, and a 1 / T of one rounding (2**-24)
    each: for s > -41 that is 41 * 3 * 2**-24 < 1e-5. The sum s + B, below 78, adds 78 * 2**-24 <
    1e-5. So a winner has s + B > b - 3e-5 in float32, and SCORE_MARGIN is 30 times that. Where 1 /
    T is above MAX_INVERSE_TEMPERATURE, or flushed to 0, the float32 s is larger than the true one,
    and only more tokens stay. Float64 rounding is far below all that.
    """
    temperature = policy.temperature
    first = np.array([best])
    least = _scores(logits, best, first, policy, position)[0] - SCORE_MARGIN
    floor = np.float64(logits[best]) + (least - GUMBEL_MAX) * temperature
    with np.errstate(over="ignore"):
        possible = logits >= np.nextafter(np.float32(floor), np.float32(-np.inf))
    if np.count_nonzero(possible) * POSSIBLE_ONE_IN <= len(logits):
        return np.flatnonzero(possible)
    noise = GumbelBounds(policy.seed, position, CHUNK_TOKENS)
    scores = np.empty(CHUNK_TOKENS, np.float32)
    few = []
    with np.errstate(all="ignore"):  # -inf + inf is NaN, which never wins
        for start in range(0, len(logits), CHUNK_TOKENS):
            part = logits[start : start + CHUNK_TOKENS]
            bounds = np.subtract(part, logits[best], out=scores[: len(part)])
            bounds *= np.float32(min(1 / temperature, MAX_INVERSE_TEMPERATURE))
            bounds -= noise.logs(start, len(part))
            loudest = int(bounds.argmax())
            if not bounds[loudest] < least - LOG_2_31:
                few.append(start + np.flatnonzero(bounds >= np.float32(least - LOG_2_31)))
                own = _scores(logits, best, np.array([start + loudest]), policy, position)[0]
                least = max(least, own - SCORE_MARGIN)
    return np.concatenate(few)


def screened_support(logits: Logits, policy: SamplingPolicy) -> Ids:
    """Ascending ids of the tokens that ``truncated`` keeps, for a temperature above 0.

    Logits float32 [V]. Raises ValueError if a logit is NaN or the largest is infinite.
    """
    best = int(logits.argmax())
    check_top(logits[best])
    temperature, size = policy.temperature, len(logits)
    if 0 < policy.top_k < size:
        # Scaling is monotone, but may round different values to the same: 2**-50 covers that.
        kth = np.partition(logits, -policy.top_k)[-policy.top_k]
        slack = 2.0**-50 * (abs(float(kth)) + abs(float(logits[best])))
        with np.errstate(over="ignore"):
            least = np.nextafter(np.float32(float(kth) - slack), np.float32(-np.inf))
            smallest = (np.float64(kth) - np.float64(logits[best])) / temperature
        ids = np.flatnonzero(logits >= least)
        scaled = _scaled(logits[ids], logits[best], temperature)
        kept = scaled >= smallest
        ids, scaled = ids[kept], scaled[kept]
    else:
        ids, scaled = np.arange(size), _scaled(logits, logits[best], temperature)
    if policy.top_p < 1:
        weights = np.exp(scaled)
        total = weights.sum()
        # Tokens below have less than 1 - top_p together, so those above contain top_p.
        likely = weights >= 0.999 * (1 - policy.top_p) * total / len(weights)
        ids, scaled, ranked = ids[likely], scaled[likely], weights[likely] / total
        order = np.argsort(-scaled, kind="stable")
        ranked = ranked[order]
        before = np.cumsum(ranked) - ranked
        if (np.abs(before - policy.top_p) < UNSURE).any():
            return np.flatnonzero(scaled_logits(logits, policy) > -np.inf)
        inside = np.sort(order[before < policy.top_p])
        ids, scaled = ids[inside], scaled[inside]
    return ids[scaled > -np.inf]


def screened_distribution(logits: Logits, policy: SamplingPolicy) -> TokenDistribution:
    """``distribution_of`` for logits float32 [V], computed faster; identical if the policy
    truncates.

    Otherwise float32 exponentials, with a relative error of 1e-5 down to 1e-17. These numbers
    define P: tests, subtraction, draws and messages all use them.
    """
    best = int(logits.argmax())
    check_top(logits[best])
    temperature = policy.temperature
    if temperature * MAX_INVERSE_TEMPERATURE < 1:
        return distribution_of(logits, policy)
    with np.errstate(over="ignore"):
        lowest = (np.float64(logits.min()) - np.float64(logits[best])) / temperature
    if policy.top_k or policy.top_p < 1 or lowest == -np.inf:
        ids = screened_support(logits, policy)
        probabilities = softmax(_scaled(logits[ids], logits[best], temperature)).astype(np.float32)
        return TokenDistribution(probabilities, ids if len(ids) < len(logits) else None)
    with np.errstate(over="ignore"):
        weights = logits - logits[best]
        weights *= np.float32(1 / temperature)
    np.exp(weights, out=weights)
    weights /= weights.sum()
    return TokenDistribution(weights)


SMALL_VOCABULARY = 4096  # vocabulary size up to which float64 throughout is faster


class TargetRow(Protocol):
    """P after one node, or its residual. Tests, draws and messages use the same numbers."""

    def at(self, token: int) -> float:
        """The probability of one token."""

    def residual(self, draft: TokenDistribution) -> TargetRow:
        """norm(max(0, P - Q)); see ``TokenDistribution.residual``."""

    def draw(
        self, random_source: RandomSource, purpose: Purpose, position: int, trial: int = 0
    ) -> int:
        """Sample a token."""

    def dense(self) -> TokenDistribution:
        """The whole distribution [V], as split resampling sends it to the robot."""


class TargetRows(Protocol):
    """The target's logits after the prefix (node -1) and after each node of a draft.

    Methods raise ValueError for logits with NaN or an infinite maximum.
    """

    def token(self, node: int, policy: SamplingPolicy, position: int) -> int:
        """The target's token after this node, as sampled at this position of the answer."""

    def row(self, node: int, policy: SamplingPolicy) -> TargetRow:
        """The distribution P after this node."""

    def log_prob(self, node: int, token: int) -> float:
        """The log probability of a token after this node: log softmax of the raw logits, before
        temperature, penalties, grammar, top-k and top-p."""


@dataclass(frozen=True, eq=False)
class TokenRows:
    """``TargetRows`` of a target that returns tokens [1 + n] without logits (0: after the
    prefix)."""

    tokens: Sequence[int]
    why: str  # why there are no distributions, and what to do

    def token(self, node: int, policy: SamplingPolicy, position: int) -> int:
        return self.tokens[node + 1]

    def row(self, node: int, policy: SamplingPolicy) -> TargetRow:
        """Raise UserError: there are no logits."""
        raise UserError(self.why)

    def log_prob(self, node: int, token: int) -> float:
        """Raise UserError: there are no logits."""
        raise UserError(self.why)


@dataclass(frozen=True, eq=False)
class LogitRows:
    """Logits float32 [1 + n, V] (0: after the prefix) in numpy.

    Greedy and coupled tokens equal those of ``coupled_token``; P equals ``distribution_of`` up to
    float32's rounding. Only what a rule asks for is computed, ``adjusted`` first.
    """

    logits: NDArray[np.float32]
    adjusted: AdjustmentAfter | None = None

    def token(self, node: int, policy: SamplingPolicy, position: int) -> int:
        logits = self._logits(node)
        if len(logits) < SMALL_VOCABULARY:
            return coupled_token(logits, policy, position)
        return screened_token(logits, policy, position)

    def row(self, node: int, policy: SamplingPolicy) -> TargetRow:
        logits = self._logits(node)
        if len(logits) < SMALL_VOCABULARY:
            return distribution_of(logits, policy)
        return screened_distribution(logits, policy)

    def log_prob(self, node: int, token: int) -> float:
        logits, totals = self.logits[node + 1], self._totals
        if node not in totals:
            check_top(top := logits.max())
            totals[node] = float(top + np.log(np.exp(logits - top).sum(dtype=np.float64)))
        return float(logits[token]) - totals[node]

    @cached_property
    def _totals(self) -> dict[int, float]:
        """log sum exp of the rows after nodes, by which a logit exceeds its log probability."""
        return {}

    def _logits(self, node: int) -> NDArray[np.float32]:
        logits = self.logits[node + 1]
        return logits if self.adjusted is None else self.adjusted(node).of(logits)
