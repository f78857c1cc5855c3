"""How a draft grows, against its definition: every prefix looked at, likelihoods multiplied out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from helpers.exactness import Model
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.draft import MAX_NODES, Draft
from edge_cloud_spec.decoding.growth import MAX_GUESSES, NEAR, FinishedDraft, Growth
from edge_cloud_spec.decoding.noise import gumbel
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy, scaled_logits
from edge_cloud_spec.decoding.propose import ProposalConfig, candidates, coupled_token
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.shape import BestFirst, Branch, Expansion, Shape, chain

VOCABULARY = 9
Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Drafting:
    """A model, a recipe and where in the answer the draft begins."""

    model: Model
    proposal: ProposalConfig
    position: int
    ends: tuple[int, ...] = ()
    guesses: bool = True

    def grow(self, shape: Shape) -> FinishedDraft:
        """The draft, grown pass by pass; each pass is over the logits that it asked for."""
        paths: list[Prefix] = []
        random_source = SeededRandomSource(self.proposal.policy.seed)
        growth = Growth(shape, self.proposal, self.position, self.ends, random_source, self.guesses)
        passes = 0
        while not growth.done:
            asked = [paths[node] if node >= 0 else () for node in growth.frontier]
            level = growth.grow(np.stack([self.model.logits(prefix) for prefix in asked]))
            for token, parent in zip(level.tokens, level.parents, strict=True):
                paths.append((*(paths[parent] if parent >= 0 else ()), token))
            passes += 1
        assert passes <= shape.depth
        return growth.whole()

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
    paths: list[Prefix] = []
    for node, token in enumerate(draft.tokens):
        parent = draft.parent(node)
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def close(mine: list[tuple[Prefix, float]], theirs: tuple[tuple[Prefix, float], ...]) -> None:
    """The same guesses in the same order, up to rounding."""
    assert [path for path, _ in mine] == [path for path, _ in theirs]
    assert [share for _, share in mine] == pytest.approx([share for _, share in theirs], rel=1e-9)


def check_whole(drafting: Drafting, whole: FinishedDraft, near: int) -> None:
    """What a draft says of its verdict, from nothing but its tokens; ``near``: looked at."""
    paths = paths_of(whole.draft)
    inner = {path[:-1] for path in paths}
    leaves = sorted(
        [(path, drafting.likelihood(path)) for path in paths if path not in inner],
        key=lambda leaf: -leaf[1],
    )
    close(leaves[:MAX_GUESSES], whole.leaves)
    assert whole.best == leaves[0][0] == paths[whole.leaf]
    assert whole.confidence == pytest.approx(leaves[0][1])
    seconds = []
    for n, token in enumerate(whole.best):
        others = [other for other in drafting.ranked(whole.best[:n]) if other != token]
        seconds.append(others[0] if others else -1)
    assert whole.seconds == tuple(seconds)
    drafted = set(paths)
    guesses = [
        ((*prefix, token), drafting.likelihood((*prefix, token)))
        for prefix in {path[:-1]: None for path in paths}
        for token in drafting.ranked(prefix)[:near]
        if (*prefix, token) not in drafted
    ]
    guesses.sort(key=lambda guess: -guess[1])
    close(guesses[:MAX_GUESSES], whole.guesses)


recipes = st.one_of(
    st.just(ProposalConfig("greedy", GREEDY)),
    st.builds(
        ProposalConfig,
        st.sampled_from(["coupled", "rejection"]),
        st.builds(
            SamplingPolicy,
            st.sampled_from([0.7, 1.5]),
            st.sampled_from([0, 4]),
            seed=st.integers(0, 99),
        ),
        drawn=st.booleans(),
        replacement=st.just(False),
    ),
)
drafters = st.builds(
    Drafting,
    st.builds(
        Model,
        st.integers(0, 10**6),
        st.just(VOCABULARY),
        st.sampled_from([0.5, 1.5, 4.0]),
    ),
    recipes,
    st.integers(0, 60),
)


@settings(max_examples=80)
@given(
    drafters,
    st.sampled_from([(1,), (1, 1, 1), (3,), (2, 1, 2), (2, 2, 2), (1, 4), (5, 2)]),
)
def test_an_expansion_has_its_sizes_and_knows_its_verdicts(
    drafting: Drafting, sizes: tuple[int, ...]
) -> None:
    proposal = drafting.proposal
    whole = drafting.grow(Expansion(sizes))
    paths = paths_of(whole.draft)
    random_source = SeededRandomSource(proposal.policy.seed)
    level: list[Prefix] = [()]
    expected: list[Prefix] = []
    for depth, size in enumerate(sizes):
        grown: list[Prefix] = []
        for place, prefix in enumerate(level):
            position, logits = drafting.position + depth, drafting.model.logits(prefix)
            found, _ = candidates(logits, proposal, position, size, random_source, place * size)
            if not proposal.draws:
                alone = (coupled_token(logits, proposal.policy, position),)
                ranked = tuple(drafting.ranked(prefix)[:size])
                assert found == (alone if size == 1 else ranked)
                assert proposal.rule == "rejection" or found[0] == alone[0]
            grown += [(*prefix, token) for token in found]
        level = grown
        expected += grown
    assert paths == expected
    near = {size: size + NEAR for size in sizes}
    if len(near) == 1:
        check_whole(drafting, whole, near[sizes[0]])
    assert (whole.draft.parents is None) == (
        paths == [whole.best[: n + 1] for n in range(len(paths))]
    )
    assert (whole.draft.rows is not None) == proposal.draws
    if proposal.draws:
        assert len(whole.draft.rows or ()) == len(whole.draft.inner)


@settings(max_examples=80)
@given(
    drafters.filter(lambda drafting: not drafting.proposal.draws),
    st.integers(1, 12),
    st.integers(1, 3),
)
def test_a_best_first_tree_that_may_look_everywhere_is_the_likeliest_there_is(
    drafting: Drafting, nodes: int, depth: int
) -> None:
    whole = drafting.grow(BestFirst(nodes, depth, VOCABULARY * 2 if depth == 1 else 12))
    every = [
        path
        for size in range(1, depth + 1)
        for path in itertools.product(range(VOCABULARY), repeat=size)
        if drafting.likelihood(path) > 0
    ]
    every.sort(key=lambda path: -drafting.likelihood(path))
    assert set(paths_of(whole.draft)) == set(every[:nodes])


@settings(max_examples=80)
@given(
    drafters.filter(lambda drafting: not drafting.proposal.draws),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sets(st.integers(0, VOCABULARY - 1), max_size=3),
)
def test_a_best_first_tree_looks_where_it_is_likeliest(
    drafting: Drafting, nodes: int, depth: int, width: int, ends: set[int]
) -> None:
    """Pass by pass: the likeliest nodes that were not looked at get their likeliest children."""
    drafting = Drafting(drafting.model, drafting.proposal, drafting.position, tuple(ends))
    shape = BestFirst(nodes, depth, width)
    whole = drafting.grow(shape)
    grown: list[Prefix] = []
    waiting: list[Prefix] = [()]
    for _ in range(depth):
        looked, waiting = waiting[:width], waiting[width:]
        for prefix in looked:
            children = [(*prefix, token) for token in drafting.ranked(prefix)[:width]]
            grown += children
            waiting += [path for path in children if path[-1] not in ends]
        waiting.sort(key=drafting.likelihood, reverse=True)
    kept = sorted(grown, key=drafting.likelihood, reverse=True)[:nodes]
    paths = paths_of(whole.draft)
    assert paths == [path for path in grown if path in set(kept)]
    assert not any(token in ends for path in paths for token in path[:-1])
    assert whole.best == max(
        paths, key=lambda p: (p not in {q[:-1] for q in paths}, drafting.likelihood(p))
    )
    assert whole.draft.depth == max(map(len, paths))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2), (3, 1)])
def test_a_draft_whose_verdicts_do_not_matter_is_the_same_without_them(
    sizes: tuple[int, ...],
) -> None:
    for seed in range(10):
        proposal = ProposalConfig("greedy", GREEDY)
        model = Model(seed, VOCABULARY, 1.5)
        knowing = Drafting(model, proposal, 3).grow(Expansion(sizes))
        plain = Drafting(model, proposal, 3, guesses=False).grow(Expansion(sizes))
        assert plain.draft.tokens == knowing.draft.tokens
        assert plain.draft.parents == knowing.draft.parents
        assert (plain.leaves, plain.guesses, plain.seconds, plain.confidence) == ((), (), (), 0.0)
        first = tuple(own(model, len(sizes)))  # each time the first child: the likeliest token
        assert plain.best == first
        assert paths_of(plain.draft)[plain.leaf] == first


def own(model: Model, length: int) -> list[int]:
    tokens: list[int] = []
    for _ in range(length):
        tokens.append(int(model.logits(tuple(tokens)).argmax()))
    return tokens


def test_nothing_follows_an_end_token() -> None:
    for seed in range(20):
        model = Model(seed, VOCABULARY, 1.5)
        first = own(model, 1)[0]
        drafting = Drafting(model, ProposalConfig("greedy", GREEDY), 0, (first,))
        assert drafting.grow(chain(4)).draft.tokens == (first,)
        tree = drafting.grow(Expansion((2, 2)))
        ended = [node for node, token in enumerate(tree.draft.tokens) if token == first]
        assert ended
        assert all(not list(tree.draft.children(node)) for node in ended)


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (chain(5), 5),
        (Expansion((2, 2, 2)), 14),
        (Expansion((3, 1, 2)), 12),
        (Expansion(()), 0),
        (BestFirst(7, 3, 2), 7),
    ],
)
def test_a_shape_says_how_many_nodes_it_has_at_most(shape: Shape, most: int) -> None:
    assert shape.most == most
    drafting = Drafting(Model(1, VOCABULARY, 1.0), ProposalConfig("greedy", GREEDY), 0)
    if most:
        assert len(drafting.grow(shape).draft) == most
    for depth in range(1, 7):
        short = shape.within(depth)
        assert short.depth == min(depth, shape.depth)
        assert type(short) is type(shape)
        assert short.within(depth) == short
        if isinstance(shape, Expansion):
            assert short == Expansion(shape.sizes[:depth])
        else:
            assert (short.nodes, short.width) == (shape.nodes, shape.width)  # type: ignore[union-attr]


def test_branches_are_the_same_by_what_they_are() -> None:
    assert Branch((1, 2), chain(3)) == Branch((1, 2), Expansion((1, 1, 1)))
    assert len({Branch((1,), chain(2)), Branch((1,), chain(2)), Branch((1,), chain(3))}) == 2


# The draft itself


trees = st.integers(1, 40).flatmap(
    lambda size: st.tuples(*(st.integers(-1, node - 1) for node in range(size)))
)


@given(trees, st.booleans(), st.data())
def test_a_path_is_what_leads_from_the_prefix_down_and_nothing_else(
    parents: tuple[int, ...], chained: bool, data: st.DataObject
) -> None:
    size = len(parents)
    if chained:
        parents = tuple(range(-1, size - 1))
    draft = Draft(tuple(range(100, 100 + size)), None if chained else parents)
    nodes: list[tuple[int, ...]] = []
    for node in range(size):
        nodes.append((*(nodes[parents[node]] if parents[node] >= 0 else ()), node))
    whole = {(), *nodes}
    assert draft.depth == max(map(len, nodes))
    assert draft.inner == tuple(sorted(set(parents)))
    for path in whole:
        assert draft.path_tokens(path) == tuple(100 + node for node in path)
    other = tuple(data.draw(st.lists(st.integers(-2, size + 1), max_size=6)))
    assert (draft.path_tokens(other) is not None) == (other in whole)


def test_a_path_may_be_as_long_as_a_draft() -> None:
    for parents in (None, tuple(range(-1, MAX_NODES - 1))):
        draft = Draft(tuple(range(MAX_NODES)), parents)
        assert draft.depth == MAX_NODES
        assert draft.path_tokens(tuple(range(MAX_NODES))) == draft.tokens
        assert [list(draft.children(node)) for node in (300, MAX_NODES - 1)] == [[301], []]
