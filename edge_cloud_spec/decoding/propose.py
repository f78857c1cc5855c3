"""How one draft token, or several candidates for one place, are proposed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .noise import Purpose, gumbel
from .policy import SamplingPolicy, check_top, scaled_logits, softmax
from .random_source import RandomSource
from .token_distribution import TokenDistribution, distribution_of


@dataclass(frozen=True)
class ProposalConfig:
    """How proposals are made: the request's rule and policy, and the preset's choices.

    Under ``rejection`` candidates are ``drawn`` from Q, which is cut to ``top_k`` and ``top_p``
    before (TSLT), with or without ``replacement``; else they are the likeliest.
    """

    rule: str
    policy: SamplingPolicy
    drawn: bool = True
    top_k: int = 0
    top_p: float = 1.0
    replacement: bool = True

    @property
    def draws(self) -> bool:
        """Whether candidates are drawn, so that the verdict depends on what from."""
        return self.rule == "rejection" and self.drawn


def coupled_token(logits: NDArray[np.float32], policy: SamplingPolicy, position: int) -> int:
    """argmax(log P + G), the Gumbel-max token of logits [V]; at temperature 0 their argmax.

    Robot and cloud share the noise G, keyed by (seed, position, token), so that equal
    distributions give equal tokens (Daliri, Musco and Suresh 2024, drafter-invariant sampling).
    """
    if policy.temperature == 0:  # what the policy cuts off is never the largest
        best = int(logits.argmax())
        check_top(logits[best])
        return best
    scaled = scaled_logits(logits, policy)
    support = np.flatnonzero(scaled > -np.inf)
    return _loudest(scaled[support], support, policy.seed, position)


def coupled_token_of(row: TokenDistribution, seed: int, position: int) -> int:
    """The same from probabilities; costs what the row's support has tokens."""
    ids = np.arange(len(row.probabilities)) if row.ids is None else row.ids
    with np.errstate(divide="ignore"):
        return _loudest(np.log(row.probabilities), ids, seed, position)


def _loudest(scores: NDArray[np.floating], ids: NDArray[np.int64], seed: int, position: int) -> int:
    return int(ids[(scores + gumbel(seed, position, ids)).argmax()])


def beliefs(
    logits: NDArray[np.float32], proposal: ProposalConfig, position: int
) -> NDArray[np.float64]:
    """The probability by the draft model that each token [V] is the target's; float64, sums to 1.

    Under ``coupled`` the noise is known, so what counts is Q weighed with it.
    """
    policy = proposal.policy
    scaled = scaled_logits(logits, policy)
    if proposal.rule == "coupled":
        support = np.flatnonzero(scaled > -np.inf)
        scaled[support] += gumbel(policy.seed, position, support)
    return softmax(scaled)


def likeliest(probabilities: NDArray[np.float64], count: int) -> tuple[int, ...]:
    """The ``count`` tokens of the largest probabilities above 0, in falling order."""
    count = min(count, int(np.count_nonzero(probabilities)))
    if count == 1:
        return (int(probabilities.argmax()),)
    top = np.argpartition(probabilities, -count)[-count:]
    return tuple(int(t) for t in top[np.lexsort((top, -probabilities[top]))])


def candidates(
    logits: NDArray[np.float32],
    proposal: ProposalConfig,
    position: int,
    count: int,
    random_source: RandomSource,
    trial: int = 0,
) -> tuple[tuple[int, ...], TokenDistribution | None]:
    """``count`` tokens for one place, and Q where they were drawn from it (TSLT algorithm 4).

    ``trial`` numbers the first of them among all that are drawn for the same position.
    """
    if not proposal.draws:
        if count == 1:
            return (coupled_token(logits, proposal.policy, position),), None
        return likeliest(beliefs(logits, proposal, position), count), None
    row = distribution_of(logits, proposal.policy, proposal.top_k, proposal.top_p)
    if proposal.replacement:
        trials = range(trial, trial + count)
        return tuple(row.draw(random_source, Purpose.DRAFT, position, each) for each in trials), row
    left = row
    tokens: list[int] = []
    while len(tokens) < count and left.probabilities.any():
        tokens.append(left.draw(random_source, Purpose.DRAFT, position, trial + len(tokens)))
        left = left.without(tokens[-1])
    return tuple(tokens), row
