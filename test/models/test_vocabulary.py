"""Unequal vocabularies are cropped to what both models mean; unequal tokenizers are refused."""

from __future__ import annotations

import pytest
from helpers.checkpoints import prompt_of, vlm

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.tokenizer import (
    common_vocabulary,
    tokenizer_digest,
    tokens_of,
)


class Words:
    """A tokenizer as far as vocabularies go."""

    def __init__(self, *words: str) -> None:
        self._ids = {word: index for index, word in enumerate(words)}

    def get_vocab(self) -> dict[str, int]:
        return self._ids


def test_padding_rows_are_cropped_to_the_tokens_both_know() -> None:
    draft, target = vlm(seed=1, vocabulary=350), vlm(vocabulary=384)
    known = len(tokens_of(target.tokenizer))
    size = common_vocabulary(draft.tokenizer, target.tokenizer, 350, 384)
    assert size == draft.vocabulary == target.vocabulary == known < 350
    for model in (draft, target):
        assert model.open(prompt_of(model)).forward([1, 2]).shape == (3, known)


def test_a_crop_holds_for_sessions_opened_after_it() -> None:
    model = vlm(seed=2)
    whole = model.open(prompt_of(model)).forward([1])
    model.crop(100)
    cropped = model.open(prompt_of(model)).forward([1])
    assert cropped.shape == (2, 100)
    assert abs(cropped - whole[:, :100]).max() < 1e-5
    with pytest.raises(ValueError, match="cannot crop"):
        model.crop(10_000)


def test_fewer_rows_than_tokens_are_the_limit() -> None:
    assert common_vocabulary(Words("a", "b", "c"), Words("a", "b", "c"), 3, 2) == 2
    assert common_vocabulary(Words("a", "b"), Words("a", "b", "c"), 8, 8) == 2


def test_the_first_token_that_differs_is_named() -> None:
    with pytest.raises(UserError, match="id 1 is 'b' for the draft model and 'x' for the target"):
        common_vocabulary(Words("a", "b", "c"), Words("a", "x", "y"))


def test_digests_agree_on_the_common_part_only() -> None:
    short, long, other = Words("a", "b"), Words("a", "b", "c"), Words("a", "x")
    assert tokenizer_digest(short) == tokenizer_digest(long, 2)
    assert tokenizer_digest(short) != tokenizer_digest(long)
    assert tokenizer_digest(short) != tokenizer_digest(other)
