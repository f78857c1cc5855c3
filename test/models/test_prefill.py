"""A prompt's pass in steps, and a draft scored with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import CLOSE, FAMILIES, difference, fresh, prompt_of, vlm
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.session import ALL_ROWS, Session
from edge_cloud_spec.models.vlm import Vlm

TOKENS = [5, 90, 33]
TEXTS = ("find the silver bottle", "find the silver bottle now", "find the red chair")


def error(family: str, session: Session, seed: int, text: str = TEXTS[0]) -> float:
    """How far the logits after the prompt and some tokens are from transformers' own."""
    return difference(session.forward(TOKENS), family, prompt_of(vlm(family), seed, text), TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6)
@given(
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    asked=st.lists(st.tuples(st.integers(1, 2), st.sampled_from(TEXTS)), min_size=2, max_size=5),
)
def test_however_prompts_are_cut_in_turns_the_rows_are_the_same(
    family: str, cuts: list[int], asked: list[tuple[int, str]]
) -> None:
    """What they share is taken over at any cut, and a session computes between their steps."""
    model = fresh(family)
    between = model.open(prompt_of(model, *asked[0]))
    for first, second in pairwise(asked):
        prefills = [model.prefill(prompt_of(model, *each)) for each in (first, second)]
        steps, turn = [False, False], 0
        while not all(steps):
            steps = [prefill.step(cuts[turn % len(cuts)]) for prefill in prefills]
            turn += 1
            between.forward([3, 4], [-1, -1])
        for prefill, each in zip(prefills, (first, second), strict=True):
            assert error(family, prefill.session, *each) < CLOSE
    assert error(family, between, *asked[0]) < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_the_vision_part_is_a_step_of_its_own_and_others_have_their_rows_at_most(
    family: str,
) -> None:
    model = fresh(family)
    prefill = model.prefill(prompt_of(model))
    left = prefill.rows_left
    assert not prefill.step(ALL_ROWS)
    assert prefill.rows_left == left
    with pytest.raises(ValueError, match="not computed yet"):
        _ = prefill.session
    while not prefill.step(16):
        assert left - prefill.rows_left == 16
        left = prefill.rows_left
    assert prefill.rows_left == 0
    assert prefill.step(16)  # nothing changes after the last


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_is_asked_again_needs_no_pass_and_another_does(family: str) -> None:
    model = fresh(family)
    first = model.open(prompt_of(model, 1)).logits_after(-1)
    prefill = model.prefill(prompt_of(model, 1))
    assert prefill.rows_left == 0
    prefill.draft(TOKENS)  # there is no pass to score it in
    assert prefill.step(1)
    assert np.array_equal(prefill.session.logits_after(-1), first)
    assert error(family, prefill.session, 1) < CLOSE
    assert model.prefill(prompt_of(model, 1, TEXTS[1])).rows_left > 0


def test_known_logits_have_the_vocabulary_that_is_asked_for() -> None:
    model = fresh()
    whole = model.vocabulary
    first = model.open(prompt_of(model, 1)).logits_after(-1)
    model.crop(whole - 7)
    assert len(model.open(prompt_of(model, 1)).logits_after(-1)) == whole - 7
    model.crop(whole)
    assert np.abs(model.open(prompt_of(model, 1)).logits_after(-1) - first).max() < CLOSE


def test_an_evicted_session_comes_back_from_the_prompt_that_is_kept() -> None:
    model = fresh()
    asked, answered = (model.open(prompt_of(model, 1)) for _ in range(2))
    answered.extend(TOKENS)
    expected = answered.logits_after(-1)
    assert asked.evict() and answered.evict()
    assert asked.restore().step(1)  # no row is left
    assert not answered.restore().step(len(TOKENS) - 1)  # the answer's are
    assert np.abs(answered.logits_after(-1) - expected).max() < CLOSE
    assert np.array_equal(asked.logits_after(-1), model.open(prompt_of(model, 1)).logits_after(-1))


def test_a_picture_that_is_known_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = vlm()
    prompts = [prompt_of(model, seed) for seed in range(40, 44)]
    with monkeypatch.context() as patch:
        patch.setattr("edge_cloud_spec.models.processor.decode_image", None)
        again = prompt_of(model, 40)
        assert again.digest == prompts[0].digest
        with pytest.raises(TypeError):
            prompt_of(model, 44)  # a new one is
    assert np.array_equal(again.images[0].pixels(), prompts[0].images[0].pixels())


DRAFT = [5, 90, 33, 7, 12]
PARENTS = {"chain": None, "tree": [-1, 0, 0, -1, 3], "siblings": [-1, -1, -1, -1, -1]}


def opened(model: Vlm, tokens: Any = (), parents: Any = None, step: int = ALL_ROWS) -> Session:
    """A session after a prompt of which nothing is kept; this draft is scored with it."""
    model.use_memory(KvMemory())
    prefill = model.prefill(prompt_of(model))
    while not prefill.step(step):
        prefill.draft(tokens, parents)
    return prefill.session


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "scored, shape, step, passes",
    [
        *((DRAFT, shape, step, 0) for shape in PARENTS for step in (ALL_ROWS, 7)),
        ([5, 91], "chain", ALL_ROWS, 1),
        (DRAFT, "tree", ALL_ROWS, 1),  # as a chain
        (DRAFT[:2], "chain", ALL_ROWS, 1),
        ([*DRAFT, 1], "chain", ALL_ROWS, 1),
        ([2**31], "chain", ALL_ROWS, 1),  # a token that there is not ends nothing
    ],
)
def test_a_draft_scored_with_the_prompt_needs_no_pass_and_another_has_its_own(
    family: str,
    scored: Sequence[int],
    shape: str,
    step: int,
    passes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, parents = vlm(family), PARENTS[shape]
    expected = opened(model).forward(DRAFT, parents)
    session = opened(model, scored, None if passes else parents, step)
    made: list[int] = []
    forward = model.transformer.forward

    def counted(hidden: Any, *given: Any, **options: Any) -> Any:
        made.append(len(hidden))
        return forward(hidden, *given, **options)

    monkeypatch.setattr(model.transformer, "forward", counted)
    assert np.abs(session.forward(DRAFT, parents) - expected).max() < CLOSE
    assert len(made) == passes


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_committed_of_it_is_as_if_it_were_said_token_by_token(
    family: str, loses: bool
) -> None:
    model = vlm(family)
    session = opened(model, DRAFT, PARENTS["tree"])
    assert not loses or session.evict()
    session.forward(DRAFT, PARENTS["tree"])
    session.commit([0, 2])
    session.extend([8])
    rows = session.forward([4])
    assert difference(rows, family, prompt_of(model), [DRAFT[0], DRAFT[2], 8, 4]) < CLOSE
