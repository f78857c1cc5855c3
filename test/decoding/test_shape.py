"""What a shape says of itself: its size, its depth, and what is the same shape."""

from __future__ import annotations

import pytest
from helpers.drafting import VOCABULARY, Drafting
from helpers.exactness import Model

from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.decoding.propose import ProposalConfig
from edge_cloud_spec.decoding.shape import BestFirst, Branch, Expansion, Shape, chain


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
    assert shape.max_nodes == most
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
