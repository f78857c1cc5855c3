"""Every acceptance rule emits what the target alone would have."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from enumeration import BranchingChooser, outcomes
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_cloud_spec.decoding.accept import Acceptance, accept, rejection, residual
from edge_cloud_spec.decoding.choose import Chooser, SeededChooser
from edge_cloud_spec.decoding.draft import BadDraft, Draft
from edge_cloud_spec.decoding.noise import Purpose
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy, distribution
from edge_cloud_spec.decoding.propose import coupled_token, sampled_token

Joint = dict[tuple[int, ...], float]
Rule = Callable[[Draft, NDArray[np.float32], int, Chooser], Acceptance]


class Model:
    """Logits [V] that depend on the whole prefix; ``spread`` 0 makes all tokens equal."""

    def __init__(self, seed: int, vocabulary: int, spread: float) -> None:
        self._seed, self._vocabulary, self._spread = seed, vocabulary, spread
        self._rows: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def logits(self, prefix: tuple[int, ...]) -> NDArray[np.float32]:
        if prefix not in self._rows:
            random = np.random.default_rng((self._seed, *prefix, 7))
            row = self._spread * random.standard_normal(self._vocabulary)
            self._rows[prefix] = row.astype(np.float32)
        return self._rows[prefix]

    def after(self, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        """Logits [1 + n, V] along a chain."""
        return np.stack([self.logits(tokens[:i]) for i in range(len(tokens) + 1)])

    def probabilities(self, prefix: tuple[int, ...], policy: SamplingPolicy) -> NDArray[np.float64]:
        row = distribution(self.logits(prefix), policy).astype(np.float64)
        return row / row.sum()


def target_joint(target: Model, policy: SamplingPolicy, length: int) -> Joint:
    """The probability of each answer of this length from the target alone."""
    joint: Joint = {(): 1.0}
    for _ in range(length):
        joint = {
            (*prefix, token): mass * p
            for prefix, mass in joint.items()
            for token, p in enumerate(target.probabilities(prefix, policy))
            if p > 0
        }
    return joint


def one_round(
    draft_model: Model, target: Model, policy: SamplingPolicy, gamma: int, rule: Rule
) -> Joint:
    """The probability of each answer of gamma + 1 tokens: a round, then the target alone."""

    def run(chooser: BranchingChooser) -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        rows = []
        for position in range(gamma):
            token, row = sampled_token(draft_model.logits(tokens), policy, position, chooser)
            tokens += (token,)
            rows.append(row)
        draft = Draft(tokens, rows=np.stack(rows))
        taken = rule(draft, distribution(target.after(tokens), policy), 0, chooser)
        return (*(tokens[node] for node in taken.path), taken.token)

    joint: Joint = defaultdict(float)
    for emitted, mass in outcomes(run):
        for rest, p in _continued(target, policy, emitted, gamma + 1 - len(emitted)).items():
            joint[rest] += mass * p
    return joint


def _continued(target: Model, policy: SamplingPolicy, prefix: tuple[int, ...], more: int) -> Joint:
    joint: Joint = {prefix: 1.0}
    for _ in range(more):
        joint = {
            (*p, token): mass * q
            for p, mass in joint.items()
            for token, q in enumerate(target.probabilities(p, policy))
            if q > 0
        }
    return joint


def distance(a: Joint, b: Joint) -> float:
    """The largest difference of a probability."""
    return max(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in {*a, *b})


policies = st.builds(
    SamplingPolicy,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 2, 3]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.6]),
)


@settings(max_examples=25)
@given(
    sizes=st.sampled_from([(2, 1), (2, 3), (3, 2), (4, 3), (5, 2), (8, 1), (8, 2)]),
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    spreads=st.tuples(st.sampled_from([0.0, 1.0, 3.0, 20.0]), st.sampled_from([0.0, 1.0, 3.0])),
    policy=policies,
)
@example(sizes=(4, 3), seeds=(1, 1), spreads=(1.0, 1.0), policy=SamplingPolicy(1.0))  # P = Q
@example(sizes=(4, 2), seeds=(1, 2), spreads=(20.0, 20.0), policy=SamplingPolicy(0.1))
def test_rejection_emits_exactly_the_targets_distribution(
    sizes: tuple[int, int],
    seeds: tuple[int, int],
    spreads: tuple[float, float],
    policy: SamplingPolicy,
) -> None:
    vocabulary, gamma = sizes
    draft_model = Model(seeds[0], vocabulary, spreads[0])
    target = Model(seeds[1], vocabulary, spreads[1])
    joint = one_round(draft_model, target, policy, gamma, rejection)
    assert sum(joint.values()) == pytest.approx(1, abs=1e-9)
    assert distance(joint, target_joint(target, policy, gamma + 1)) < 1e-9


def inverted(
    draft: Draft, rows: NDArray[np.float32], position: int, chooser: Chooser
) -> Acceptance:
    """The ratio as DSSD and TSLT print it, q / p."""
    assert draft.rows is not None
    for i, token in enumerate(draft.tokens):
        p, q = rows[i].astype(np.float64), draft.rows[i].astype(np.float64)
        if not chooser.accept(min(1.0, q[token] / p[token]), position + i):
            return Acceptance(
                tuple(range(i)), chooser.draw(residual(p, q), Purpose.RESIDUAL, position + i)
            )
    last = len(draft)
    token = chooser.draw(rows[last].astype(np.float64), Purpose.RESIDUAL, position + last)
    return Acceptance(tuple(range(last)), token)


def test_the_inverted_ratio_is_found_out() -> None:
    policy = SamplingPolicy(1.0)
    target = Model(2, 5, 1.5)
    joint = one_round(Model(1, 5, 1.5), target, policy, 2, inverted)
    exact = target_joint(target, policy, 3)
    assert sum(abs(joint[key] - exact[key]) for key in exact) / 2 > 0.2


def test_dropping_a_drafted_token_by_its_value_is_found_out() -> None:
    """P = Q = (1/2, 1/2): a draft that is thrown away when it is token 0 is not exact."""
    half = Model(0, 2, 0.0)
    policy = SamplingPolicy(1.0)

    def run(chooser: BranchingChooser) -> int:
        token, row = sampled_token(half.logits(()), policy, 0, chooser)
        draft = Draft((token,), rows=row[None]) if token == 1 else Draft((), rows=row[None][:0])
        rows = distribution(half.after(draft.tokens), policy)
        taken = rejection(draft, rows, 0, chooser)
        return token if taken.path else taken.token

    mass = sum(p for token, p in outcomes(run) if token == 0)
    assert mass == pytest.approx(0.25)


def test_many_rounds_by_seed_have_the_targets_distribution() -> None:
    """The draws of one round are fresh in the next, though positions and seed are the same."""
    draft_model, target = Model(3, 3, 1.0), Model(4, 3, 1.0)
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    runs = 2000
    for seed in range(runs):
        policy = SamplingPolicy(1.0, seed=seed)
        chooser = SeededChooser(seed)
        answer: tuple[int, ...] = ()
        while len(answer) < 4:
            tokens, rows = answer, []
            for _ in range(2):
                token, row = sampled_token(draft_model.logits(tokens), policy, len(tokens), chooser)
                tokens += (token,)
                rows.append(row)
            draft = Draft(tokens[len(answer) :], rows=np.stack(rows))
            logits = target.after(tokens)[len(answer) :]
            taken = accept("rejection", draft, logits, policy, len(answer), chooser)
            answer += (*(draft.tokens[node] for node in taken.path), taken.token)
        counts[answer[:4]] += 1
    assert_chi_square(counts, target_joint(target, SamplingPolicy(1.0), 4), runs)


def assert_chi_square(counts: dict[tuple[int, ...], int], expected: Joint, runs: int) -> None:
    """Within five standard deviations of a chi-square's mean."""
    statistic = sum((counts.get(k, 0) - runs * p) ** 2 / (runs * p) for k, p in expected.items())
    freedom = len(expected) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


def own_tokens(target: Model, policy: SamplingPolicy, start: int, length: int) -> list[int]:
    """What the target alone says, token by token; the prefix begins at position ``start``."""
    tokens: tuple[int, ...] = ()
    for i in range(length):
        tokens += (coupled_token(target.logits(tokens), policy, start + i),)
    return list(tokens)


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
    taken = accept(rule, draft, logits, policy, start, SeededChooser(seed))
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
    assert_chi_square(counts, target_joint(target, base, 2), runs)


def test_coupled_robot_and_cloud_agree_more_often_than_their_draws_would_alone() -> None:
    """Acceptance is at least (1 - TV) / (1 + TV)."""
    draft_model, target = Model(6, 6, 1.0), Model(7, 6, 1.0)
    policies = [SamplingPolicy(1.0, seed=seed) for seed in range(1200)]
    p = target.probabilities((), policies[0])
    q = draft_model.probabilities((), policies[0])
    distance = np.abs(p - q).sum() / 2
    equal = np.mean(
        [
            coupled_token(draft_model.logits(()), policy, 0)
            == coupled_token(target.logits(()), policy, 0)
            for policy in policies
        ]
    )
    assert equal > (1 - distance) / (1 + distance) - 0.05
    assert equal > float(p @ q) + 0.1  # what independent draws would give


def test_rejection_refuses_what_it_cannot_judge() -> None:
    rows = np.full((2, 3), 1 / 3, np.float32)
    logits = np.zeros((3, 3), np.float32)
    chooser = SeededChooser(0)
    sampling = SamplingPolicy(1.0)
    for draft in (Draft((1, 2)), Draft((1, 2), parents=(-1, -1), rows=rows)):
        with pytest.raises(BadDraft, match="rejection needs a chain and the rows"):
            accept("rejection", draft, logits, sampling, 0, chooser)
    with pytest.raises(BadDraft, match="use greedy"):
        accept("rejection", Draft((1, 2), rows=rows), logits, GREEDY, 0, chooser)


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
def test_logits_that_are_not_numbers_are_an_error_not_a_token(rule: str) -> None:
    policy = GREEDY if rule == "greedy" else SamplingPolicy(1.0)
    logits = np.zeros((2, 3), np.float32)
    logits[0, 1] = np.nan
    draft = Draft((0,), rows=np.full((1, 3), 1 / 3, np.float32))
    with pytest.raises(ValueError, match="not a number"):
        accept(rule, draft, logits, policy, 0, SeededChooser(0))


def test_enumeration_itself_visits_every_outcome_once() -> None:
    weights = np.array([0.5, 0.0, 0.25, 0.25])

    def run(chooser: BranchingChooser) -> tuple[object, ...]:
        first = chooser.draw(weights, Purpose.DRAFT, 0)
        return (first, chooser.accept(0.3, 0), chooser.accept(1.0, 1))

    found = dict(outcomes(run))
    assert set(found) == {(a, b, True) for a, b in itertools.product((0, 2, 3), (True, False))}
    assert sum(found.values()) == pytest.approx(1)
