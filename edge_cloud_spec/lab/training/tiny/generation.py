"""Free-running greedy answers of many prompts at once, by transformers' own model class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration

from .architecture import GRID, MERGE, PATCH
from .data import QuestionEncoder, pixels_of
from .packed import AFTER_IMAGE, PREFIX, patches

MAX_ANSWER = 32  # tokens


@dataclass(frozen=True)
class EncodedQuestion:
    """One question: the index of the image that is shown, and the ids after it."""

    image: int
    question: tuple[int, ...]


def _positions(length: int, batch: int) -> Tensor:
    """M-RoPE positions [3, B, L] of a prompt of ``length`` tokens with one 128 x 128 image."""
    side = GRID // MERGE
    cell = torch.arange(side * side)
    image = 1 + torch.stack((torch.zeros_like(cell), cell // side, cell % side))
    after = torch.arange(AFTER_IMAGE, AFTER_IMAGE + length - PREFIX + 1).expand(3, -1)
    row = torch.cat((torch.zeros(3, 1, dtype=torch.long), image, after), dim=1)
    return row[:, None].expand(3, batch, -1)


def _pixel_values(images: np.ndarray) -> Tensor:
    cut = patches(pixels_of(images))
    spread = cut.view(*cut.shape[:2], 3, 1, PATCH, PATCH).expand(-1, -1, -1, 2, -1, -1)
    return spread.reshape(-1, 2 * cut.shape[2])


def _equal_lengths(
    asked: Sequence[EncodedQuestion], extra: Sequence[int], size: int
) -> Iterator[list[int]]:
    """Indices in batches of one prompt length each, so that nothing is padded."""
    groups: dict[int, list[int]] = {}
    for index, one in enumerate(asked):
        groups.setdefault(len(one.question) + extra[index], []).append(index)
    for group in groups.values():
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _inputs(
    model: Qwen3VLForConditionalGeneration, images: np.ndarray, ids: Tensor
) -> dict[str, Tensor]:
    return {
        "input_ids": ids,
        "pixel_values": _pixel_values(images),
        "image_grid_thw": torch.tensor([[1, GRID, GRID]]).expand(len(ids), -1),
        "mm_token_type_ids": (ids == model.config.image_token_id).int(),
        "position_ids": _positions(ids.shape[1], len(ids)),
    }


@torch.inference_mode()
def greedy_answers(
    model: Qwen3VLForConditionalGeneration,
    images: np.ndarray,
    asked: Sequence[EncodedQuestion],
    encoder: QuestionEncoder,
    vocabulary: int,
    size: int = 64,
) -> list[list[int]]:
    """The answer to each question, end token included, over the first ``vocabulary`` tokens."""
    answers: list[list[int]] = [[] for _ in asked]
    for chosen in _equal_lengths(asked, [0] * len(asked), size):
        ids = torch.tensor([[*encoder.prefix, *asked[index].question] for index in chosen])
        shown = images[[asked[index].image for index in chosen]]
        out = model(**_inputs(model, shown, ids), use_cache=True, logits_to_keep=1)
        position = ids.shape[1] - PREFIX + AFTER_IMAGE + 1
        open_rows = torch.ones(len(chosen), dtype=torch.bool)
        for step in range(MAX_ANSWER):
            token = out.logits[:, -1, :vocabulary].argmax(-1)
            for row in open_rows.nonzero().flatten().tolist():
                answers[chosen[row]].append(int(token[row]))
            open_rows &= token != encoder.end
            if not open_rows.any():
                break
            out = model(
                input_ids=token[:, None],
                position_ids=torch.full((3, len(chosen), 1), position + step),
                past_key_values=out.past_key_values,
                use_cache=True,
            )
    return answers


@torch.inference_mode()
def proposals(
    model: Qwen3VLForConditionalGeneration,
    images: np.ndarray,
    asked: Sequence[EncodedQuestion],
    answers: Sequence[Sequence[int]],
    encoder: QuestionEncoder,
    vocabulary: int,
    size: int = 64,
) -> list[list[int]]:
    """The greedy token of ``model`` at each place of each answer, after that answer so far."""
    proposed: list[list[int]] = [[] for _ in asked]
    # an untrained target may emit image tokens, for which there is no image
    given = [[encoder.pad if t == encoder.prefix[1] else t for t in answer] for answer in answers]
    for chosen in _equal_lengths(asked, [len(answer) for answer in answers], size):
        rows = [[*encoder.prefix, *asked[i].question, *given[i][:-1]] for i in chosen]
        ids = torch.tensor(rows)
        shown = images[[asked[index].image for index in chosen]]
        logits = model(**_inputs(model, shown, ids)).logits[..., :vocabulary]
        for row, index in enumerate(chosen):
            proposed[index] = logits[row].argmax(-1)[-len(answers[index]) :].tolist()
    return proposed


def accepted_and_tested(
    answer: Sequence[int], proposed: Sequence[int], gamma: int
) -> tuple[int, int]:
    """Draft tokens accepted, and tested (the accepted and the first rejected one of each draft).

    A draft of ``gamma`` tokens continues the target's own prefix, and whatever it proposes after a
    right token is what ``proposed`` holds there; after a draft the target adds one token itself.
    """
    accepted = tested = at = 0
    while at < len(answer):
        for _ in range(min(gamma, len(answer) - at)):
            tested += 1
            if proposed[at] != answer[at]:
                break
            accepted += 1
            at += 1
        at += 1  # the recovered or bonus token
    return accepted, tested
