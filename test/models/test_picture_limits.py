"""A draft model that looks less closely: fewer image tokens, the same prompt by its digest."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from helpers.checkpoints import (
    CLOSE,
    FAMILIES,
    difference,
    fresh,
    prompt_of,
    reference,
    vlm,
)

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.image import PictureLimits, cosines_of, diverse_tokens
from edge_cloud_spec.models.prompt import Prompt
from edge_cloud_spec.models.vlm import Vlm, _cosines

TOKENS = [5, 90, 33]
RESIZED, PRUNED = PictureLimits(max_pixels=2048), PictureLimits(max_image_tokens=5)
BOTH = PictureLimits(4096, 3)
WHOLE = PictureLimits()


def looking(limits: PictureLimits, family: str = "qwen3_vl", seed: int = 0) -> tuple[Vlm, Prompt]:
    """A model that looks so closely and keeps nothing yet, and a prompt of it."""
    model = fresh(family)
    model.limit_picture(limits)
    return model, prompt_of(model, seed)


def image_tokens(model: Vlm, prompt: Prompt) -> int:
    token = model.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    return int(np.count_nonzero(prompt.input_ids == token))


@pytest.mark.parametrize("limits", [RESIZED, PRUNED, BOTH], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_smaller_picture_has_fewer_tokens_and_the_digest_of_the_whole(
    family: str, limits: PictureLimits
) -> None:
    (model, prompt), whole = looking(limits, family), prompt_of(vlm(family))
    assert prompt.digest == whole.digest
    assert 0 < image_tokens(model, prompt) < image_tokens(model, whole)
    dropped = image_tokens(model, whole) - image_tokens(model, prompt)
    assert len(prompt.input_ids) == len(whole.input_ids) - dropped
    said = model.tokenizer.decode(prompt.input_ids, skip_special_tokens=True)
    assert said == model.tokenizer.decode(whole.input_ids, skip_special_tokens=True)
    assert prompt_of(model, seed=9).digest != whole.digest


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resized_picture_is_what_transformers_sees_in_it(family: str) -> None:
    model, prompt = looking(RESIZED, family)
    assert difference(model.open(prompt).forward(TOKENS), family, prompt, TOKENS) < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_pruned_tokens_are_as_if_nobody_saw_them(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prompt_of(vlm(family), seed=5)
    image = np.flatnonzero(whole.input_ids == reference(family).config.image_token_id)
    kept = np.array([1, 4, 5, 9, len(image) - 1])
    monkeypatch.setattr("edge_cloud_spec.models.vlm.diverse_tokens", lambda *_: kept)
    model, prompt = looking(PRUNED, family, seed=5)
    rows = model.open(prompt).forward(TOKENS)
    assert difference(rows, family, whole, TOKENS, np.delete(image, kept)) < CLOSE
    others = difference(rows, family, whole, TOKENS, np.delete(image, kept - 1))
    assert others > 2 * CLOSE, "the check sees no difference"


def test_each_size_has_its_own_name_prefixes_and_rows_also_after_an_eviction() -> None:
    model, expected, names = fresh(), {}, set()
    for limits in (WHOLE, RESIZED, PRUNED, BOTH):
        alone, prompt = looking(limits)
        expected[limits] = alone.open(prompt).forward(TOKENS)
        names.add(alone.identity)
    assert len(names) == 4 and model.identity in names
    for limits in (WHOLE, RESIZED, PRUNED, BOTH) * 2:  # one model looks in all ways
        model.limit_picture(limits)
        session = model.open(prompt_of(model))
        model.limit_picture(WHOLE)
        for _ in range(2):
            assert np.abs(session.forward(TOKENS) - expected[limits]).max() < CLOSE
            assert session.evict()
    assert model.memory.prefix_hits >= 4 and model.identity == vlm().identity


def test_more_than_the_whole_picture_changes_nothing() -> None:
    (_, prompt), whole = looking(PictureLimits(10**9, 10**9)), prompt_of(vlm())
    assert np.array_equal(prompt.input_ids, whole.input_ids)
    assert prompt.images[0].grid == whole.images[0].grid


def test_what_is_no_limit_says_what_to_give() -> None:
    for name, value in (("max_pixels", -1), ("max_image_tokens", -7)):
        with pytest.raises(UserError, match=f"{name} is {value}: give 1 or more, or 0"):
            PictureLimits(**{name: value})
    least = vlm().preprocessing.spec.token_pixels
    with pytest.raises(UserError, match=f"stands for {least} pixels; give as many or more"):
        looking(PictureLimits(max_pixels=least - 1))
    assert image_tokens(*looking(PictureLimits(max_pixels=least))) == 1


def test_of_equal_tokens_one_stays() -> None:
    rng = np.random.default_rng(4)
    kinds = rng.normal(size=(6, 32))
    which = np.concatenate([rng.permutation(6), rng.integers(0, 6, 60)])
    loud = rng.uniform(0.5, 2.0, (66, 1))  # lengths do not count
    features = (kinds[which] * loud).astype(np.float32)
    in_torch = _cosines(torch.from_numpy(features))
    assert np.abs(cosines_of(features) - in_torch).max() < 1e-6, "on a robot without torch"
    for cosines in (cosines_of(features), in_torch):
        kept = partial(diverse_tokens, 66, likeness=lambda cosines=cosines: cosines)
        assert set(which[kept(6)]) == set(range(6))
        assert kept(66).tolist() == list(range(66))
        for count in (0, 67):
            with pytest.raises(ValueError, match="cannot be kept"):
                kept(count)
