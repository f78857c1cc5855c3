"""How many looked-up nodes a pass is given follows what they gain and what they cost."""

from __future__ import annotations

import pytest

from edge_cloud_spec.lookup import NodeBudget

MOST = 16


def cheap(rows: int) -> float:
    return 1.0 + 0.001 * rows


def dear(rows: int) -> float:
    return 0.01 + 1.0 * rows


def taught(accepted: int, nodes: int, passes: int = 200) -> NodeBudget:
    """Of so many nodes, a chain, the first ones were right."""
    budget = NodeBudget(MOST)
    for _ in range(passes):
        budget.judged(nodes, tuple(range(accepted)), accepted + 1)
    return budget


@pytest.mark.parametrize("cost", [cheap, lambda rows: 0.0])
def test_before_anything_is_known_it_tries_all(cost) -> None:
    assert NodeBudget(MOST).nodes(1, cost) == MOST


def test_none_where_none_are_allowed() -> None:
    assert NodeBudget(0).nodes(1, cheap) == 0


@pytest.mark.parametrize("accepted", [0, 3, 9])
def test_it_takes_those_that_are_right(accepted: int) -> None:
    assert taught(accepted, MOST).nodes(1, cheap) == accepted


def test_it_takes_none_where_a_row_costs_as_much_as_a_pass() -> None:
    budget = NodeBudget(MOST)
    for number in range(200):
        right = tuple(range(9)) if number % 2 else ()
        budget.judged(MOST, right, len(right) + 1)
    assert (budget.nodes(1, dear), budget.nodes(1, cheap)) == (0, 9)


def test_beside_a_draft_that_settles_much_a_node_has_to_gain_more() -> None:
    rich, poor = NodeBudget(MOST), NodeBudget(MOST)
    for _ in range(200):
        rich.judged(MOST, (0,), 8)
        poor.judged(MOST, (0,), 2)

    def cost(rows: int) -> float:
        return 1.0 + 0.2 * rows

    assert (rich.nodes(1, cost), poor.nodes(1, cost)) == (0, 1)


def test_what_was_not_tried_for_long_is_tried_again() -> None:
    budget = taught(0, MOST)
    assert budget.nodes(1, cheap) == 0
    for _ in range(5000):
        budget.judged(0, (), 1)
    assert budget.nodes(1, cheap) == MOST


def test_where_nothing_is_ever_right_it_costs_hardly_anything() -> None:
    budget, tried = NodeBudget(MOST), []
    for _ in range(600):
        nodes = budget.nodes(1, lambda rows: 1.0 + 0.05 * rows)
        budget.judged(nodes, (), 1)
        tried.append(nodes)
    assert sum(tried[:100]) < 200 and sum(tried[100:]) < 100
