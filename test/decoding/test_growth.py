"""How a draft grows, and what a draft is."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.drafting import VOCABULARY, Drafting, Prefix, paths_of
from helpers.exactness import Model, own_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.draft import MAX_NODES, BadDraft, Draft, check_draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.propose import (
    MAX_ENDS,
    NEAR_TOKENS,
    FinishedDraft,
    ProposalConfig,
    candidates,
    coupled_token,
)
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.shape import BestFirst, Expansion
from edge_cloud_spec.decoding.token_distribution import TokenDistribution


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
                shared = proposal.rule != "rejection"  # the noise is
                assert found == (alone if shared and size == 1 else ranked)
                assert not shared or found[0] == alone[0]
            grown += [(*prefix, token) for token in found]
        level = grown
        expected += grown
    assert paths == expected
    near = {size: size + NEAR_TOKENS for size in sizes}
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
        first = tuple(
            own_tokens(model, GREEDY, 0, len(sizes))
        )  # each time the first child: the likeliest token
        assert plain.best == first
        assert paths_of(plain.draft)[plain.leaf] == first


ROW = (TokenDistribution(np.full(4, 0.25, np.float32)),)


def rows_with(value: float) -> tuple[TokenDistribution, ...]:
    row = np.full(4, 0.25, np.float32)
    row[0] = value
    return (TokenDistribution(row),)


def sparse(*ids: int) -> tuple[TokenDistribution, ...]:
    return (TokenDistribution(np.full(len(ids), 1 / len(ids), np.float32), np.array(ids)),)


@pytest.mark.parametrize(
    ("draft", "complaint"),
    [
        (Draft(()), "at least one token"),
        (Draft((0,) * (MAX_NODES + 1)), f"at most {MAX_NODES} tokens"),
        (Draft((0,) * 10**6, tuple(range(-1, 10**6 - 1))), f"at most {MAX_NODES} tokens"),
        (Draft((4,)), "outside the vocabulary of 4"),
        (Draft((-1,)), "outside the vocabulary of 4"),
        (Draft((1, 1), (-1,)), "2 tokens but 1 parents"),
        (Draft((1, 1), (-1, 1)), "parent of node 1"),  # its own parent
        (Draft((1, 1), (1, -1)), "parent of node 0"),  # points forward
        (Draft((1, 1), (-1, -2)), "parent of node 1"),
        (Draft((1,), rows=(TokenDistribution(np.full(3, 1 / 3, np.float32)),)), "shape"),
        (Draft((1,), rows=(TokenDistribution(np.zeros(0, np.float32)),)), "shape"),
        (Draft((1,), rows=(TokenDistribution(np.ones(2, np.float32), np.array([1])),)), "shape"),
        (Draft((1, 1), rows=ROW), "needs 2 rows, not 1"),
        (Draft((1, 1), (-1, -1), ROW * 2), "needs 1 rows, not 2"),
        (Draft((1,), rows=sparse(1, 4)), "do not ascend within"),
        (Draft((1,), rows=sparse(-1, 1)), "do not ascend within"),
        (Draft((1,), rows=sparse(1, 1)), "do not ascend within"),
        (Draft((1,), rows=sparse(2, 1)), "do not ascend within"),
        (Draft((1,), rows=sparse(0, 2)), "no probability in the row"),
        (Draft((1,), values=(0.5, 0.5)), "1 tokens but 2 probabilities"),
        (Draft((1,), values=(0.0,)), "not the probability"),
        (Draft((1,), values=(np.nan,)), "not the probability"),
        (Draft((1,), values=(1.5,)), "not the probability"),
        (Draft((1,), rows=rows_with(np.nan)), "not a probability"),
        (Draft((1,), rows=rows_with(np.inf)), "not a probability"),
        (Draft((1,), rows=rows_with(-0.25)), "not a probability"),
        (Draft((1,), rows=rows_with(1.5)), "does not sum to 1"),
        (Draft((1,), rows=(TokenDistribution(np.zeros(4, np.float32)),)), "does not sum to 1"),
        (Draft((1,), looked_up=-1), "of which -1 were looked up"),
        (Draft((1,), looked_up=2), "of which 2 were looked up"),
        (Draft((1, 1), rows=ROW * 2, looked_up=1), "needs 1 rows, not 2"),
        (Draft((1, 1), rows=ROW, looked_up=2), "needs 0 rows, not 1"),
        (Draft((1, 1), values=(0.5, 0.5), looked_up=1), "1 tokens but 2 probabilities"),
        (Draft((1, 1), (-1, 1), rows=ROW, looked_up=1), "parent of node 1"),
        (Draft((1, 1), (1, -1), rows=ROW, looked_up=1), "parent of node 0"),
    ],
)
def test_a_malformed_draft_is_refused_by_name(draft: Draft, complaint: str) -> None:
    with pytest.raises(BadDraft, match=complaint):
        check_draft(draft, 4)


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
    check_draft(draft, 100 + size)
    children = {node: [c for c in range(size) if parents[c] == node] for node in range(-1, size)}
    assert {node: list(draft.children(node)) for node in children} == children
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
