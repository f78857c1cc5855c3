"""What a robot notes of its rounds, in virtual time: each pass and each way takes a known time."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from edge_cloud_spec.edge.rounds import UNDER_WAY
from edge_cloud_spec.lab.harness.toy import spec_of
from edge_cloud_spec.lab.harness.virtual_decode import Conditions, Decode

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
    for seed in range(5):
        one = decoded(preset, seed)
        rounds = one.decoder.stats.rounds
        assert rounds[0].base == 0
        for before, after in pairwise(rounds):
            assert after.base == before.base + before.emitted
            assert after.start == before.settled
        assert rounds[-1].base + rounds[-1].emitted == len(one.emitted)
        for each in rounds:
            assert each.start <= each.sent <= each.settled
            assert each.accepted <= min(each.drafted, each.emitted) <= each.accepted + 1


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
        assert each.settled - each.sent == pytest.approx(2 * WAY + JOB)
        assert each.link_s == pytest.approx(2 * WAY + JOB)
        assert each.overhead_s == pytest.approx(2 * WAY + JOB)
    assert measures.one_way.value == pytest.approx(WAY + JOB / 2)
    assert measures.one_way.count == len(rounds) - (rounds[-1].emitted == 0)
    judged = sum(each.accepted + (each.accepted < each.drafted) for each in rounds)
    if preset == "dsd":  # what comes after an end is not judged
        assert measures.acceptance.total == sum(each.accepted for each in rounds)
        assert judged - 1 <= measures.acceptance.count <= judged
    assert measures.alone.count == 0


def test_a_draft_that_was_ready_is_sent_with_the_verdict_and_says_nothing_of_the_link() -> None:
    ready = 0
    for seed in range(6):
        one = decoded("specedge", seed, draft_noise=0.2)
        rounds = one.decoder.stats.rounds
        assert rounds[0].waited
        assert one.decoder.measures.one_way.count == sum(each.waited for each in rounds)
        for each in rounds:
            if not each.waited:
                ready += 1
                assert each.sent == each.start
                assert each.draft_s == 0.0
    assert ready > 10


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


def test_auto_tries_the_target_alone_first_and_learns_what_it_costs() -> None:
    one = decoded("auto")
    rounds, measures = one.decoder.stats.rounds, one.decoder.measures
    assert [each.drafted for each in rounds[:3]] == [0, 0, 0]
    alone = sum(not each.waited for each in rounds)
    # The prefill gave the first row; what is under way where the robot joins counts for neither.
    assert alone - 1 - UNDER_WAY <= measures.alone.count <= alone - 1
