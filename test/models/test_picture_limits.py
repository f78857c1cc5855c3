"""A draft model that looks less closely: fewer image tokens, the same prompt by its digest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import pytest
import torch
from helpers.checkpoints import (
    CLOSE,
    FAMILIES,
    checkpoint,
    difference,
    jpeg,
    prompt_of,
    reference,
    vlm,
)

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.image import PictureLimits
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Prompt, Request
from edge_cloud_spec.models.vlm import Vlm, diverse_tokens

TOKENS = [5, 90, 33]
RESIZED, PRUNED = PictureLimits(max_pixels=2048), PictureLimits(max_image_tokens=5)
BOTH = PictureLimits(4096, 3)
WHOLE = PictureLimits()


@lru_cache
def drafter(family: str = "qwen3_vl") -> Vlm:
    """One whose limits the tests change."""
    return load(checkpoint(family))


@contextmanager
def looking(model: Vlm, limits: PictureLimits, seed: int = 0) -> Iterator[Prompt]:
    """A prompt of the model as it looks so closely."""
    model.limit_picture(limits)
    try:
        yield prompt_of(model, seed)
    finally:
        model.limit_picture(WHOLE)


def image_tokens(model: Vlm, prompt: Prompt) -> int:
    token = model.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    return int(np.count_nonzero(prompt.input_ids == token))


def fresh_rows(model: Vlm, prompt: Prompt) -> np.ndarray:
    model.use_memory(KvMemory())
    return model.open(prompt).forward(TOKENS)


@pytest.mark.parametrize("limits", [RESIZED, PRUNED, BOTH], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_smaller_picture_has_fewer_tokens_and_the_digest_of_the_whole(
    family: str, limits: PictureLimits
) -> None:
    model, whole = drafter(family), prompt_of(vlm(family))
    with looking(model, limits) as prompt:
        assert prompt.digest == whole.digest
        assert 0 < image_tokens(model, prompt) < image_tokens(model, whole)
        dropped = image_tokens(model, whole) - image_tokens(model, prompt)
        assert len(prompt.input_ids) == len(whole.input_ids) - dropped
        said = model.tokenizer.decode(prompt.input_ids, skip_special_tokens=True)
        assert said == model.tokenizer.decode(whole.input_ids, skip_special_tokens=True)
        other = model.prompt(
            Request("find the silver bottle", jpeg(9)), vlm(family).spec("You guide a robot.", 64)
        )
        assert other.digest != whole.digest


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resized_picture_is_what_transformers_sees_in_it(family: str) -> None:
    model = drafter(family)
    with looking(model, RESIZED) as prompt:
        assert difference(fresh_rows(model, prompt), family, prompt, TOKENS) < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_pruned_tokens_are_as_if_nobody_saw_them(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, whole = drafter(family), prompt_of(vlm(family), seed=5)
    image = np.flatnonzero(whole.input_ids == reference(family).config.image_token_id)
    kept = np.array([1, 4, 5, 9, len(image) - 1])
    monkeypatch.setattr("edge_cloud_spec.models.vlm.diverse_tokens", lambda *_: kept)
    with looking(model, PRUNED, seed=5) as prompt:
        rows = fresh_rows(model, prompt)
    assert difference(rows, family, whole, TOKENS, np.delete(image, kept)) < CLOSE
    others = difference(rows, family, whole, TOKENS, np.delete(image, kept - 1))
    assert others > 2 * CLOSE, "the check sees no difference"


def test_each_size_has_its_own_name_prefixes_and_rows_also_after_an_eviction() -> None:
    model, expected, names = drafter(), {}, set()
    for limits in (WHOLE, RESIZED, PRUNED, BOTH):
        with looking(model, limits) as prompt:
            expected[limits] = fresh_rows(model, prompt)
            names.add(model.identity)
    assert len(names) == 4 and model.identity == vlm().identity
    model.use_memory(KvMemory())  # one for all of them, twice
    for limits in (WHOLE, RESIZED, PRUNED, BOTH) * 2:
        with looking(model, limits) as prompt:
            session = model.open(prompt)
        for _ in range(2):
            assert np.abs(session.forward(TOKENS) - expected[limits]).max() < CLOSE
            assert session.evict()
    assert model.memory.prefix_hits >= 4


def test_more_than_the_whole_picture_changes_nothing() -> None:
    model, whole = drafter(), prompt_of(vlm())
    with looking(model, PictureLimits(10**9, 10**9)) as prompt:
        assert np.array_equal(prompt.input_ids, whole.input_ids)
        assert prompt.images[0].grid == whole.images[0].grid


def test_what_is_no_limit_says_what_to_give() -> None:
    for name, value in (("max_pixels", -1), ("max_image_tokens", -7)):
        with pytest.raises(UserError, match=f"{name} is {value}: give 1 or more, or 0"):
            PictureLimits(**{name: value})
    model = drafter()
    least = model.preprocessing.spec.token_pixels
    with pytest.raises(UserError, match=f"stands for {least} pixels; give as many or more"):
        model.limit_picture(PictureLimits(max_pixels=least - 1))
    with looking(model, PictureLimits(max_pixels=least)) as prompt:
        assert image_tokens(model, prompt) == 1


def test_of_equal_tokens_one_stays() -> None:
    rng = np.random.default_rng(4)
    kinds = rng.normal(size=(6, 32))
    which = np.concatenate([rng.permutation(6), rng.integers(0, 6, 60)])
    loud = rng.uniform(0.5, 2.0, (66, 1))  # lengths do not count
    features = torch.from_numpy((kinds[which] * loud).astype(np.float32))
    assert set(which[diverse_tokens(features, 6)]) == set(range(6))
    assert diverse_tokens(features, 66).tolist() == list(range(66))
    for count in (0, 67):
        with pytest.raises(ValueError, match="cannot be kept"):
            diverse_tokens(features, count)
