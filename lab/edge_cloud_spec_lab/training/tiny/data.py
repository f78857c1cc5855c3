"""Views as arrays, and batches of questions about them.

Views are rendered once and stored; questions are drawn anew for each batch, and every other time
the picture is mirrored, with its ground truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from edge_cloud_spec.nav.answer import ORDERS

from ...sim.kinds import THING_KINDS
from ...sim.room import PHRASINGS
from ...sim.thing import VisibleThing
from ..rendered import make_files
from .architecture import VISUAL
from .language import VISIBLE_PIXELS, absent, askable, deceptive, pieces, visible
from .packed import block_order

SHARD = 2000
BEARING_BINS_DEG = np.array([-24, -18, -14, -10, -8, -6, -4, -1.5, 1.5, 4, 6, 8, 10, 14, 18, 24.0])
DISTANCE_BINS_M = np.array([0.5, 0.65, 0.8, 0.95, 1.1, 1.3, 1.5, 1.8, 2.1, 2.4, 2.8, 3.3, 4.0])
IGNORE = -100


@dataclass(frozen=True)
class Views:
    """N views: images uint8 [N, 128, 128, 3], classes int8 [N, 16, 16] (0 nothing, else 1 + the
    index in THING_KINDS), pixels [N, 8], bearing in degrees [N, 8] and distance in metres
    [N, 8]."""

    images: np.ndarray
    classes: np.ndarray
    pixels: np.ndarray
    bearing: np.ndarray
    distance: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def things(self, index: int, mirrored: bool = False) -> tuple[VisibleThing, ...]:
        """The nameable things in a view."""
        sign = -1.0 if mirrored else 1.0
        return tuple(
            VisibleThing(
                THING_KINDS[k],
                int(self.pixels[index, k]),
                sign * float(self.bearing[index, k]),
                float(self.distance[index, k]),
            )
            for k in np.flatnonzero(self.pixels[index])
        )


def make_views(folder: Path, seed: int, count: int, renderer: str, processes: int) -> Views:
    """``count`` views with ``seed``, rendered into files in ``folder`` unless they exist."""
    from ...sim.view import write_views  # the simulator is needed to train, not to run

    files = make_files(write_views, folder, "views", seed, count, SHARD, renderer, processes)
    parts = [np.load(path) for path in files]
    return Views(*(np.concatenate([part[f.name] for part in parts]) for f in fields(Views)))


class QuestionEncoder:
    """Encodes questions and answers to token ids, with each token's training weight."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        ids = tokenizer.get_vocab()
        self.pad, self.start, self.end = (
            ids[token] for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        )
        image = [ids["<|image_pad|>"]] * VISUAL
        self.prefix = [ids["<|vision_start|>"], *image, ids["<|vision_end|>"]]

    def ids(self, text: str) -> list[int]:
        """The token ids of ``text``; those of its pieces concatenated are the same, as no token
        spans two."""
        if text not in self._known:
            ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
            self._known[text] = ids
        return self._known[text]

    def question(self, instruction: str, order: str) -> list[int]:
        """The ids between the image and the answer."""
        return [*self.ids(f"{instruction}\n"), *self.ids(order), self.start]

    def training_example(
        self, things: Sequence[VisibleThing], name: str, order: str, instruction: str
    ) -> tuple[list[int], list[int], list[float]]:
        """Ids [n] of question and answer, the id that follows each, and their weights."""
        ids = self.question(instruction, order)
        weights = [0.0] * (len(ids) - 1)
        for piece in pieces(things, name, order):
            piece_ids = self.ids(piece.text)
            ids = [*ids, *piece_ids]
            weights += [piece.weight] * len(piece_ids)
        return ids, [*ids[1:], self.end], [*weights, 0.1]


def draw_instruction(name: str, rng: np.random.Generator) -> str:
    """One of the phrasings of an instruction, sometimes with a capital or a final mark."""
    phrase = PHRASINGS[rng.integers(len(PHRASINGS))].format(name)
    if rng.random() < 0.2:
        phrase = phrase[0].upper() + phrase[1:]
    return phrase + ("", "", "", "", ".", "?")[rng.integers(6)]


def draw_names(things: Sequence[VisibleThing], count: int, rng: np.random.Generator) -> list[str]:
    """Names to ask for: of things in view, of absent things with a look-alike in view, or any."""
    present, allowed = list(visible(things)), askable(things)
    wishes = [present, deceptive(things) or absent(things), present, allowed]
    drawn: list[str] = []
    for index in range(count):
        pool = wishes[index % len(wishes)] or allowed
        fresh = [name for name in pool if name not in drawn] or pool
        drawn.append(fresh[int(rng.integers(len(fresh)))])
    return drawn


@dataclass(frozen=True)
class Batch:
    """B images with Q questions each, of S tokens per question.

    Pixels [B, 3, 128, 128] in -1..1, ids [B, 66 + Q S], targets and weights [B, Q S], and what the
    auxiliary head predicts of each visual token: classes [B, 64, 4] and their weights in training
    (larger for things with fewer patches), bearing and distance buckets [B, 64] (-100: nothing
    there).
    """

    pixels: Tensor
    ids: Tensor
    targets: Tensor
    weights: Tensor
    classes: Tensor
    worth: Tensor
    bearings: Tensor
    distances: Tensor


def vary_sharpness(pixels: Tensor, rng: np.random.Generator) -> Tensor:
    """Randomly sharpen or soften images [B, 3, H, W] a little, as cameras and resizing do."""
    amount = torch.from_numpy(rng.uniform(-0.4, 0.6, (len(pixels), 1, 1, 1)).astype(np.float32))
    soft = functional.avg_pool2d(pixels, 3, stride=1, padding=1, count_include_pad=False)
    return (pixels + amount * (pixels - soft)).clamp(-1.0, 1.0)


def pixels_of(images: np.ndarray) -> Tensor:
    """Images uint8 [B, 128, 128, 3] normalised as by the image processor: [B, 3, 128, 128]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1.0


def _worth(grid: Tensor) -> Tensor:
    """Weights [B, 64, 4] of the patches' classes, so that a door does not outweigh a distant
    bottle."""
    patches = functional.one_hot(grid, len(THING_KINDS) + 1).sum(dim=(1, 2))  # [B, classes]
    worth = (16.0 / patches.clamp(min=1)).clamp(0.5, 6.0)
    worth[:, 0] = 1.0
    return worth.gather(1, grid.flatten(1)).view_as(grid)


def sampling_weights(views: Views) -> np.ndarray:
    """The sampling weight of each view [N]: larger if it contains something small or grey."""
    grey = np.array([name.startswith("silver") for name in THING_KINDS])
    small = (views.pixels >= VISIBLE_PIXELS) & (views.pixels < 200)
    return np.asarray(1.0 + 0.5 * small.any(axis=1) + 1.5 * (small & grey).any(axis=1))


def draw_batch(
    views: Views,
    chosen: np.ndarray,
    encoder: QuestionEncoder,
    questions: int,
    slot: int,
    rng: np.random.Generator,
) -> Batch:
    """A batch of the views with the indices ``chosen`` [B]."""
    mirrored = rng.random(len(chosen)) < 0.5
    images = views.images[chosen]
    images[mirrored] = images[mirrored, :, ::-1]
    classes = views.classes[chosen].astype(np.int64)
    classes[mirrored] = classes[mirrored, :, ::-1]
    ids = np.full((len(chosen), questions, slot), encoder.pad)
    targets = np.full_like(ids, encoder.pad)
    weights = np.zeros(ids.shape, np.float32)
    for row, index in enumerate(chosen):
        things = views.things(index, bool(mirrored[row]))
        for column, name in enumerate(draw_names(things, questions, rng)):
            order = ORDERS[rng.integers(2)]
            instruction = draw_instruction(name, rng)
            example = encoder.training_example(things, name, order, instruction)
            size = len(example[0])
            for array, values in zip((ids, targets, weights), example, strict=True):
                array[row, column, :size] = values
    grid = block_order(torch.from_numpy(classes)).view(len(chosen), VISUAL, 4)
    owner = grid.max(dim=-1).values - 1  # the higher class where a token shows two things
    bearing = np.where(mirrored[:, None], -1, 1) * views.bearing[chosen]
    buckets = (
        np.searchsorted(BEARING_BINS_DEG, np.nan_to_num(bearing)),
        np.searchsorted(DISTANCE_BINS_M, np.nan_to_num(views.distance[chosen])),
    )
    places = [
        torch.from_numpy(b).gather(1, owner.clamp(min=0)).masked_fill(owner < 0, IGNORE)
        for b in buckets
    ]
    prefix = torch.tensor(encoder.prefix).expand(len(chosen), -1)
    flat = torch.from_numpy(ids).flatten(1)
    return Batch(
        vary_sharpness(pixels_of(images), rng),
        torch.cat((prefix, flat), dim=1),
        torch.from_numpy(targets).flatten(1),
        torch.from_numpy(weights).flatten(1),
        grid,
        _worth(grid),
        *places,
    )
