"""The cost model of auto."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.cost_model import (
    EXIT_DEPTH,
    Costs,
    profile,
    rate,
    signature,
    specedge_depth,
)
from edge_cloud_spec.decoding.preset import STOP_AND_WAIT, Speculation
from edge_cloud_spec.decoding.propose import MAX_ENDS, NEAR_TOKENS
from edge_cloud_spec.decoding.shape import BestFirst, Expansion, Shape, chain

WORDS = 12  # of the vocabulary that a profile is grown over

shares = st.integers(1, 39).map(lambda n: n / 40)  # as coarse as the model takes them
times = st.floats(1e-3, 2.0)
lengths = st.integers(1, 8)


def ranked(acceptance: float, runner_up: float) -> list[float]:
    """How likely the first, second and further choices of a calibrated drafter are right."""
    wrong = 1 - acceptance
    rest = wrong * (1 - runner_up) / (WORDS - 2)
    return sorted([acceptance, wrong * runner_up, *[rest] * (WORDS - 2)], reverse=True)


@settings(max_examples=60)
@given(st.sampled_from([(1,), (1, 1, 1), (2,), (2, 2), (2, 1, 2), (2, 2, 2)]), shares, shares)
def test_a_profile_counts_out_what_becomes_of_an_expansion(
    sizes: tuple[int, ...], acceptance: float, runner_up: float
) -> None:
    chances = ranked(acceptance, runner_up)
    assume(chances[1] > chances[2] * 1.001)  # what is drafted is not one of several alike
    told = profile(Expansion(sizes), acceptance, runner_up)
    level, reached, recoveries, rows = [1.0], 0.0, [], []
    for size in sizes:
        rows.append(len(level))
        recoveries += [p * chance for p in level for chance in chances[size : size + NEAR_TOKENS]]
        level = [p * chance for p in level for chance in chances[:size]]
        reached += sum(level)
    assert told.rows == tuple(rows)
    assert told.nodes == Expansion(sizes).max_nodes
    assert told.tokens == pytest.approx(1 + reached, rel=1e-4)
    assert told.leaves == pytest.approx(sorted(level, reverse=True)[:MAX_ENDS], rel=1e-4)
    best = sorted(recoveries, reverse=True)[:MAX_ENDS]
    assert told.recoveries == pytest.approx(best, rel=1e-3, abs=1e-6)


@given(shares, shares, st.integers(1, 8), st.integers(1, 4))
def test_a_wider_or_larger_tree_never_yields_less(
    acceptance: float, runner_up: float, nodes: int, depth: int
) -> None:
    small = profile(BestFirst(nodes, depth, 2), acceptance, runner_up)
    assert small.nodes <= nodes and len(small.rows) <= depth and max(small.rows) <= 2
    assert sum(small.leaves) <= 1 + 1e-6
    for shape in (BestFirst(nodes + 1, depth, 2), BestFirst(nodes, depth + 1, 2)):
        assert profile(shape, acceptance, runner_up).tokens >= small.tokens - 1e-6


def flat(draft: float, verify: float, one_way: float, acceptance: float = 1.0) -> Costs:
    """Passes that cost the same however many nodes they have."""
    return Costs(lambda nodes: draft, lambda nodes: verify, verify, one_way, acceptance, 0.5)


def growing(draft: float, verify: float, one_way: float, acceptance: float) -> Costs:
    """Passes that cost more the more nodes they have."""
    return Costs(
        lambda nodes: draft * (1 + nodes / 8),
        lambda nodes: verify * (1 + nodes / 16),
        verify,
        one_way,
        acceptance,
        0.5,
        0.4,
    )


@given(
    st.sampled_from([chain(4), Expansion((2, 2)), BestFirst(6, 3, 2)]), times, times, times, shares
)
def test_stop_and_wait_drafts_sends_and_waits(
    shape: Shape, draft: float, verify: float, one_way: float, acceptance: float
) -> None:
    told = profile(shape, acceptance, 0.5)
    costs = growing(draft, verify, one_way, acceptance)
    drafting = sum(draft * (1 + rows / 8) for rows in told.rows)
    seconds = verify * (1 + told.nodes / 16) + 2 * one_way + drafting
    assert rate(shape, STOP_AND_WAIT, costs) == pytest.approx(told.tokens / seconds)


STREAM = Speculation(all_accepted=True, open=True, push=True, ahead=4)
BONUS = Speculation(all_accepted=True, push=True, ahead=1)


@given(lengths, times, times, times, st.integers(1, 6))
def test_right_drafts_go_at_the_pace_of_the_slower_side(
    length: int, draft: float, verify: float, one_way: float, ahead: int
) -> None:
    """Nothing waits for the link, unless drafts ahead are too few to cover a round trip; without
    pushing the verdict is heard before the next draft goes; a bonus that is guessed costs a pass
    and is a token."""
    drafting, trip = length * draft, 2 * one_way
    held, serial = max(0.0, trip - (ahead - 1) * verify), verify + trip + drafting
    for told, tokens, seconds in (
        (replace(STREAM, ahead=ahead), length, min(max(verify, held + drafting), serial)),
        (replace(STREAM, push=False, ahead=1), length, max(verify + trip, drafting)),
        (BONUS, length + 1, min(max(verify, trip + draft + drafting), serial)),
    ):
        promised = rate(chain(length), told, flat(draft, verify, one_way))
        assert promised == pytest.approx(tokens / seconds, rel=1e-4)


@given(lengths, times, times, times, shares, shares)
def test_what_an_exit_predicts_is_drafted_before_the_verdict_is_heard(
    length: int, draft: float, verify: float, one_way: float, acceptance: float, exits: float
) -> None:
    """A predicted round goes on sooner; of the others nothing is known."""
    costs = replace(flat(draft, verify, one_way, acceptance), exits=exits)
    told = Speculation(exits=True, ahead=1)
    heard, drafting = verify + 2 * one_way, length * draft
    predicted = EXIT_DEPTH * verify + 2 * one_way + draft / 2
    hit = min(max(heard, predicted + drafting), heard + drafting)
    seconds = exits * hit + (1 - exits) * (heard + drafting)
    tokens = profile(chain(length), acceptance, 0.5).tokens
    assert rate(chain(length), told, costs) == pytest.approx(tokens / seconds, rel=1e-4)


@given(lengths, st.integers(1, 8), times, times, times)
def test_a_draft_that_is_cut_is_as_long_as_the_pass_before_it_allows(
    length: int, cut: int, draft: float, verify: float, one_way: float
) -> None:
    """All are right: level follows level, so that what one round has no time for is the next's."""
    assume(cut <= length)
    told = replace(STREAM, cut=cut, ahead=8)
    held = max(0.0, 2 * one_way - 7 * verify)
    assume(held == 0.0)
    serial = verify + 2 * one_way + cut * draft
    seconds = min(max(verify, cut * draft), serial)
    depth = min(length, max(cut, seconds / draft))
    assert rate(chain(length), told, flat(draft, verify, one_way)) == pytest.approx(
        depth / seconds, rel=1e-4
    )


shapes = st.sampled_from([chain(1), chain(4), BestFirst(8, 3, 2), BestFirst(16, 4, 3)])
pipelines = st.builds(
    Speculation,
    all_accepted=st.just(True),
    open=st.booleans(),
    runners_up=st.booleans(),
    exits=st.booleans(),
    push=st.booleans(),
    ahead=st.integers(1, 6),
    cut=st.integers(0, 3),
    width=st.sampled_from([1, 4, 16]),
)


@settings(max_examples=150)
@given(shapes, pipelines, times, times, times, shares, st.sampled_from([0.25, 3.0]))
def test_a_promise_is_in_tokens_a_second(
    shape: Shape,
    told: Speculation,
    draft: float,
    verify: float,
    one_way: float,
    acceptance: float,
    slower: float,
) -> None:
    """Twice the times, half the rate; no more than the shape's tokens in a pass."""
    costs = growing(draft, verify, one_way, acceptance)
    promised = rate(shape, told, costs)
    scaled = growing(slower * draft, slower * verify, slower * one_way, acceptance)
    assert rate(shape, told, scaled) == pytest.approx(promised / slower, rel=1e-6)
    assert 0 < promised <= profile(shape, acceptance, 0.5).tokens / verify


@settings(max_examples=150)
@given(shapes, pipelines, times, times, times, shares)
def test_guessing_is_never_slower_than_waiting(
    shape: Shape, told: Speculation, draft: float, verify: float, one_way: float, acceptance: float
) -> None:
    """Whole drafts that bring their bonus; the drafter has nothing else to do meanwhile."""
    told = replace(told, open=False, cut=0)
    costs = growing(draft, verify, one_way, acceptance)
    assert rate(shape, told, costs) >= rate(shape, STOP_AND_WAIT, costs) * (1 - 1e-9)


def test_runners_up_are_worked_off_by_how_likely_they_are_as_many_at_a_time_as_fit() -> None:
    """A chain of one: the bonus after it, the second choice in its place, and what follows them."""
    draft, verify = 0.1, 1.0
    costs = flat(draft, verify, 0.0, acceptance=0.5)
    told = replace(BONUS, runners_up=True)
    # ends and whether a bonus is looked for: 0.25 b, 0.25 (not drafted), 0.125 b, 0.025 twice
    ends = [(0.25, True), (0.25, False), (0.125, True), (0.025, False), (0.025, False)]
    for width in (1, 2, 3, 16):
        at_once = min(width, len(ends))
        begins = [bonus * draft + n // at_once * draft for n, (_, bonus) in enumerate(ends)]
        left = 1 - sum(share for share, _ in ends)
        missed = verify + draft
        mean = left * missed + sum(
            share * min(max(verify, begin + draft), missed)
            for (share, _), begin in zip(ends, begins, strict=True)
        )
        promised = rate(chain(1), replace(told, width=width), costs)
        assert promised == pytest.approx(1.5 / mean, rel=1e-3)


@given(shapes, times, times, times, shares)
def test_a_signature_is_the_same_for_what_is_about_the_same(
    shape: Shape, draft: float, verify: float, one_way: float, acceptance: float
) -> None:
    costs = growing(draft, verify, one_way, acceptance)
    known = signature(costs)
    nearly = growing(draft * 1.001, verify * 0.999, one_way * 1.001, acceptance)
    steps = [abs(a - b) for a, b in zip(known, signature(nearly), strict=True)]
    assert max(steps) <= 1
    for other in (
        growing(draft * 1.5, verify, one_way, acceptance),
        growing(draft, verify * 1.5, one_way, acceptance),
        growing(draft, verify, one_way * 1.5, acceptance),
        replace(costs, generate=costs.generate * 1.5),
        replace(costs, acceptance=(acceptance + 0.5) % 1),
        replace(costs, runner_up=0.6),
        replace(costs, exits=0.5),
        replace(costs, draft=lambda nodes: draft * (1 + nodes / 8) * (1.5 if nodes == 16 else 1)),
    ):
        assert signature(other) != known
    far = signature(growing(draft * math.e, verify, one_way, acceptance))
    assert max(abs(a - b) for a, b in zip(known, far, strict=True)) in (9, 10, 11)


def test_every_pipeline_is_taken_for_a_different_one() -> None:
    """What a pipeline does counts: no two of these promise the same here."""
    costs = growing(0.07, 0.31, 0.11, 0.7)
    kinds = [
        replace(STREAM, open=opened, push=push, ahead=ahead, cut=cut, runners_up=more, exits=early)
        for opened, push, ahead, cut, more, early in itertools.product(
            (True, False), (True, False), (1, 2), (0, 2), (True, False), (True, False)
        )
        if push or ahead == 1
    ]
    promised = {round(rate(chain(4), replace(kind, width=8), costs), 9) for kind in kinds}
    assert len(promised) > 0.8 * len(kinds)


@given(times, times, times)
def test_specedge_depth_fills_the_verify_time_to_half_a_pass(
    draft: float, rtt: float, verify: float
) -> None:
    depth = specedge_depth(draft, rtt, verify)
    if depth > 1:
        assert abs(depth * draft + rtt - verify) <= draft / 2 * (1 + 1e-6)
    else:
        assert depth == 1
        assert verify - rtt <= 1.5 * draft * (1 + 1e-6)
