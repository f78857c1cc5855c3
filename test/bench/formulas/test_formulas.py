"""The cost formulas that all papers share: tokens of a round, split layers, the draft's length."""

from __future__ import annotations

import math
from itertools import product

import pytest
from helpers.cost_units import LENGTHS, MS, SHARES, TIMES
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.lab.bench.formulas import (
    best_draft_length,
    expected_accepted,
    expected_tokens,
    expected_tokens_by_depth,
    layer_split_time,
    stop_and_wait_time,
    streamed_tokens,
)


@given(st.lists(SHARES, max_size=6))
def test_expected_accepted_is_the_mean_over_every_outcome(acceptances: list[float]) -> None:
    mean = 0.0
    for outcome in product((True, False), repeat=len(acceptances)):
        chance = math.prod(
            a if kept else 1 - a for a, kept in zip(acceptances, outcome, strict=True)
        )
        mean += chance * (*outcome, False).index(False)
    assert expected_accepted(acceptances) == pytest.approx(mean)
    assert expected_tokens_by_depth(acceptances) == expected_accepted(acceptances) + 1


@given(st.floats(0, 0.99), st.integers(0, 40))
def test_expected_tokens_is_the_closed_form(acceptance: float, length: int) -> None:
    closed = (1 - acceptance ** (length + 1)) / (1 - acceptance)
    assert expected_tokens(acceptance, length) == pytest.approx(closed)


@given(SHARES, SHARES, LENGTHS)
def test_expected_tokens_grow_with_the_acceptance_up_to_the_bonus(
    one: float, other: float, length: int
) -> None:
    low, high = sorted((one, other))
    fewer, more = expected_tokens(low, length), expected_tokens(high, length)
    assert 1 <= fewer <= more <= length + 1
    assert expected_tokens(0, length) == 1
    assert expected_tokens(1, length) == length + 1
    assert expected_tokens(1 - 1e-15, length) == pytest.approx(length + 1)


@given(SHARES, LENGTHS)
def test_a_streamed_round_is_the_round_without_its_bonus(acceptance: float, length: int) -> None:
    bonus = acceptance**length
    assert streamed_tokens(acceptance, length) == pytest.approx(
        expected_tokens(acceptance, length) - bonus
    )


@pytest.mark.parametrize("acceptances", [[1.1], [0.5, -0.1], [math.nan]])
def test_what_is_no_probability_is_refused(acceptances: list[float]) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        expected_accepted(acceptances)


def test_layer_split_pays_a_round_trip_for_each_token() -> None:
    """SpecEdge 5.3: 99.63 ms at 15 ms RTT; at 50 ms that gives 134.63, and 134.90 is printed."""
    computed = 99.63 - 15
    at_50 = layer_split_time(0.25, computed * MS, computed * MS, 50 * MS) / MS
    assert f"{at_50:.2f}" == "134.63"
    assert at_50 == pytest.approx(134.90, abs=0.3)


@given(SHARES, TIMES, TIMES, TIMES)
def test_layer_split_lies_between_its_ends(
    share: float, edge: float, cloud: float, rtt: float
) -> None:
    assert layer_split_time(0, edge, cloud, rtt) == pytest.approx(rtt + cloud)
    assert layer_split_time(1, edge, cloud, rtt) == pytest.approx(rtt + edge)
    computed = layer_split_time(share, edge, cloud, 0)
    assert min(edge, cloud) * (1 - 1e-9) <= computed <= max(edge, cloud) * (1 + 1e-9)


@given(st.floats(0.01, 0.99), TIMES, TIMES, TIMES, TIMES)
def test_a_slower_link_never_asks_for_a_shorter_draft(
    acceptance: float, draft: float, verify: float, one: float, other: float
) -> None:

    def best(link: float) -> int:
        return best_draft_length(
            lambda n: expected_tokens(acceptance, n),
            lambda n: stop_and_wait_time(n, draft, link, verify),
            range(1, 20),
        )

    quick, slow = sorted((one, other))
    assert best(quick) <= best(slow)


def test_best_draft_length_at_its_limits() -> None:
    def best(acceptance: float, draft: float) -> int:
        return best_draft_length(
            lambda n: expected_tokens(acceptance, n),
            lambda n: stop_and_wait_time(n, draft, 0.02, 0.05),
            range(9),
        )

    assert best(0.0, 0.01) == 0  # nothing is ever accepted
    assert best(0.5, 0.0) == 8  # drafting is free
    assert best(0.0, 0.0) == 0  # all are equal: the first
    assert 0 < best(0.7, 0.01) < 8
    with pytest.raises(ValueError):
        best_draft_length(float, float, ())
