"""What the cloud tells of P for a split resampling: what it holds, and what it cannot be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.split import (
    SparseResidual,
    Split,
    fallback_error,
    largest,
    residual_error,
    sparse_residual,
)
from edge_cloud_spec.decoding.token_distribution import TokenDistribution

SIZE = 12


@st.composite
def rows(draw: st.DrawFn, least: int = 1) -> TokenDistribution:
    """A distribution over twelve tokens; dense, or of some of them."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    kept = draw(st.integers(least, SIZE))
    shares = random.dirichlet(np.full(kept, draw(st.sampled_from([0.3, 1.0, 5.0])))) + 1e-6
    shares /= shares.sum()
    if kept == SIZE:
        return TokenDistribution(shares.astype(np.float32))
    return TokenDistribution(
        shares.astype(np.float32), np.sort(random.choice(SIZE, kept, replace=False))
    )


def table(row: TokenDistribution) -> dict[int, float]:
    return {token: row.at(token) for token in range(SIZE) if row.at(token)}


@given(rows(), st.integers(1, SIZE + 2), st.integers(0, 5), st.integers(0, 99))
def test_a_sparse_residual_holds_the_largest_and_draws_from_the_rest(
    target: TokenDistribution, top_k: int, tail: int, seed: int
) -> None:
    known = table(target)
    told = sparse_residual(target, Split("sparse", top_k, tail), 3, SeededRandomSource(seed))
    top = told.top.tolist()
    assert len(top) == min(top_k, len(known)) == len(told.top_probabilities)
    assert top == sorted(top)
    rest = {token: share for token, share in known.items() if token not in top}
    assert min(known[token] for token in top) >= max(rest.values(), default=0.0) - 1e-12
    assert told.top_probabilities == pytest.approx([known[token] for token in top])
    assert told.tail_mass == pytest.approx(sum(rest.values()), abs=1e-9)
    assert len(told.tail_tokens) == (tail if rest else 0)
    assert all(token in rest for token in told.tail_tokens)
    assert told.tail_probabilities == pytest.approx([known[t] for t in told.tail_tokens])


@given(rows(), rows(), st.integers(1, SIZE), st.integers(0, 5))
def test_what_an_honest_cloud_tells_is_never_refused(
    target: TokenDistribution, draft: TokenDistribution, top_k: int, tail: int
) -> None:
    if target.ids is None and draft.ids is None:
        assert residual_error(target, Split("dense"), draft, SIZE) == ""
    ids, shares = largest(target, top_k)
    assert residual_error(TokenDistribution(shares, ids), Split("top_k", top_k), draft, SIZE) == ""
    split = Split("sparse", top_k, tail)
    told = sparse_residual(target, split, 0, SeededRandomSource(1))
    assert residual_error(told, split, draft, SIZE) == ""
    if told.tail_mass:
        assert fallback_error(target, told, draft, SIZE) == ""


DENSE_Q = TokenDistribution(np.full(4, 0.25))
SPARSE_Q = TokenDistribution(np.array([0.5, 0.5]), np.array([1, 3]))
TOLD = SparseResidual(np.array([0, 2]), np.array([0.5, 0.25]), 0.25, (1, 3), (0.125, 0.125))
SPARSE = Split("sparse", 2, 2)


def told(**changes: object) -> SparseResidual:
    return replace(TOLD, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("draft", [DENSE_Q, SPARSE_Q])
@pytest.mark.parametrize(
    ("residual", "complaint"),
    [
        (TOLD, ""),
        (told(tail_tokens=(1,), tail_probabilities=(0.125,)), ""),
        (told(tail_mass=0.2505), ""),  # rounding
        (told(tail_mass=0.26), "do not sum to 1"),
        (told(tail_mass=0.24), "do not sum to 1"),
        (told(tail_mass=-0.25), "do not sum to 1"),
        (told(tail_mass=float("nan")), "do not sum to 1"),
        (told(top_probabilities=np.array([1.25, -0.5])), "not a probability"),
        (told(top=np.array([0, 4])), "do not ascend within"),
        (told(top=np.array([2, 0])), "do not ascend within"),
        (told(tail_tokens=(1, 2)), "the tail token 2"),
        (told(tail_tokens=(1, 4)), "the tail token 4"),
        (told(tail_tokens=(1, -1)), "the tail token -1"),
        (told(tail_probabilities=(0.125, 0.0)), "not the probability of a tail token"),
        (told(tail_probabilities=(0.125, 1.0)), ""),
        (told(tail_probabilities=(0.125, 1.01)), "not the probability of a tail token"),
        (
            told(tail_tokens=(1, 3, 3), tail_probabilities=(0.1, 0.1, 0.1)),
            "more than was asked for",
        ),
        (
            told(top=np.array([0, 1, 2]), top_probabilities=np.full(3, 0.25), tail_tokens=(3,)),
            "more than was asked for",
        ),
        (DENSE_Q, "not of the kind sparse"),
    ],
)
def test_a_sparse_residual_that_cannot_be_is_named(
    residual: SparseResidual | TokenDistribution, complaint: str, draft: TokenDistribution
) -> None:
    error = residual_error(residual, SPARSE, draft, 4)
    assert bool(error) == bool(complaint)
    assert complaint in error


def test_tail_tokens_and_their_probabilities_go_together() -> None:
    with pytest.raises(ValueError, match="argument"):
        residual_error(told(tail_probabilities=(0.125,)), SPARSE, DENSE_Q, 4)


def part(*shares: float) -> TokenDistribution:
    return TokenDistribution(np.array(shares), np.arange(len(shares)))


@pytest.mark.parametrize(
    ("row", "split", "draft", "complaint"),
    [
        (DENSE_Q, Split("dense"), DENSE_Q, ""),
        (DENSE_Q, Split("dense"), SPARSE_Q, ""),
        (TokenDistribution(np.full(3, 1 / 3)), Split("dense"), DENSE_Q, "shape"),
        (
            TokenDistribution(np.full(3, 1 / 3)),
            Split("dense"),
            SPARSE_Q,
            "shape",
        ),  # Q has a token 3
        (
            TokenDistribution(np.full(5, 0.2)),
            Split("dense"),
            SPARSE_Q,
            "shape",
        ),  # beyond the vocabulary
        (TokenDistribution(np.full(4, 0.2502)), Split("dense"), DENSE_Q, ""),
        (TokenDistribution(np.full(4, 0.26)), Split("dense"), DENSE_Q, "does not sum to 1"),
        (TokenDistribution(np.full(4, 0.24)), Split("dense"), DENSE_Q, "does not sum to 1"),
        (TOLD, Split("dense"), DENSE_Q, "not of the kind dense"),
        (TOLD, Split("top_k", 2), DENSE_Q, "not of the kind top_k"),
        (part(0.5, 0.2), Split("top_k", 2), DENSE_Q, ""),
        (part(0.5, 0.5), Split("top_k", 2), DENSE_Q, ""),
        (part(0.5, 0.2), Split("top_k", 1), DENSE_Q, "not the largest 1"),
        (part(0.5, 0.6), Split("top_k", 2), DENSE_Q, "not the largest 2"),
        (part(0.0, 0.0), Split("top_k", 2), DENSE_Q, "not the largest 2"),
        (DENSE_Q, Split("top_k", 4), DENSE_Q, "not the largest 4"),
        (
            TokenDistribution(np.array([0.5]), np.array([4])),
            Split("top_k", 2),
            SPARSE_Q,
            "do not ascend",
        ),
    ],
)
def test_a_row_that_cannot_be_told_of_p_is_named(
    row: TokenDistribution | SparseResidual, split: Split, draft: TokenDistribution, complaint: str
) -> None:
    error = residual_error(row, split, draft, 4)
    assert bool(error) == bool(complaint)
    assert complaint in error


@pytest.mark.parametrize(
    ("row", "draft", "complaint"),
    [
        (DENSE_Q, DENSE_Q, ""),
        (TokenDistribution(np.full(4, 0.26)), DENSE_Q, "does not sum to 1"),
        (TokenDistribution(np.full(4, 0.24)), DENSE_Q, "does not sum to 1"),
        (TokenDistribution(np.full(3, 1 / 3)), DENSE_Q, "shape"),
        (
            TokenDistribution(np.full(2, 0.5)),
            TokenDistribution(np.ones(1), np.array([0])),
            "too short",
        ),
        (TokenDistribution(np.full(3, 1 / 3)), TokenDistribution(np.ones(1), np.array([0])), ""),
        (TokenDistribution(np.array([0.5, 0.0, 0.5, 0.0])), DENSE_Q, "nothing outside"),
        (TokenDistribution(np.array([0.5, 0.5]), np.array([0, 2])), DENSE_Q, "nothing outside"),
        (TokenDistribution(np.array([0.5, 0.5]), np.array([0, 1])), DENSE_Q, ""),
        (TokenDistribution(np.array([0.5, -0.5, 0.5, 0.5])), DENSE_Q, "not a probability"),
    ],
)
def test_a_dense_row_that_cannot_be_what_was_told_in_short_is_named(
    row: TokenDistribution, draft: TokenDistribution, complaint: str
) -> None:
    error = fallback_error(row, TOLD, draft, 4)
    assert bool(error) == bool(complaint)
    assert complaint in error
