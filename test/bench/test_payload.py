"""Bytes of a round at the vocabularies of real models, and what the suite says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.suites import rows

from edge_cloud_spec.cli import main
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.lab.bench.payload import (
    Case,
    RoundBytes,
    cases,
    embedded_rows,
    measure,
    overlap,
)
from edge_cloud_spec.lab.harness.loopback import LoopbackPair
from edge_cloud_spec.lab.harness.power_law import TAILS, power_law_pair
from edge_cloud_spec.presets import load_preset

LARGE = 151_936
FIELDS = {
    *("tail", "preset", "rule", "gamma", "vocab", "k", "temperature", "rounds"),
    *("up_bytes_mean", "up_bytes_max", "down_bytes_mean", "down_bytes_max"),
    *("tokens_per_round", "acceptance", "rejections", "fallbacks", "row_bytes_mean", "exact"),
}


def of_length(name: str, gamma: int) -> Preset:
    return replace(load_preset(name), draft_length=gamma)


@pytest.mark.parametrize("gamma", [4, 8])
@pytest.mark.parametrize("tail", TAILS)
def test_dssd_stays_within_100_bytes_up_and_400_down(tail: str, gamma: int) -> None:
    row = measure(Case(tail, LARGE, of_length("dssd", gamma), "rejection", 1.0), 12, seed=2)
    assert row["rejections"] > 0 and row["fallbacks"] == 0
    assert row["up_bytes_max"] <= 100 and row["down_bytes_max"] <= 400


@pytest.mark.parametrize("gamma", [4, 8])
def test_coupled_stays_within_48_bytes_up_and_32_down(gamma: int) -> None:
    row = measure(Case("heavy", LARGE, of_length("dsd", gamma), "coupled", 1.0), 6, seed=2)
    assert row["up_bytes_max"] <= 48 and row["down_bytes_max"] <= 34


def test_dense_rows_are_what_is_saved() -> None:
    dsd = measure(Case("sharp", LARGE, of_length("dsd", 4), "rejection", 1.0), 2, seed=2)
    dense = measure(Case("heavy", LARGE, of_length("dssd_dense", 4), "rejection", 1.0), 6, seed=2)
    assert 4 * 4 * LARGE <= dsd["up_bytes_mean"] <= 4 * 4 * LARGE + 100
    assert 4 * LARGE <= dense["down_bytes_max"] <= 4 * LARGE + 100


def test_dense_rows_that_were_asked_for_are_counted_apart() -> None:
    """A short form without tail tokens runs out whenever the tail is drawn."""
    vocabulary = 300
    bare = replace(load_preset("dssd"), residual_top_k=2, residual_tail=0)
    models = power_law_pair("heavy", vocabulary, 1)
    sessions: Any = tuple(model.open(1) for model in models)
    pair = LoopbackPair(bare, "rejection", SamplingPolicy(1.0), sessions, vocabulary)
    round_bytes = RoundBytes()
    for _ in range(30):
        round_bytes.add_round(pair)
    row = round_bytes.row()
    assert 0 < row["fallbacks"] == pair.robot.stats.fallbacks <= row["rejections"]
    assert row["row_bytes_mean"] >= 4 * vocabulary > row["down_bytes_max"]
    assert sum(round_bytes.up) == pair.up_bytes
    assert sum(round_bytes.down) + sum(round_bytes.fallbacks) == pair.down_bytes


def test_places_are_counted_as_the_robot_counts_them() -> None:
    vocabulary = 200
    sessions: Any = tuple(model.open(1) for model in power_law_pair("heavy", vocabulary, 1))
    pair = LoopbackPair(of_length("dsd", 4), "rejection", SamplingPolicy(1.0), sessions, vocabulary)
    round_bytes = RoundBytes()
    for _ in range(20):
        round_bytes.add_round(pair)
    stats = pair.robot.stats
    assert (round_bytes.accepted, round_bytes.judged) == (stats.accepted, stats.tested)
    assert round_bytes.tokens == len(pair.robot.tokens) == round_bytes.accepted + 20


def test_the_target_of_a_pair_falls_as_its_tail_says() -> None:
    for tail, exponent in TAILS.items():
        _, target = power_law_pair(tail, 500, seed=3)
        row = np.sort(target.row(12345))[::-1]
        assert np.allclose(row, -exponent * np.log(np.arange(1, 501)), atol=1e-5)


def test_a_truncated_q_overlaps_less_the_more_is_cut() -> None:
    chain = of_length("tslt", 4)
    cuts = [replace(chain, draft_top_k=k) for k in (3_200, 320, 32)]
    overlaps = [overlap(Case("heavy", 32_000, cut, "rejection", 1.0), seed=4) for cut in cuts]
    assert overlaps == sorted(overlaps, reverse=True)


def test_what_has_no_say_under_a_rule_is_measured_once() -> None:
    every = cases("heavy", 1_000)
    chains = [case for case in every if case.preset.draft_length == 4]
    for rule, distinct in (("coupled", 1), ("rejection", 8)):
        found = [c for c in chains if c.rule == rule and c.temperature == 1.0]
        assert len({case.nameless for case in found}) == distinct
        assert {c.preset.name for c in found} >= {"dsd", "dssd", "dssd_top_k", "tslt"}
    assert [c.preset.name for c in every if not c.preset.exact and c.rule != "rejection"] == []


def test_the_suite_has_a_row_for_every_preset_and_rule(tmp_path: Path) -> None:
    options = ("--vocab", "600", "--beside", "0", "--tails", "typical", "--rounds", "2")
    measured = rows("payload", tmp_path, *options, "--requests", "0", "--processes", "1")
    assert all(row.keys() >= FIELDS for row in measured)
    names = {"best_first", "dsd", "dssd", "dssd_dense", "dssd_top_k", "mc_dsd", "mc_tslt", "tslt"}
    rules = ("greedy", "coupled", "rejection")
    assert {(r["preset"], r["rule"]) for r in measured} == {
        (n, rule) for n in names for rule in rules
    }
    assert {row["k"] for row in measured if row["preset"] == "tslt"} == {0, 1, 6, 60, 64}
    assert {row["temperature"] for row in measured if row["rule"] != "greedy"} == {0.3, 0.7, 1.0}
    assert [row["exact"] for row in measured if row["preset"] != "dssd_top_k"].count(False) == 0
    assert any(not row["exact"] for row in measured if row["preset"] == "dssd_top_k")


def test_the_embedded_pair_is_measured_over_whole_answers() -> None:
    measured = embedded_rows(1, seed=3, temperatures=(1.0,))
    assert all(row.keys() >= FIELDS and row["tail"] == "embedded" for row in measured)
    assert all(row["tokens_per_round"] >= 1 for row in measured)
    coupled = [row for row in measured if (row["preset"], row["rule"]) == ("dsd", "coupled")]
    assert all(row["up_bytes_max"] <= 48 and row["down_bytes_max"] <= 34 for row in coupled)


def test_decisions_are_timed_where_every_token_was_judged(tmp_path: Path) -> None:
    options = ("--vocab", "9000", "--support", "50", "--trials", "3", "--verdicts", "1")
    measured = rows("decision", tmp_path, *options)
    verdicts = [row for row in measured if "draft" in row]
    assert len({(row["rule"], row["draft"], row["temperature"]) for row in verdicts}) == 6
    assert {(row["outcome"], row["sessions"]) for row in verdicts} == {
        (outcome, sessions)
        for outcome in ("all accepted", "first rejected")
        for sessions in (1, 16)
    }
    assert all(row["ms_p50"] > 0 and row["full_ms_p50"] > 0 < row["ratio"] for row in verdicts)
    over_rows = [row for row in measured if "support" in row]
    assert {(row["rule"], row["support"]) for row in over_rows} == {
        (rule, support) for rule in ("coupled", "rejection") for support in (50, 9_000)
    }
    assert all(row["tokens"] == 8 and row["trials"] == 3 and row["ms_p50"] > 0 for row in over_rows)


def test_a_suite_refuses_what_it_cannot_measure() -> None:
    assert main(["bench", "payload", "--tails", "sharp,blunt"]) == 2
    assert main(["bench", "payload", "--rounds", "0"]) == 2
    assert main(["bench", "decision", "--tokens", "40"]) == 2
