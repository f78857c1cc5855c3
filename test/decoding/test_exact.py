"""The acceptance rules are exact: all outcomes enumerated; wrong ones are noticed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from helpers.enumeration import BranchingChooser, outcomes
from helpers.exactness import (
    ONE,
    Joint,
    Model,
    OneWord,
    as_it_is,
    continued,
    distance,
    joint_of,
    own_tokens,
    pair,
    rows_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_cloud_spec.decoding.accept import Acceptance, rejection
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.noise import Purpose
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.random_source import RandomSource
from edge_cloud_spec.decoding.shape import BestFirst
from edge_cloud_spec.decoding.split import Split, largest, resample, resample_from, sparse_residual
from edge_cloud_spec.decoding.token_distribution import TokenDistribution, distribution_of
from edge_cloud_spec.lab.harness.loopback import Wire, over_the_codec

PRESETS = {
    "dsd": Preset("dsd", "", "edge", draft_length=2),
    "tslt": Preset("tslt", "", "edge", draft_length=2, payload="sparse", draft_top_k=2),
    "tslt_top_p": Preset("tslt", "", "edge", draft_length=2, payload="sparse", draft_top_p=0.7),
    "likeliest": Preset("likeliest", "", "edge", draft_length=3, payload="ids"),
    "mc_dsd": Preset("mc_dsd", "", "edge", expansion=(2, 1)),
    "mc_three": Preset("mc_dsd", "", "edge", expansion=(3,)),
    "mc_distinct": Preset("mc", "", "edge", expansion=(2, 1), replacement=False),
    "mc_wide": Preset("mc", "", "edge", expansion=(3,), replacement=False),
    "mc_tslt": Preset(
        "mc", "", "edge", expansion=(2, 1), payload="sparse", draft_top_k=2, replacement=False
    ),
    "mc_likeliest": Preset("mc", "", "edge", expansion=(2, 2), payload="ids"),
    "best_first": Preset("bf", "", "edge", best_first=BestFirst(5, 3, 3), payload="ids"),
    "dssd_dense": Preset(
        "dssd", "", "edge", 2, payload="probabilities", resample="robot", residual="dense"
    ),
    "dssd": Preset(
        "dssd",
        "",
        "edge",
        1,
        payload="probabilities",
        resample="robot",
        residual_top_k=1,
        residual_tail=1,
    ),
    "dssd_of_tslt": Preset(
        "dssd",
        "",
        "edge",
        1,
        payload="probabilities",
        resample="robot",
        draft_top_k=2,
        residual_top_k=2,
        residual_tail=2,
    ),
}


def depth(preset: Preset) -> int:
    return preset.shape.depth


def emitted_by(
    preset: Preset, policy: SamplingPolicy, models: tuple[Model, Model], wire: Wire = as_it_is
):
    """What one round emits, as a function of the chooser."""

    def run(random_source: BranchingChooser) -> tuple[int, ...]:
        both = pair(preset, "rejection", policy, models, random_source, wire)
        both.round()
        return both.emitted

    return run


def check(
    preset: Preset,
    policy: SamplingPolicy,
    models: tuple[Model, Model],
    wire: Wire,
    tolerance: float,
) -> None:
    length = depth(preset) + 1
    endless = preset.resample == "robot" and preset.residual == "sparse"
    run = emitted_by(preset, policy, models, wire)
    joint = joint_of(run, models[1], policy, length, 3 if endless else None)
    assert sum(joint.values()) == pytest.approx(1, abs=1e-9)
    assert distance(joint, continued(models[1], policy, (), length)) < tolerance


policies = st.builds(
    SamplingPolicy,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 2, 3]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.6]),
)


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=6)
@given(
    vocabulary=st.sampled_from([2, 3, 4]),
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    spreads=st.tuples(st.sampled_from([0.0, 1.0, 3.0, 20.0]), st.sampled_from([0.0, 1.0, 3.0])),
    policy=policies,
    coded=st.booleans(),
)
def test_a_round_of_rejection_has_the_targets_distribution(
    name: str,
    vocabulary: int,
    seeds: tuple[int, int],
    spreads: tuple[float, float],
    policy: SamplingPolicy,
    coded: bool,
) -> None:
    models = (Model(seeds[0], vocabulary, spreads[0]), Model(seeds[1], vocabulary, spreads[1]))
    wire, tolerance = (over_the_codec, 1e-6) if coded else (as_it_is, 1e-9)
    check(PRESETS[name], policy, models, wire, tolerance)


@pytest.mark.parametrize("name", ["tslt", "dssd", "best_first", "mc_wide", "dssd_dense"])
def test_a_round_at_a_vocabulary_of_sixteen(name: str) -> None:
    preset = PRESETS[name]
    if preset.draft_length:
        preset = replace(preset, draft_length=1, residual_top_k=13)
    if name == "mc_wide":
        preset = replace(preset, expansion=(2,))
    check(preset, SamplingPolicy(1.0), (Model(1, 16, 1.0), Model(2, 16, 1.0)), as_it_is, 1e-9)


@settings(max_examples=25)
@given(
    top_k=st.integers(1, 5),
    tail=st.integers(0, 3),
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    spreads=st.tuples(st.sampled_from([0.0, 1.0, 3.0]), st.sampled_from([0.0, 1.0, 3.0])),
)
def test_the_sparse_residual_is_exact_for_every_k_and_m(
    top_k: int, tail: int, seeds: tuple[int, int], spreads: tuple[float, float]
) -> None:
    preset = replace(PRESETS["dssd"], residual_top_k=top_k, residual_tail=tail)
    models = (Model(seeds[0], 4, spreads[0]), Model(seeds[1], 4, spreads[1]))
    check(preset, SamplingPolicy(1.0), models, as_it_is, 1e-9)


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=8)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    stray=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_greedy_and_coupled_give_the_targets_own_tokens(
    name: str, seed: int, temperature: float, stray: float
) -> None:
    policy = SamplingPolicy(temperature, seed=seed)
    target = Model(seed, 6, 1.5)
    draft_model = Model(seed, 6, 1.5) if not stray else Model(seed + 1, 6, stray)
    rule = "coupled" if temperature else "greedy"
    both = pair(PRESETS[name], rule, policy, (draft_model, target), wire=over_the_codec)
    for _ in range(4):
        both.round()
    assert list(both.emitted) == own_tokens(target, policy, 0, len(both.emitted))
    if not stray and name != "best_first":  # the same model: nothing is ever rejected
        assert len(both.emitted) == 4 * (depth(PRESETS[name]) + 1)


CHAINS = [name for name, preset in PRESETS.items() if preset.shape.is_chain]


@pytest.mark.parametrize("name", CHAINS)
@settings(max_examples=6)
@given(
    vocabulary=st.sampled_from([2, 3, 4]),
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
    policy=policies,
    coded=st.booleans(),
)
def test_one_token_without_a_row_leaves_the_targets_distribution(
    name: str,
    vocabulary: int,
    seeds: tuple[int, int],
    spread: float,
    policy: SamplingPolicy,
    coded: bool,
) -> None:
    models = (OneWord(seeds[0], vocabulary, 1.0), Model(seeds[1], vocabulary, spread))
    wire, tolerance = (over_the_codec, 1e-6) if coded else (as_it_is, 1e-9)
    check(PRESETS[name], policy, models, wire, tolerance)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_one_token_without_a_row_leaves_the_targets_own_tokens(
    name: str, temperature: float
) -> None:
    for seed in range(8):
        policy, target = SamplingPolicy(temperature, seed=seed), Model(seed, 6, 1.5)
        rule = "coupled" if temperature else "greedy"
        both = pair(PRESETS[name], rule, policy, (OneWord(seed + seed % 2, 6, 1.5), target))
        for _ in range(4):
            both.round()
        assert list(both.emitted) == own_tokens(target, policy, 0, len(both.emitted))


def test_the_truncated_tail_of_picospec_is_found_out() -> None:
    preset = replace(
        PRESETS["dssd_dense"], draft_length=1, residual="top_k", residual_top_k=2, exact=False
    )
    models = (Model(1, 6, 0.5), Model(2, 6, 0.5))
    policy = SamplingPolicy(1.0)
    joint = joint_of(emitted_by(preset, policy, models), models[1], policy, 2)
    assert distance(joint, continued(models[1], policy, (), 2)) > 0.003


Rule = Callable[[Draft, Callable[[int], TokenDistribution], int, RandomSource], Acceptance]


def round_of(draft_model: Model, target: Model, length: int, rule: Rule) -> Joint:
    """The probability of each answer of length + 1 tokens from a round under this rule."""

    def run(random_source: BranchingChooser) -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        rows = []
        for position in range(length):
            rows.append(distribution_of(draft_model.logits(tokens), ONE))
            tokens += (rows[-1].draw(random_source, Purpose.DRAFT, position),)
        draft = Draft(tokens, rows=tuple(rows))
        after = [distribution_of(logits, ONE) for logits in target.along(tokens)]
        taken = rule(draft, lambda node: after[node + 1], 0, random_source)
        assert taken.token is not None
        return (*(tokens[node] for node in taken.path), taken.token)

    return joint_of(run, target, ONE, length + 1)


def test_the_right_rule_passes_where_the_wrong_ones_must_not() -> None:
    target = Model(2, 5, 1.5)
    joint = round_of(Model(1, 5, 1.5), target, 2, rejection)
    assert distance(joint, continued(target, ONE, (), 3)) < 1e-9


def inverted(
    draft: Draft,
    target_row: Callable[[int], TokenDistribution],
    position: int,
    random_source: RandomSource,
) -> Acceptance:
    """The ratio as DSSD and TSLT print it, q / p."""
    for i, token in enumerate(draft.tokens):
        p, q = target_row(i - 1), draft.row(i - 1)
        if not random_source.accept(
            min(1.0, q.at(token) / p.at(token)), Purpose.ACCEPT, position + i
        ):
            token = p.residual(q).draw(random_source, Purpose.RESIDUAL, position + i)
            return Acceptance(tuple(range(i)), token)
    last = len(draft)
    token = target_row(last - 1).draw(random_source, Purpose.RESIDUAL, position + last)
    return Acceptance(tuple(range(last)), token)


def test_the_inverted_ratio_is_found_out() -> None:
    target = Model(2, 5, 1.5)
    joint = round_of(Model(1, 5, 1.5), target, 2, inverted)
    exact = continued(target, ONE, (), 3)
    assert sum(abs(joint[key] - exact[key]) for key in exact) / 2 > 0.2


def first_token(run: Callable[[BranchingChooser], int], size: int) -> NDArray[np.float64]:
    found = np.zeros(size)
    for token, mass in outcomes(run):
        assert token is not None
        found[token] += mass
    return found


def test_sampling_before_truncation_is_found_out() -> None:
    """A token drawn from all of Q, then judged and resampled by Q cut to its top 2."""
    p, q = rows_of(Model(2, 5, 1.5), Model(1, 5, 1.5))
    ids, shares = largest(q, 2)
    cut = TokenDistribution(shares, ids)

    def run(random_source: BranchingChooser, drawn_from: TokenDistribution) -> int:
        token = drawn_from.draw(random_source, Purpose.DRAFT, 0)
        chance = min(1.0, p.at(token) / cut.at(token)) if cut.at(token) else 1.0
        if random_source.accept(chance, Purpose.ACCEPT, 0):
            return token
        return p.residual(cut).draw(random_source, Purpose.RESIDUAL, 0)

    right = first_token(lambda random_source: run(random_source, cut), 5)
    wrong = first_token(lambda random_source: run(random_source, q), 5)
    assert np.abs(right - p.shares).max() < 1e-9
    assert np.abs(wrong - p.shares).sum() / 2 > 0.01


def test_dropping_a_drafted_token_by_its_value_is_found_out() -> None:
    """P = Q = (1/2, 1/2): a draft that is thrown away when it is token 0 is not exact."""
    half = TokenDistribution(np.full(2, 0.5))

    def run(random_source: BranchingChooser) -> int:
        token = half.draw(random_source, Purpose.DRAFT, 0)
        draft = Draft((token,), rows=(half,)) if token == 1 else Draft(())
        taken = rejection(draft, lambda node: half, 0, random_source)
        assert taken.token is not None
        return token if taken.path else taken.token

    assert first_token(run, 2)[0] == pytest.approx(0.25)


@pytest.mark.parametrize("tail", [0, 1, 2])
def test_where_the_tail_runs_out_the_dense_row_goes_on_within_the_trial(tail: int) -> None:
    p, q = rows_of(Model(2, 4, 1.0), Model(1, 4, 1.0))

    def run(random_source: BranchingChooser) -> int:
        told = sparse_residual(p, Split("sparse", 1, tail), 0, random_source)
        token = resample(told, q, 0, random_source)
        found = resample(told, q, 0, random_source, p) if token is None else token
        assert found is not None
        return found

    assert first_token(run, 4) == pytest.approx(p.residual(q).shares)


def test_a_fresh_trial_after_the_tail_ran_out_is_found_out() -> None:
    """It must go on with the trial in which it has already chosen the tail."""
    p, q = rows_of(Model(2, 4, 1.0), Model(1, 4, 1.0))
    split = Split("sparse", 1, 0)

    def run(random_source: BranchingChooser) -> int:
        told = sparse_residual(p, split, 0, random_source)
        token = resample(told, q, 0, random_source)
        return resample_from(p, q, 1, random_source) if token is None else token

    wrong = first_token(run, 4)
    assert np.abs(wrong - p.residual(q).shares).sum() / 2 > 0.01


def test_enumeration_itself_visits_every_outcome_once() -> None:
    weights = np.array([0.5, 0.0, 0.25, 0.25])

    def run(random_source: BranchingChooser) -> tuple[object, ...]:
        first = random_source.draw(weights, Purpose.DRAFT, 0)
        accepted = (random_source.accept(p, Purpose.ACCEPT, at) for at, p in enumerate((0.3, 1.0)))
        return (first, *accepted)

    found = dict(outcomes(run))
    assert set(found) == {(a, b, True) for a, b in itertools.product((0, 2, 3), (True, False))}
    assert sum(found.values()) == pytest.approx(1)
