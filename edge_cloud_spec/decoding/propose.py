"""Proposes draft tokens from the draft model's logits, and grows drafts from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .draft import Draft
from .noise import Purpose, gumbel
from .policy import SamplingPolicy, check_top, scaled_logits, softmax
from .processors import Adjustment
from .random_source import RandomSource
from .shape import BestFirst, Expansion, Shape
from .token_distribution import TokenDistribution, distribution_of
from .token_tree import TokenTree


@dataclass(frozen=True)
class ProposalConfig:
    """How proposals are made: the request's rule and policy, and the preset's choices.

    Under ``rejection`` candidates are ``drawn`` from Q, cut to ``top_k`` and ``top_p`` first
    (TSLT), with or without ``replacement``; otherwise they are the most likely tokens.
    """

    rule: str
    policy: SamplingPolicy
    drawn: bool = True
    top_k: int = 0
    top_p: float = 1.0
    replacement: bool = True

    @property
    def draws(self) -> bool:
        """Whether candidates are drawn from Q, so that the verdict depends on Q."""
        return self.rule == "rejection" and self.drawn


def coupled_token(logits: NDArray[np.float32], policy: SamplingPolicy, position: int) -> int:
    """argmax(log P + G), the Gumbel-max token of logits [V]; at temperature 0 their argmax.

    Robot and cloud share the noise G, keyed by (seed, position, token), so that equal
    distributions give equal tokens (Daliri, Musco and Suresh 2024, drafter-invariant sampling).
    """
    if policy.temperature == 0:  # the policy never cuts off the largest
        best = int(logits.argmax())
        check_top(logits[best])
        return best
    scaled = scaled_logits(logits, policy)
    support = np.flatnonzero(scaled > -np.inf)
    scores = scaled[support] + gumbel(policy.seed, position, support)
    return int(support[scores.argmax()])


def beliefs(
    logits: NDArray[np.float32], proposal: ProposalConfig, position: int
) -> NDArray[np.float64]:
    """The draft model's probability float64 [V] that each token is the target's; sums to 1.

    Under ``coupled`` the noise is known, so it is Q weighted by the noise.
    """
    policy = proposal.policy
    scaled = scaled_logits(logits, policy)
    if proposal.rule == "coupled":
        support = np.flatnonzero(scaled > -np.inf)
        scaled[support] += gumbel(policy.seed, position, support)
    return softmax(scaled)


def likeliest(probabilities: NDArray[np.float64], count: int) -> tuple[int, ...]:
    """The ``count`` tokens with the largest probabilities above 0, in descending order."""
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
    """``count`` candidates for one position, and Q if they were drawn from it (TSLT algorithm 4).

    ``trial`` is the number of draws made before at the same position.
    """
    if not proposal.draws:
        if count == 1 and proposal.rule != "rejection":
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


PathTokens = tuple[int, ...]  # the tokens of a path, after the prefix
LikelyTokens = tuple[tuple[int, ...], float]  # tokens after a prefix, and how likely they are


@dataclass(frozen=True, eq=False)
class FinishedDraft:
    """A draft ready to be sent, and the draft model's expectations of its verdict.

    ``best`` are the tokens of its most likely path, which ends in the node ``leaf``, and
    ``second_choices`` the model's second choices along it. ``leaves`` are the paths to its leaves,
    and ``recoveries`` the verdict's other possible ends: the tokens of an accepted path and a
    recovered token that was not proposed there. Both carry probabilities, the most likely first.
    """

    draft: Draft
    best: tuple[int, ...]
    leaf: int = -1
    second_choices: tuple[int, ...] = ()
    leaves: tuple[LikelyTokens, ...] = ()
    recoveries: tuple[LikelyTokens, ...] = ()

    @property
    def confidence(self) -> float:
        """The probability that the most likely path is accepted whole; 0 if unknown."""
        return self.leaves[0][1] if self.leaves else 0.0

    def below(self, tokens: Sequence[int]) -> FinishedDraft | None:
        """The draft's subtree below the path ``tokens``; None if it is empty (see ``Draft.below``).

        Its probability counts the known, most likely ends only.
        """
        draft = self.draft.below(tokens)
        if draft is None:
            return None
        size = len(tokens)

        def rests(ends: Sequence[LikelyTokens]) -> list[LikelyTokens]:
            found = ((path[size:], chance) for path, chance in ends if path[:size] == tuple(tokens))
            return [(path, chance) for path, chance in found if path]

        leaves, recoveries = rests(self.leaves), rests(self.recoveries)
        whole = sum(chance for _, chance in (*leaves, *recoveries)) or 1.0
        follows = self.best[:size] == tuple(tokens) and len(self.best) > size
        best = self.best[size:] if follows else leaves[0][0] if leaves else draft.tokens[:1]
        leaf = draft.node_of(best)
        return FinishedDraft(
            draft,
            best,
            -1 if leaf is None else leaf,
            self.second_choices[size:] if follows else (),
            tuple((path, chance / whole) for path, chance in leaves),
            tuple((path, chance / whole) for path, chance in recoveries),
        )


NEAR_TOKENS = 3  # tokens beyond the proposed ones considered after each node
MAX_ENDS = 16


class Growth:
    """One unfinished draft. ``grow`` takes the logits after the frontier and returns new nodes."""

    def __init__(
        self,
        shape: Shape,
        proposal: ProposalConfig,
        position: int,
        end_tokens: Sequence[int],
        random_source: RandomSource,
        with_likelihoods: bool = False,
    ) -> None:
        """position: that of the first drafted token in the answer. Nothing follows an end token.

        with_likelihoods: also compute the probabilities of the possible verdicts.
        """
        self._with_likelihoods = with_likelihoods
        self._shape, self._proposal, self._position = shape, proposal, position
        self._ends, self._random_source = frozenset(end_tokens), random_source
        self._frontier: list[int] = [-1]
        self._open: list[int] = []  # nodes whose children are not grown yet
        self._tree = TokenTree()
        self._rows: list[TokenDistribution] = []
        self._likelihood: list[float] = []  # cumulative probability of each node
        self._near: dict[int, list[tuple[int, float]]] = {}  # after a node: tokens and likelihoods
        self._level = 0
        self.adjustments: list[Adjustment] = []  # after each path of the frontier, if known

    @property
    def done(self) -> bool:
        """Whether there is nothing left to grow."""
        return self._level == self._shape.depth or not self._frontier

    @property
    def frontier(self) -> list[PathTokens]:
        """The paths whose logits the next ``grow`` needs, in this order; () is the prefix."""
        return [self._tree.tokens_to(node) for node in self._frontier]

    def grow(self, logits: NDArray[np.float32]) -> PathTokens:
        """Grow a level and return its tokens. ``logits`` [m, V]: after the m paths of the
        frontier."""
        found = (
            self._expand(logits, self._shape.sizes[self._level])
            if isinstance(self._shape, Expansion)
            else self._best(logits, self._shape)
        )
        tokens = tuple(token for _, token in found)
        first = len(self._tree)
        self._tree = self._tree.extend(tokens, [parent for parent, _ in found])
        self._level += 1
        self.adjustments = []
        self._open += [n for n, token in enumerate(tokens, first) if token not in self._ends]
        if isinstance(self._shape, BestFirst):
            self._open.sort(key=lambda node: -self._likelihood[node])
            width = self._shape.width
        else:
            width = len(self._open)
        self._frontier, self._open = self._open[:width], self._open[width:]
        return tokens

    def finished(self) -> FinishedDraft:
        """The draft so far: a chain without parents, or a best-first tree within its budget."""
        kept, tree = self._kept(), self._tree
        sent = tree.subtree(-1, kept)
        draft = Draft(sent.tokens, sent.parents, tuple(self._rows) or None)
        ends = self._leaves(kept)
        leaf = ends[0]
        best, place = tree.tokens_to(leaf), kept.index(leaf) if leaf >= 0 else -1
        if not self._with_likelihoods:
            return FinishedDraft(draft, best, place)
        leaves = tuple((tree.tokens_to(node), self._likelihood[node]) for node in ends[:MAX_ENDS])
        likeliest_ends = self._second_choices(leaf), leaves, self._recoveries(kept)
        return FinishedDraft(draft, best, place, *likeliest_ends)

    def _second_choices(self, leaf: int) -> tuple[int, ...]:
        """The second choice at each position of the path to this node."""
        tree = self._tree
        nears = ((self._near[tree.parent(n)], tree.tokens[n]) for n in tree.path(leaf))
        return tuple(next((t for t, _ in near if t != token), -1) for near, token in nears)

    def likelihoods(self) -> list[float]:
        """The probability that each node of the draft is accepted, by the draft model."""
        return [self._likelihood[node] for node in self._kept()]

    def _kept(self) -> list[int]:
        """The nodes within the budget; they form a tree, as no node is likelier than its parent."""
        nodes = list(range(len(self._tree)))
        if not isinstance(self._shape, BestFirst) or len(nodes) <= self._shape.nodes:
            return nodes
        # Stable, so that parents come first.
        order = np.argsort(-np.array(self._likelihood), kind="stable")
        return sorted(order[: self._shape.nodes].tolist())

    def _leaves(self, kept: Sequence[int]) -> list[int]:
        """The paths to leaves, most likely first; the first path if likelihoods are not
        computed."""
        if self._likelihood:
            inner = {self._tree.parent(node) for node in kept}
            leaves = [node for node in kept if node not in inner]
            return sorted(leaves, key=lambda node: -self._likelihood[node])
        node = -1
        while (child := next(self._tree.children(node), None)) is not None:
            node = child
        return [node]

    def _recoveries(self, kept: Sequence[int]) -> tuple[LikelyTokens, ...]:
        """The verdict's ends in which a token outside the draft is recovered."""
        drafted = {(), *(self._tree.tokens_to(node) for node in kept)}
        ends = ((self._tree.tokens_to(node), near) for node, near in self._near.items())
        found = [
            ((*path, token), likelihood)
            for path, near in ends
            if path in drafted
            for token, likelihood in near
            if (*path, token) not in drafted
        ]
        return tuple(sorted(found, key=lambda end: -end[1])[:MAX_ENDS])

    def _expand(self, logits: NDArray[np.float32], count: int) -> list[tuple[int, int]]:
        """The next level of an expansion, as parents and tokens."""
        at, level = self._position + self._level, list[tuple[int, int]]()
        for i, (node, row) in enumerate(zip(self._frontier, logits, strict=True)):
            found, drawn = candidates(
                row, self._proposal, at, count, self._random_source, i * count
            )
            if self._with_likelihoods:
                chances = self._likely(node, row, at, count)
                self._likelihood += [chances(token) for token in found]
            level += [(node, token) for token in found]
            self._rows += [drawn] if drawn is not None else []
        return level

    def _best(self, logits: NDArray[np.float32], shape: BestFirst) -> list[tuple[int, int]]:
        """The next level of a best-first tree, as parents and tokens."""
        level: list[tuple[int, int]] = []
        for node, row in zip(self._frontier, logits, strict=True):
            at = self._position + len(self._tree.path(node))
            self._likely(node, row, at, shape.width)
            for token, likelihood in self._near[node][: shape.width]:
                level.append((node, token))
                self._likelihood.append(likelihood)
        return level

    def _likely(
        self, node: int, row: NDArray[np.float32], at: int, count: int
    ) -> Callable[[int], float]:
        """Store the acceptance probabilities of the most likely tokens after this node."""
        before = 1.0 if node < 0 else self._likelihood[node]
        chances = beliefs(row, self._proposal, at)
        near = likeliest(chances, count + NEAR_TOKENS)
        self._near[node] = [(token, before * float(chances[token])) for token in near]
        return lambda token: before * float(chances[token])
