"""Shares of drafts that were ready or right are counts: no prior, nothing forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_cloud_spec.edge.measures import Measures, Round
from edge_cloud_spec.lab.bench.acceptance import ChoiceShares, Share, cache_hits

ROUND = Round(base=5, drafted=4, accepted=1, emitted=2, start=0.0, sent=0.0, settled=1.0)


def test_choices_are_counted_without_the_prior() -> None:
    measures = Measures()
    assert ChoiceShares.of(measures).first.value is None
    for _ in range(900):
        measures.acceptance.observe(0.0)
    before = ChoiceShares.of(measures)
    for right in (1.0, 0.0, 0.0, 0.0):
        measures.acceptance.observe(right)
    measures.runner_up.observe(1.0)
    since = ChoiceShares.of(measures) - before
    assert since.first == Share(1.0, 4) and since.second.value == 1.0
    assert (before + since).first.value == pytest.approx(1 / 904)
    assert measures.runner_up.value < 0.6  # what auto plans with has a prior


def test_a_cache_hit_is_a_draft_that_was_ready_before_the_verdict() -> None:
    ready = replace(ROUND, waited=False)
    first, alone = replace(ROUND, base=0), replace(ready, drafted=0)
    assert cache_hits([first, ready, alone, ROUND, ready]) == Share(2, 3)
    assert cache_hits([first, alone]).value is None
