"""A draft that grows pass by pass, and how likely each of its tokens is by definition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from helpers.exactness import Model

from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.noise import gumbel
from edge_cloud_spec.decoding.policy import scaled_logits
from edge_cloud_spec.decoding.propose import FinishedDraft, Growth, ProposalConfig
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.shape import Shape

VOCABULARY = 9
Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Drafting:
    """A model, a recipe and where in the answer the draft begins."""

    model: Model
    proposal: ProposalConfig
    position: int
    ends: tuple[int, ...] = ()
    with_likelihoods: bool = True

    def grow(self, shape: Shape) -> FinishedDraft:
        """The draft, grown pass by pass; each pass is over the logits that it asked for."""
        random_source = SeededRandomSource(self.proposal.policy.seed)
        growth = Growth(
            shape, self.proposal, self.position, self.ends, random_source, self.with_likelihoods
        )
        passes = 0
        while not growth.done:
            growth.grow(np.stack([self.model.logits(path) for path in growth.frontier]))
            passes += 1
        assert passes <= shape.depth
        return growth.finished()

    def beliefs(self, prefix: Prefix) -> np.ndarray:
        """How likely each token is the target's, as far as the drafter knows."""
        return beliefs_of(self, prefix)

    def likelihood(self, path: Prefix) -> float:
        return float(np.prod([self.beliefs(path[:n])[token] for n, token in enumerate(path)]))

    def ranked(self, prefix: Prefix) -> list[int]:
        """Tokens that may follow, the likeliest first."""
        chances = self.beliefs(prefix)
        return [int(token) for token in np.argsort(-chances, kind="stable") if chances[token] > 0]


@cache
def beliefs_of(drafting: Drafting, prefix: Prefix) -> np.ndarray:
    policy = drafting.proposal.policy
    scaled = scaled_logits(drafting.model.logits(prefix), policy)
    if drafting.proposal.rule == "coupled":
        position = drafting.position + len(prefix)
        scaled = scaled + gumbel(policy.seed, position, range(VOCABULARY))
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def paths_of(draft: Draft) -> list[Prefix]:
    """The tokens that lead to each node."""
    paths: list[Prefix] = []
    for node, token in enumerate(draft.tokens):
        parent = draft.parent(node)
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths
