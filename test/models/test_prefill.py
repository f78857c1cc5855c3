"""A prompt in steps gives the rows of a prompt at once, whatever comes between the steps."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from helpers.checkpoints import FAMILIES, full_logits, prompt_of, vlm
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.prefill import ALL_ROWS, Prefill
from edge_cloud_spec.models.prompt import Prompt
from edge_cloud_spec.models.vlm import Vlm

CLOSE = 1e-4
TOKENS = [5, 90, 33]
TEXTS = ("find the silver bottle", "find the silver bottle now", "find the red chair")


def fresh(model: Vlm, prompt: Prompt) -> Prefill:
    """The prefill of a prompt of which the model keeps nothing."""
    model.use_memory(KvMemory())
    return model.prefill(prompt)


@lru_cache
def theirs(family: str, seed: int, text: str) -> np.ndarray:
    """Transformers' own logits after a prompt and some tokens."""
    return full_logits(family, prompt_of(vlm(family), seed, text), TOKENS)


def difference(family: str, seed: int, prefill: Prefill, text: str = TEXTS[0]) -> float:
    """How far the logits after the prompt and some tokens are from transformers' own."""
    rows = prefill.session.forward(TOKENS)
    return float(np.abs(rows - theirs(family, seed, text)[:, : rows.shape[1]]).max())


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6)
@given(cuts=st.lists(st.integers(1, 60), min_size=1, max_size=8), seed=st.integers(1, 3))
def test_however_it_is_cut_the_rows_are_the_same(family: str, cuts: list[int], seed: int) -> None:
    model = vlm(family)
    prefill, turn = fresh(model, prompt_of(model, seed, TEXTS[0])), 0
    while not prefill.step(cuts[turn % len(cuts)]):
        turn += 1
    assert difference(family, seed, prefill) < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_two_prompts_in_turns_and_a_session_between_them(family: str) -> None:
    model = vlm(family)
    between = model.open(prompt_of(model, 3))
    prefills = [fresh(model, prompt_of(model, 1, TEXTS[0]))]
    prefills.append(model.prefill(prompt_of(model, 2, TEXTS[2])))
    expected = between.forward([9, 8, 7])
    steps = [prefill.step(5) for prefill in prefills]
    while not all(steps):
        steps = [prefill.step(5) for prefill in prefills]
        between.forward([3, 4], [-1, -1])
    assert difference(family, 1, prefills[0]) < CLOSE
    assert difference(family, 2, prefills[1], TEXTS[2]) < CLOSE
    assert np.abs(between.forward([9, 8, 7]) - expected).max() < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_the_vision_part_is_a_step_of_its_own_and_others_have_their_rows_at_most(
    family: str,
) -> None:
    model = vlm(family)
    prompt = prompt_of(model)
    prefill = fresh(model, prompt)
    left = prefill.rows_left
    assert not prefill.step(ALL_ROWS)
    assert prefill.rows_left == left
    while not prefill.step(16):
        assert left - prefill.rows_left == 16
        left = prefill.rows_left
    assert prefill.rows_left == 0
    assert prefill.step(16)  # nothing changes after the last


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_another_prompt_are_taken_over_at_any_cut(family: str) -> None:
    model = vlm(family)
    for seed, text in [(seed, text) for seed in (1, 1, 2) for text in TEXTS]:
        prefill = model.prefill(prompt_of(model, seed, text))
        while not prefill.step(5):
            pass
        assert difference(family, seed, prefill, text) < CLOSE


def test_there_is_no_session_before_the_last_step() -> None:
    model = vlm(FAMILIES[0])
    prefill = fresh(model, prompt_of(model))
    prefill.step(1)
    with pytest.raises(ValueError, match="not computed yet"):
        _ = prefill.session


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_is_asked_again_needs_no_pass_and_another_does(family: str) -> None:
    model = vlm(family)
    model.use_memory(KvMemory())
    first = model.open(prompt_of(model, 1, TEXTS[0])).logits_after(-1)
    prefill = model.prefill(prompt_of(model, 1, TEXTS[0]))
    assert prefill.rows_left == 0
    assert prefill.step(1)
    assert np.array_equal(prefill.session.logits_after(-1), first)
    assert difference(family, 1, prefill) < CLOSE
    other = model.prefill(prompt_of(model, 1, TEXTS[1]))
    assert other.rows_left > 0
    other.finish()
    assert difference(family, 1, other, TEXTS[1]) < CLOSE


def test_known_logits_have_the_vocabulary_that_is_asked_for() -> None:
    model = vlm(FAMILIES[0])
    model.use_memory(KvMemory())
    whole = model.vocabulary
    first = model.open(prompt_of(model, 1)).logits_after(-1)
    try:
        model.crop(whole - 7)
        assert len(model.open(prompt_of(model, 1)).logits_after(-1)) == whole - 7
    finally:
        model.crop(whole)
    assert np.abs(model.open(prompt_of(model, 1)).logits_after(-1) - first).max() < CLOSE


def test_an_evicted_session_comes_back_from_the_prompt_that_is_kept() -> None:
    model = vlm(FAMILIES[0])
    model.use_memory(KvMemory())
    asked, answered = (model.open(prompt_of(model, 1)) for _ in range(2))
    answered.extend(TOKENS)
    expected = answered.logits_after(-1)
    assert asked.evict() and answered.evict()
    assert asked.restore().step(1)  # no row is left
    assert not answered.restore().step(len(TOKENS) - 1)  # the answer's are
    assert np.abs(answered.logits_after(-1) - expected).max() < CLOSE
    assert np.array_equal(asked.logits_after(-1), model.open(prompt_of(model, 1)).logits_after(-1))


def test_a_picture_that_is_known_is_not_decoded_again() -> None:
    model = vlm(FAMILIES[0])
    prompts = [prompt_of(model, seed) for seed in range(40, 44)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_patches", None)
        again = prompt_of(model, 40)
        assert again.digest == prompts[0].digest
        with pytest.raises(TypeError):
            prompt_of(model, 44)  # a new one is
    assert np.array_equal(again.pixel_values, prompts[0].pixel_values)
