"""Wrong acceptance rules, which the enumeration of every choice must find out."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from helpers.enumeration import BranchingChooser, outcomes
from helpers.exactness import ONE, Joint, Model, continued, distance, joint_of, rows_of
from numpy.typing import NDArray

from edge_cloud_spec.decoding.accept import Acceptance, rejection
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.noise import Purpose
from edge_cloud_spec.decoding.random_source import RandomSource
from edge_cloud_spec.decoding.split import Split, largest, resample, resample_from, sparse_residual
from edge_cloud_spec.decoding.token_distribution import TokenDistribution, distribution_of

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
