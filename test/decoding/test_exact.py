"""Every rule, payload and shape that says ``exact`` emits the target's own distribution.

Both state machines run, over the codec or not; a chooser that branches gives every outcome of a
round with its probability.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.enumeration import BranchingChooser
from helpers.exactness import Model, as_it_is, continued, distance, joint_of, own_tokens, pair
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.shape import BestFirst
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


def test_the_truncated_tail_of_picospec_is_found_out() -> None:
    preset = replace(
        PRESETS["dssd_dense"], draft_length=1, residual="top_k", residual_top_k=2, exact=False
    )
    models = (Model(1, 6, 0.5), Model(2, 6, 0.5))
    policy = SamplingPolicy(1.0)
    joint = joint_of(emitted_by(preset, policy, models), models[1], policy, 2)
    assert distance(joint, continued(models[1], policy, (), 2)) > 0.003
