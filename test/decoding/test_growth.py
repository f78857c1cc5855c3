"""How a draft grows, against its definition: every prefix looked at, likelihoods multiplied out."""

from __future__ import annotations

import itertools

import pytest
from helpers.drafting import VOCABULARY, Drafting, Prefix
from helpers.exactness import Model
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import (
    MAX_ENDS,
    NEAR,
    FinishedDraft,
    ProposalConfig,
    candidates,
    coupled_token,
)
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.shape import BestFirst, Expansion, chain


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


def check_whole(drafting: Drafting, finished: FinishedDraft, near: int) -> None:
    """What a draft says of its verdict, from nothing but its tokens; ``near``: looked at."""
    paths = paths_of(finished.draft)
    inner = {path[:-1] for path in paths}
    leaves = sorted(
        [(path, drafting.likelihood(path)) for path in paths if path not in inner],
        key=lambda leaf: -leaf[1],
    )
    close(leaves[:MAX_ENDS], finished.leaves)
    assert finished.best == leaves[0][0] == paths[finished.leaf]
    assert finished.confidence == pytest.approx(leaves[0][1])
    seconds = []
    for n, token in enumerate(finished.best):
        others = [other for other in drafting.ranked(finished.best[:n]) if other != token]
        seconds.append(others[0] if others else -1)
    assert finished.second_choices == tuple(seconds)
    drafted = set(paths)
    recoveries = [
        ((*prefix, token), drafting.likelihood((*prefix, token)))
        for prefix in {path[:-1]: None for path in paths}
        for token in drafting.ranked(prefix)[:near]
        if (*prefix, token) not in drafted
    ]
    recoveries.sort(key=lambda end: -end[1])
    close(recoveries[:MAX_ENDS], finished.recoveries)


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
    finished = drafting.grow(Expansion(sizes))
    paths = paths_of(finished.draft)
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
        check_whole(drafting, finished, near[sizes[0]])
    assert (finished.draft.parents is None) == (
        paths == [finished.best[: n + 1] for n in range(len(paths))]
    )
    assert (finished.draft.rows is not None) == proposal.draws
    if proposal.draws:
        assert len(finished.draft.rows or ()) == len(finished.draft.inner)


@settings(max_examples=80)
@given(
    drafters.filter(lambda drafting: not drafting.proposal.draws),
    st.integers(1, 12),
    st.integers(1, 3),
)
def test_a_best_first_tree_that_may_look_everywhere_is_the_likeliest_there_is(
    drafting: Drafting, nodes: int, depth: int
) -> None:
    finished = drafting.grow(BestFirst(nodes, depth, VOCABULARY * 2 if depth == 1 else 12))
    every = [
        path
        for size in range(1, depth + 1)
        for path in itertools.product(range(VOCABULARY), repeat=size)
        if drafting.likelihood(path) > 0
    ]
    every.sort(key=lambda path: -drafting.likelihood(path))
    assert set(paths_of(finished.draft)) == set(every[:nodes])


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
    finished = drafting.grow(shape)
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
    paths = paths_of(finished.draft)
    assert paths == [path for path in grown if path in set(kept)]
    assert not any(token in ends for path in paths for token in path[:-1])
    assert finished.best == max(
        paths, key=lambda p: (p not in {q[:-1] for q in paths}, drafting.likelihood(p))
    )
    assert finished.draft.depth == max(map(len, paths))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2), (3, 1)])
def test_a_draft_whose_verdicts_do_not_matter_is_the_same_without_them(
    sizes: tuple[int, ...],
) -> None:
    for seed in range(10):
        proposal = ProposalConfig("greedy", GREEDY)
        model = Model(seed, VOCABULARY, 1.5)
        knowing = Drafting(model, proposal, 3).grow(Expansion(sizes))
        plain = Drafting(model, proposal, 3, with_likelihoods=False).grow(Expansion(sizes))
        assert plain.draft.tokens == knowing.draft.tokens
        assert plain.draft.parents == knowing.draft.parents
        assert (plain.leaves, plain.recoveries, plain.second_choices, plain.confidence) == (
            (),
            (),
            (),
            0.0,
        )
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
