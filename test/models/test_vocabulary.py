"""Unequal vocabularies are cropped to what both models mean; unequal tokenizers are refused."""

from __future__ import annotations

import pytest
from helpers.checkpoints import prompt_of, vlm

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.bench.models import crop_alike
from edge_cloud_spec.models.tokenizer import tokenizer_digest


class Words:
    """A tokenizer as far as vocabularies go."""

    def __init__(self, *words: str) -> None:
        self._ids = {word: index for index, word in enumerate(words)}

    def get_vocab(self) -> dict[str, int]:
        return self._ids


def test_padding_rows_are_cropped_and_another_tokenizer_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draft, target = vlm(seed=1, vocabulary=350), vlm(vocabulary=384)
    crop_alike(draft, target)
    assert draft.vocabulary == target.vocabulary == len(target.tokenizer) < 350
    for model in (draft, target):
        assert model.open(prompt_of(model)).forward([1, 2]).shape == (3, draft.vocabulary)
    monkeypatch.setattr(draft, "tokenizer_digest", tokenizer_digest(Words("a", "b")))
    with pytest.raises(UserError, match="different tokenizers: choose two models of one family"):
        crop_alike(draft, target)


def test_a_crop_holds_for_sessions_opened_after_it() -> None:
    model = vlm(seed=2)
    whole = model.open(prompt_of(model)).forward([1])
    model.crop(100)
    cropped = model.open(prompt_of(model)).forward([1])
    assert cropped.shape == (2, 100)
    assert abs(cropped - whole[:, :100]).max() < 1e-5
    with pytest.raises(ValueError, match="cannot crop"):
        model.crop(10_000)


def test_another_order_and_more_tokens_have_other_digests() -> None:
    words = (("a", "b"), ("b", "a"), ("a", "b", "c"), ("a", "x"))
    assert len({tokenizer_digest(Words(*each)) for each in words}) == len(words)
    assert tokenizer_digest(Words("a", "b")) == tokenizer_digest(Words("a", "b"))
