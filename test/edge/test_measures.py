"""What a robot measures of its rounds: times, means with a memory, choices that were right."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.edge.measures import (
    FEW_PASSES,
    FLAT_NODES,
    LOOKUP_AGAIN,
    MAX_PASS_NODES,
    VERIFY_SLOPE,
    DecodeStats,
    Mean,
    Measures,
    PassTimes,
    Round,
)
from edge_cloud_spec.wire.messages import Verdict
from edge_cloud_spec_lab.harness.toy import spec_of
from edge_cloud_spec_lab.harness.virtual_decode import Conditions, Decode

BASE = PrefixDigest(0, 77)
values = st.lists(st.floats(0, 10), min_size=1, max_size=20)


weights = st.floats(0.5, 9) | st.just(0.0)


@given(st.floats(0, 1), weights, st.sampled_from([0.5, 0.97, 1.0]), values)
def test_a_mean_weighs_its_prior_and_slowly_forgets(
    prior: float, weight: float, memory: float, seen: list[float]
) -> None:
    mean = Mean(prior, weight, memory)
    assert mean.value == pytest.approx(prior)
    assert mean.known == (weight > 0)
    for value in seen:
        mean.observe(value)
    ages = [memory**age for age in reversed(range(len(seen)))]
    old = weight * memory ** len(seen)
    expected = (prior * old + np.dot(seen, ages)) / (old + sum(ages))
    assert mean.known and mean.value == pytest.approx(expected)
    assert (mean.total, mean.count) == (pytest.approx(sum(seen)), len(seen))


def times(passes: PassTimes, *sizes: int) -> list[float]:
    return [float(seconds) for seconds in passes.at(np.array(sizes))]


def test_pass_times_rise_between_the_sizes_seen_and_slowly_beyond() -> None:
    passes = PassTimes(0.25, VERIFY_SLOPE)
    assert passes.largest == 0
    assert times(passes, 0, 5, 100) == [0.25, 0.25, 0.25]
    passes.observe(4, 1.0)
    assert passes.largest == 4
    # As many as FLAT_NODES cost what those seen did.
    beyond = pytest.approx(1 + 10 * VERIFY_SLOPE)
    assert times(passes, 1, 4, FLAT_NODES, FLAT_NODES + 10) == [1.0, 1.0, 1.0, beyond]
    passes.observe(8, 3.0)
    assert times(passes, 4, 6, 8) == [1.0, 2.0, 3.0]
    passes.observe(6, 0.5)  # more nodes take no less
    assert times(passes, 4, 6, 7, 8) == [1.0, 1.0, 2.0, 3.0]
    passes.observe(32, 4.0)
    assert passes.largest == 32
    assert times(passes, 20, 42) == [3.5, pytest.approx(4.0 * (1 + 10 * VERIFY_SLOPE))]
    passes.observe(4, 2.0)
    assert 1.0 < times(passes, 4)[0] < 2.0


def test_what_was_measured_is_what_the_cost_model_is_given() -> None:
    measures = Measures()
    assumed = measures.costs()
    assert assumed.generate == float("inf")
    assert (assumed.draft(1), assumed.verify(1), assumed.one_way) == (0.02, 0.1, 0.02)
    assert not measures.verify_known
    measures.verified(0, 0.4, None)
    assert (measures.server_pass.value, measures.one_way.count) == (0.4, 0)
    assert not measures.verify_known
    measures.verified(4, 0.6, 0.2)
    assert measures.verify_known
    assert (measures.one_way.value, measures.server_pass.count) == (0.1, 1)
    measures.drafted(2, 0.05)
    costs = measures.costs()
    assert (costs.generate, costs.one_way) == (0.4, 0.1)
    assert (costs.verify(0), costs.verify(2), costs.verify(4)) == (0.4, 0.5, 0.6)
    assert (costs.draft(1), costs.draft(2)) == (0.05, 0.05)
    assert costs.verify(2) == measures.verify_s(2)
    for cost in (costs.draft, costs.verify):
        assert cost(MAX_PASS_NODES - 1) < cost(MAX_PASS_NODES) == cost(MAX_PASS_NODES + 1)
    assert (costs.acceptance, costs.runner_up, costs.exits) == pytest.approx((0.7, 0.4, 0.5))
    for _ in range(2000):
        measures.acceptance.observe(1.0)
    assert measures.costs().acceptance == 0.99  # nothing is always right


WHOLE = FinishedDraft(Draft((1, 2, 3)), (1, 2, 3), 2, second_choices=(4, 5))


@pytest.mark.parametrize(
    ("came", "first", "second"),
    [
        ((1, 2, 3, 7), [1, 1, 1], []),
        ((1, 2, 3), [1, 1, 1], []),
        ((1, 5), [1, 0], [1]),
        ((1, 9), [1, 0], [0]),
        ((4,), [0], [1]),
        ((1, 2, 9), [1, 1, 0], []),  # no second choice was worked out there
        ((1,), [1], []),
        ((), [], []),
    ],
)
def test_first_and_second_choices_are_judged_by_what_came(
    came: tuple[int, ...], first: list[int], second: list[int]
) -> None:
    measures = Measures()
    measures.accepted(WHOLE, came)
    assert (measures.acceptance.total, measures.acceptance.count) == (sum(first), len(first))
    assert (measures.runner_up.total, measures.runner_up.count) == (sum(second), len(second))


# Rounds


def test_a_round_keeps_what_no_model_accounts_for_apart() -> None:
    begun = Round(start=1.0, sent=2.0, draft_s=0.75, waited=True)
    verdict = Verdict(BASE, (0, 1), 5, verify_s=0.5, queue_s=0.25, draft_s=0.125)
    done = begun.ended(verdict, 7, 4, 3, 4.0)
    assert done == Round(7, 4, 2, 3, 1.0, 2.0, 4.0, 0.625, 0.25, 0.75, True)
    assert done.link_s == 4.0 - 2.0 - 0.625 - 0.25
    assert done.overhead_s == 4.0 - 1.0 - 0.75 - 0.625
    quick = begun.ended(verdict, 7, 4, 3, 2.0)  # clocks that differ
    assert (quick.link_s, quick.overhead_s) == (0.0, 0.0)
    following = done.begun(5.0, ready=True)  # the robot has drafted nothing of it
    assert following == Round(start=5.0, sent=2.0, waited=False)
    assert following.ended(verdict, 10, 0, 3, 7.0).overhead_s == 7.0 - 5.0 - 0.625


def test_measures_add_up_their_rounds() -> None:
    counts = ((4, 4), (4, 1), (3, 0), (0, 0))
    stats = DecodeStats([Round(0, *judged, 1, 0.0, 0.0, 0.0) for judged in counts])
    assert (stats.drafted, stats.accepted, stats.tested) == (11, 5, 4 + 2 + 1 + 0)


def test_a_lookup_that_costs_more_than_it_yields_is_left_for_a_while() -> None:
    measures = Measures()
    for _ in range(FEW_PASSES):
        assert measures.decide_lookup()
        measures.generated(0, 1, 0.1, hints=False)
        measures.generated(8, 1, 0.2, hints=False)
        measures.generated(8, 100, 0.2, hints=False, draft_s=0.1)  # drafted, not looked up
    asked = [measures.decide_lookup() for _ in range(2 * LOOKUP_AGAIN)]
    assert [n for n, wants in enumerate(asked, 1) if wants] == [LOOKUP_AGAIN, 2 * LOOKUP_AGAIN]
    for _ in range(200):
        measures.generated(8, 4, 0.2, hints=False)
    assert measures.decide_lookup()


# What a robot notes of its rounds, in virtual time: each pass and each way takes a known time.

PASS, WAY, JOB = 0.03, 0.05, 0.02  # s
CALM = Conditions(delay=WAY, jitter=0.0, cloud_job=JOB, draft_pass=PASS)


def decoded(preset: str, seed: int = 3, draft_noise: float = 0.5) -> Decode:
    one = Decode(
        Random(seed), preset, conditions=CALM, seed=seed, draft_noise=draft_noise, spec=spec_of(40)
    )
    assert one.run().reason in ("end", "length")
    return one


@pytest.mark.parametrize("preset", ["dsd", "mc_dsd", "best_first", "picospec", "specedge", "fsd"])
def test_rounds_follow_one_another_and_add_up_to_the_answer(preset: str) -> None:
    """A draft that was ready says nothing of the link."""
    ready = 0
    for seed in range(6):
        one = decoded(preset, seed, draft_noise=0.2)
        rounds = one.decoder.stats.rounds
        assert rounds[0].base == 0
        for before, after in pairwise(rounds):
            assert after.base == before.base + before.emitted
            assert after.start == before.settled
        assert rounds[-1].base + rounds[-1].emitted == len(one.emitted)
        for each in rounds:
            assert each.start <= each.sent <= each.settled
            assert each.accepted <= min(each.drafted, each.emitted) <= each.accepted + 1
            if not each.waited:  # it was ready, and is sent with the verdict
                ready += 1
                assert (each.sent, each.draft_s) == (each.start, 0.0)
        assert one.decoder.measures.one_way.count == sum(each.waited for each in rounds)
    assert (ready > 10) == (preset in ("picospec", "specedge"))


@pytest.mark.parametrize("preset", ["dsd", "mc_dsd", "best_first"])
def test_stop_and_wait_drafts_sends_and_hears(preset: str) -> None:
    one = decoded(preset)
    rounds, measures = one.decoder.stats.rounds, one.decoder.measures
    assert len(rounds) > 3
    depth = one.preset.shape.depth
    for each in rounds[:-1]:
        assert each.waited
        passes = each.draft_s / PASS  # fewer where a draft came to an end token
        assert passes == pytest.approx(round(passes)) and 1 <= round(passes) <= depth
        assert preset != "dsd" or round(passes) == each.drafted
        assert each.sent - each.start == pytest.approx(each.draft_s)
        shares = (each.settled - each.sent, each.link_s, each.overhead_s)
        assert shares == pytest.approx((2 * WAY + JOB,) * 3)
    assert measures.one_way.value == pytest.approx(WAY + JOB / 2)
    judged = sum(each.accepted + (each.accepted < each.drafted) for each in rounds)
    if preset == "dsd":  # what comes after an end is not judged
        assert measures.acceptance.total == sum(each.accepted for each in rounds)
        assert judged - 1 <= measures.acceptance.count <= judged
    assert measures.server_pass.count == 0


@pytest.mark.parametrize("preset", ["cloud_ar", "cloud_sd"])
def test_a_cloud_that_goes_on_alone_is_timed_from_verdict_to_verdict(preset: str) -> None:
    one = decoded(preset)
    rounds = one.decoder.stats.rounds
    assert rounds[0].start == 0.0  # when the decode was asked for
    assert rounds[0].sent == pytest.approx(2 * WAY)  # once the cloud had opened
    for before, after in pairwise(rounds):
        assert after.start == after.sent == before.settled
        assert not after.waited
    assert all((each.drafted > 0) == (preset == "cloud_sd") for each in rounds)
    assert all(each.draft_s == 0.0 for each in rounds)
    assert one.decoder.measures.acceptance.count == 0
