"""A prompt's pass in steps, and a draft scored with it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import FAMILIES, full_logits, prompt_of, vlm
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.prompt import Prompt
from edge_cloud_spec.models.session import ALL_ROWS, Prefill, Session
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
        patch.setattr("edge_cloud_spec.models.vlm.decode_image", None)
        again = prompt_of(model, 40)
        assert again.digest == prompts[0].digest
        with pytest.raises(TypeError):
            prompt_of(model, 44)  # a new one is
    assert np.array_equal(again.pixel_values, prompts[0].pixel_values)


EQUAL = 1e-4
PROMPT_TOKENS = [5, 90, 33, 7, 12]
TREES = {"chain": None, "tree": [-1, 0, 0, -1, 3], "siblings": [-1, -1, -1, -1, -1]}


def opened(model: Vlm, tokens: Any = (), parents: Any = None, step: int = ALL_ROWS) -> Session:
    """A session after a prompt of which nothing is kept; this draft is scored with it."""
    model.use_memory(KvMemory())
    prefill = model.prefill(prompt_of(model))
    while not prefill.step(step):
        prefill.draft(tokens, parents)
    return prefill.session


def count_passes(model: Vlm, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    passes: list[int] = []
    forward = model.transformer.forward

    def counted(hidden: Any, *given: Any, **options: Any) -> Any:
        passes.append(len(hidden))
        return forward(hidden, *given, **options)

    monkeypatch.setattr(model.transformer, "forward", counted)
    return passes


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("step", [ALL_ROWS, 7])
def test_its_rows_are_those_of_a_pass_of_its_own(
    family: str, shape: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, parents = vlm(family), TREES[shape]
    expected = opened(model).forward(PROMPT_TOKENS, parents)
    session = opened(model, PROMPT_TOKENS, parents, step)
    passes = count_passes(model, monkeypatch)
    rows = session.forward(PROMPT_TOKENS, parents)
    assert passes == []
    assert np.abs(rows - expected).max() < EQUAL


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_committed_of_it_is_as_if_it_were_said_token_by_token(family: str) -> None:
    model = vlm(family)
    session = opened(model, PROMPT_TOKENS, TREES["tree"])
    session.forward(PROMPT_TOKENS, TREES["tree"])
    session.commit([0, 2])
    session.extend([8])
    rows = session.forward([4])
    whole = full_logits(family, prompt_of(model), [PROMPT_TOKENS[0], PROMPT_TOKENS[2], 8, 4])
    assert np.abs(rows - whole[3:, : rows.shape[1]]).max() < EQUAL


@pytest.mark.parametrize("family", FAMILIES)
def test_another_draft_has_a_pass_of_its_own(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = vlm(family)
    expected = opened(model).forward([5, 91])
    for other in (PROMPT_TOKENS, PROMPT_TOKENS[:2], [*PROMPT_TOKENS, 1]):
        session = opened(model, other)
        with monkeypatch.context() as patch:
            passes = count_passes(model, patch)
            rows = session.forward([5, 91])
        assert len(passes) == 1
        assert np.abs(rows - expected).max() < EQUAL


@pytest.mark.parametrize("family", FAMILIES)
def test_a_session_that_lost_its_cache_scores_it_again(family: str) -> None:
    model = vlm(family)
    expected = opened(model).forward(PROMPT_TOKENS)
    session = opened(model, PROMPT_TOKENS)
    assert session.evict()
    assert np.abs(session.forward(PROMPT_TOKENS) - expected).max() < EQUAL


def test_a_prompt_that_is_known_whole_needs_no_pass_and_scores_no_draft() -> None:
    model = vlm(FAMILIES[0])
    expected = opened(model).forward(PROMPT_TOKENS)
    again = model.prefill(prompt_of(model))
    again.draft(PROMPT_TOKENS)
    assert np.abs(again.finish().forward(PROMPT_TOKENS) - expected).max() < EQUAL


def test_a_token_that_there_is_not_ends_nothing() -> None:
    """It is refused where the pass over it is asked for, and not in the prompt's."""
    model = vlm(FAMILIES[0])
    session = opened(model, [2**31])
    with pytest.raises(ValueError, match="not all below"):
        session.forward([2**31])
    assert session.forward(PROMPT_TOKENS).shape[0] == 1 + len(PROMPT_TOKENS)
