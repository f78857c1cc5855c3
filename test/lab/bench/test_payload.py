"""Bytes of a round at the vocabularies of real models, and what the suite says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.suites import rows

from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec_lab.bench.command import Row
from edge_cloud_spec_lab.bench.payload import TAILS, RoundBytes, measure, pair_of_tail
from edge_cloud_spec_lab.harness.loopback import LoopbackPair

LARGE = 151_936
ONE = SamplingPolicy(1.0, seed=2)


def measured(tail: str, name: str, gamma: int, rule: str, rounds: int) -> Row:
    preset = replace(load_preset(name), draft_length=gamma)
    return measure(preset, rule, ONE, pair_of_tail(tail, LARGE, ONE.seed), rounds)


@pytest.mark.parametrize("gamma", [4, 8])
@pytest.mark.parametrize(
    ("tail", "name", "rule", "up", "down"),
    [
        *((tail, "dssd", "rejection", 100, 400) for tail in TAILS),
        ("heavy", "dsd", "coupled", 48, 34),
    ],
)
def test_a_round_stays_within_its_bytes(
    tail: str, name: str, rule: str, up: int, down: int, gamma: int
) -> None:
    row = measured(tail, name, gamma, rule, 12)
    assert row["rejections"] > 0 and row["fallbacks"] == 0
    assert row["up_bytes_max"] <= up and row["down_bytes_max"] <= down


def test_dense_rows_are_what_is_saved() -> None:
    dsd = measured("sharp", "dsd", 4, "rejection", 2)
    dense = measured("heavy", "dssd_dense", 4, "rejection", 6)
    assert 4 * 4 * LARGE <= dsd["up_bytes_mean"] <= 4 * 4 * LARGE + 100
    assert 4 * LARGE <= dense["down_bytes_max"] <= 4 * LARGE + 100


def test_dense_rows_that_were_asked_for_are_counted_apart() -> None:
    """A short form without tail tokens runs out whenever the tail is drawn."""
    vocabulary = 300
    bare = replace(load_preset("dssd"), residual_top_k=2, residual_tail=0)
    sessions: Any = tuple(model.open(1) for model in pair_of_tail("heavy", vocabulary, 1))
    pair = LoopbackPair(bare, "rejection", SamplingPolicy(1.0), sessions, vocabulary)
    totals = RoundBytes()
    for _ in range(30):
        totals.add_round(pair)
    stats = pair.robot.stats
    assert 0 < totals.fallbacks == stats.fallbacks <= totals.rejections
    assert pair.row_bytes >= 4 * vocabulary * totals.fallbacks
    assert max(totals.down) < 4 * vocabulary
    assert (sum(totals.up), sum(totals.down) + pair.row_bytes) == (pair.up_bytes, pair.down_bytes)
    assert (totals.accepted, totals.accepted + totals.rejections) == (stats.accepted, stats.tested)


def test_the_target_of_a_pair_falls_as_its_tail_says() -> None:
    for tail, exponent in TAILS.items():
        _, target = pair_of_tail(tail, 500, seed=3)
        row = np.sort(target.row(12345))[::-1]
        assert np.allclose(row, -exponent * np.log(np.arange(1, 501)), atol=1e-5)


def test_the_suite_has_a_row_for_every_preset_and_rule(tmp_path: Path) -> None:
    found = rows("payload", tmp_path, "--vocab", "600", "--rounds", "2")
    names = {"best_first", "dsd", "dssd", "dssd_dense", "dssd_top_k", "mc_dsd", "mc_tslt", "tslt"}
    rules = ("greedy", "coupled", "rejection")
    assert {(r["preset"], r["rule"]) for r in found} == {(n, rule) for n in names for rule in rules}
    assert {row["preset"] for row in found if not row["exact"]} == {"dssd_top_k"}
