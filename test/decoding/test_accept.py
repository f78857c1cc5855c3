"""Acceptance rules and what they draw."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from helpers.exactness import (
    ONE,
    Model,
    assert_chi_square,
    continued,
    own_tokens,
    pair,
    probabilities,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from edge_cloud_spec.decoding.accept import accept, follow
from edge_cloud_spec.decoding.digest import PrefixDigest, request_digest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.noise import Purpose, decision_seed, seed_and_number, uniform
from edge_cloud_spec.decoding.policy import MAX_GRAMMAR, SamplingPolicy, scaled_logits
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.decoding.token_distribution import TokenDistribution, distribution_of
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import Open, base_digest


@pytest.mark.parametrize("ids", [None, np.array([1, 4, 7])])
def test_where_p_is_q_a_token_that_rounding_rejects_is_recovered_from_p(
    ids: NDArray[np.int64] | None,
) -> None:
    p = TokenDistribution(np.array([0.5, 0.25, 0.25], np.float32), ids)
    assert p.residual(p).shares.tolist() == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("name", ["dsd", "dssd", "mc_dsd"])
def test_many_rounds_by_seed_have_the_targets_distribution(name: str) -> None:
    """The draws of one round are fresh in the next, though positions and seed are the same."""
    models = (Model(3, 3, 1.0), Model(4, 3, 1.0))
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    preset, runs = load_preset(name), 500
    for seed in range(runs):
        both = pair(preset, "rejection", SamplingPolicy(1.0, seed=seed), models)
        while len(both.emitted) < 3:
            both.round()
        counts[both.emitted[:3]] += 1
    assert_chi_square(counts, continued(models[1], ONE, (), 3), runs)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    start=st.integers(0, 50),
    guided=st.booleans(),
    data=st.data(),
)
def test_greedy_and_coupled_emit_the_targets_own_tokens_whatever_is_drafted(
    seed: int, temperature: float, start: int, guided: bool, data: st.DataObject
) -> None:
    policy = SamplingPolicy(temperature, seed=seed)
    target = Model(seed, 4, 1.5)
    own = own_tokens(target, policy, start, 12)
    size = data.draw(st.integers(1, 10))
    parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(size))
    paths: list[tuple[int, ...]] = []
    for node in range(size):
        before = paths[parents[node]] if parents[node] >= 0 else ()
        follows = guided and list(before) == own[: len(before)] and data.draw(st.booleans())
        token = own[len(before)] if follows else data.draw(st.integers(0, 3))
        paths.append((*before, token))
    tokens = tuple(path[-1] for path in paths)
    chain = parents == tuple(range(-1, size - 1)) and data.draw(st.booleans())
    draft = Draft(tokens, None if chain else parents)
    logits = np.stack([target.logits(()), *(target.logits(path) for path in paths)])
    rule = "coupled" if temperature else "greedy"
    taken = accept(rule, draft, LogitRows(logits), policy, start, SeededRandomSource(seed))
    emitted = [*(draft.tokens[node] for node in taken.path), taken.token]
    assert emitted == own[: len(emitted)]
    if len(set(paths)) == len(paths):  # of two equal siblings only the first is followed
        assert len(taken.path) == max(len(p) for p in [(), *paths] if list(p) == own[: len(p)])


def test_coupled_tokens_of_many_seeds_have_the_targets_distribution() -> None:
    target = Model(5, 6, 1.5)
    base = SamplingPolicy(0.8, top_k=5)
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    runs = 2500
    for seed in range(runs):
        policy = SamplingPolicy(0.8, top_k=5, seed=seed)
        counts[tuple(own_tokens(target, policy, 3, 2))] += 1
    assert_chi_square(counts, continued(target, base, (), 2), runs)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_draft_that_goes_on_gets_no_bonus(rule: str) -> None:
    target = Model(1, 4, 1.0)
    policy = SamplingPolicy(1.0, seed=3)
    own = own_tokens(target, policy, 0, 2)
    logits = target.along(tuple(own))
    row = distribution_of(logits[0], policy)
    draft = Draft(
        tuple(own), rows=(row, distribution_of(logits[1], policy))
    )  # Q = P: all is accepted
    taken = accept(rule, draft, LogitRows(logits), policy, 0, SeededRandomSource(3), open_at=1)
    assert (taken.path, taken.token, taken.rejected) == ((0, 1), None, None)
    tree = Draft((own[0], 9), (-1, -1))
    assert follow(tree, lambda node: own[node + 1], open_at=0).token is None
    assert follow(tree, lambda node: own[node + 1], open_at=1).token == own[1]
    assert follow(tree, lambda node: 7, open_at=0).token == 7


def test_no_two_keys_share_a_draw() -> None:
    tokens = np.arange(50)
    draws = [
        uniform(seed, purpose, position, tokens, trial)
        for seed in (0, 1, 2**63, 2**64 - 1)
        for purpose in Purpose
        for position in (0, 1, 2, 63, 64, 1000)
        for trial in (0, 1)
    ]
    values = np.concatenate(draws)
    assert len(np.unique(values)) == len(values)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_decisions_seed_tells_whose_and_which_it_is(seed: int, number: int) -> None:
    ours = decision_seed(seed, number)
    assert SamplingPolicy(seed=ours) and seed_and_number(ours) == (seed, number)


@pytest.mark.parametrize(("seed", "number"), [(2**32, 0), (0, 2**32), (-1, 0), (0, -1)])
def test_a_seed_or_a_number_of_more_than_32_bits_is_refused(seed: int, number: int) -> None:
    """Else two decisions would share one."""
    with pytest.raises(ValueError, match="32 bits"):
        decision_seed(seed, number)


def test_a_draw_can_be_made_again_alone_and_in_any_order() -> None:
    finished = uniform(9, Purpose.COUPLED, 4, np.arange(100))
    few = uniform(9, Purpose.COUPLED, 4, [70, 3])
    assert few.tolist() == [finished[70], finished[3]]
    assert uniform(9, Purpose.COUPLED, 4, 70) == finished[70]


@pytest.mark.parametrize("along", ["index", "position", "seed", "trial"])
def test_draws_are_uniform_and_uncorrelated_along_every_part_of_the_key(along: str) -> None:
    n = 4096 if along == "index" else 1500
    if along == "index":
        draws = uniform(1, Purpose.ACCEPT, 0, np.arange(n))
    else:
        key = {"seed": 1, "position": 0, "trial": 0}
        draws = np.array(
            [float(uniform(purpose=Purpose.ACCEPT, **{**key, along: i})) for i in range(n)]
        )
    counts = np.histogram(draws, 16, (0, 1))[0]
    assert ((counts - n / 16) ** 2 / (n / 16)).sum() < 15 + 5 * math.sqrt(30)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 5 / math.sqrt(n)
    assert draws.min() > 0 and draws.max() < 1


def test_decisions_neighbouring_seeds_and_purposes_draw_alike_no_more_than_others() -> None:
    seed, index = decision_seed(3, 0), np.arange(4000)
    keys = [(seed, purpose) for purpose in Purpose]
    others = decision_seed(3, 1), decision_seed(4, 0), decision_seed(0, 3)
    keys += [(other, Purpose.COUPLED) for other in others]
    rows = np.array([uniform(*key, 0, index) for key in keys])
    off = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(off).max() < 5 / math.sqrt(len(index))


@given(
    arrays.arrays(np.float32, st.integers(1, 9), elements=st.floats(0, 1, width=32)),
    st.integers(0, 2**64 - 1),
)
def test_a_drawn_index_always_has_weight(weights: np.ndarray, seed: int) -> None:
    if weights.any():
        row = weights.astype(np.float64)
        assert row[SeededRandomSource(seed).draw(row, Purpose.RESIDUAL, 0)] > 0


def plain_distribution(logits: list[float], policy: SamplingPolicy) -> list[float]:
    """Temperature, then top-k (ties stay), then top-p, one token at a time."""
    if policy.temperature == 0:
        best = max(range(len(logits)), key=lambda i: (logits[i], -i))
        return [float(i == best) for i in range(len(logits))]
    scaled = [x / policy.temperature for x in logits]
    if policy.top_k:
        kth = sorted(scaled, reverse=True)[min(policy.top_k, len(scaled)) - 1]
        scaled = [x if x >= kth else -math.inf for x in scaled]
    weights = [math.exp(x - max(scaled)) for x in scaled]
    shares = [w / sum(weights) for w in weights]
    kept, before = set(), 0.0
    for i in sorted(range(len(shares)), key=lambda i: (-shares[i], i)):
        if before >= policy.top_p:
            break
        kept.add(i)
        before += shares[i]
    total = sum(shares[i] for i in kept)
    return [shares[i] / total if i in kept else 0.0 for i in range(len(shares))]


@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=9),
    st.builds(
        SamplingPolicy,
        temperature=st.sampled_from([0.0, 0.25, 1.0, 3.0]),
        top_k=st.integers(0, 9),
        top_p=st.sampled_from([1.0, 0.99, 0.77, 0.31]),
    ),
)
@example([0, 0, 0, 0], SamplingPolicy(1.0, top_p=0.5))  # held by two of them, just
def test_the_policy_is_temperature_then_top_k_then_top_p(
    eighths: list[int], policy: SamplingPolicy
) -> None:
    logits = [x / 8 for x in eighths]
    row = probabilities(np.array(logits, np.float32), policy)
    np.testing.assert_allclose(row, plain_distribution(logits, policy), atol=1e-6)


def test_a_tiny_temperature_is_greedy_and_not_an_overflow() -> None:
    logits = np.array([1e4, 3e4, -2e4], np.float32)
    policy = SamplingPolicy(1e-300)
    assert probabilities(logits, policy).tolist() == [0, 1, 0]
    assert coupled_token(logits, policy, 0) == 1
    assert np.isneginf(scaled_logits(logits, SamplingPolicy(5e-324))[[0, 2]]).all()


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": 101}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"grammar": "x" * (MAX_GRAMMAR + 1)}, "at most 4096 characters"),
    ],
)
def test_a_policy_out_of_range_is_refused_by_name(fields: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SamplingPolicy(**fields)


tokens = st.lists(st.integers(0, 2**20), max_size=8)


@given(st.integers(0, 2**64 - 1), tokens, tokens)
def test_a_digest_rolls_on_and_tells_answers_apart(
    seed: int, first: list[int], second: list[int]
) -> None:
    start = PrefixDigest(0, seed)
    assert start.extend(first).extend(second) == start.extend(first + second)
    assert start.extend(first).length == len(first)
    assert 0 <= start.extend(first).hash < 2**64
    assert (start.extend(first) == start.extend(second)) == (first == second)


def test_a_digest_of_many_near_answers_never_collides() -> None:
    start = request_digest("x")
    hashes = {start.extend((a, b)).hash for a in range(200) for b in range(200)}
    assert len(hashes) == 40_000


def test_parts_of_a_request_cannot_flow_into_each_other() -> None:
    assert request_digest("ab", "c") != request_digest("a", "bc")
    assert request_digest(b"", "x") != request_digest("x", b"")
    assert request_digest(np.float64(0.8), np.int64(3)) == request_digest(0.8, 3)
    assert str(SamplingPolicy(1).temperature) == str(SamplingPolicy(1.0).temperature)


OPENING = Open(7, CLAUSES.request("find", b"jpeg"), SamplingPolicy(0.8, 5, 0.9, 3), "coupled")


@pytest.mark.parametrize(
    "change",
    [
        {"nonce": 8},
        {"rule": "rejection"},
        {"draft_identity": "other"},
        {"policy": SamplingPolicy(0.81, 5, 0.9, 3)},
        {"policy": SamplingPolicy(0.8, 6, 0.9, 3)},
        {"policy": SamplingPolicy(0.8, 5, 0.91, 3)},
        {"policy": SamplingPolicy(0.8, 5, 0.9, 4)},
        {"policy": SamplingPolicy(0.8, 5, 0.9, 3, grammar="start: /a/")},
    ],
)
def test_whatever_defines_an_answer_is_in_its_digest(change: dict) -> None:
    base = base_digest(OPENING, b"prompt", b"spec")
    assert base_digest(replace(OPENING, **change), b"prompt", b"spec") != base
    assert base_digest(OPENING, b"other", b"spec") != base
    assert base_digest(OPENING, b"prompt", b"other") != base


def test_robot_and_cloud_of_other_releases_have_the_same_numbers() -> None:
    """What is on the wire or drawn on both sides: a change here is another protocol."""
    digest = PrefixDigest(3, 77).extend((1, 2, 151000))
    assert digest == PrefixDigest(6, 0x9B258D264D79059C)
    assert digest.short == 0x9B258D26
    assert request_digest("find", b"\x01", 0.8).hash == 0x86B4AA020B799A68
    draws = uniform(5, Purpose.TAIL, 9, [0, 7], 2)
    expected = ["0x1.3ccae37c497ccp-3", "0x1.eae1dcbacd16bp-1"]
    assert [float(draw).hex() for draw in draws] == expected


def test_each_trial_at_a_place_is_a_choice_of_its_own() -> None:
    source = SeededRandomSource(1)
    choices = {
        tuple(source.accept(0.5, Purpose.ACCEPT, at, trial) for at in range(64))
        for trial in range(4)
    }
    assert len(choices) == 4
