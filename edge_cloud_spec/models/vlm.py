"""A loaded vision-language model: makes prompts and opens sessions on them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .image import ImageSpec, decode_image, patches
from .prompt import Prompt, PromptSpec, Request, render
from .session import Session
from .transformer import Deepstack, Segment, Transformer
from .vocabulary import tokenizer_digest, tokens_of

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """The `size` most recently used values, by key."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of `key`, from `make` where it is not cached; now the one used last."""
        value = self._values.pop(key, None)
        if value is None:
            value = make()
        self._values[key] = value
        while len(self._values) > self._size:
            self._values.popitem(last=False)
        return value


@dataclass(frozen=True)
class ImagePreprocessing:
    """A checkpoint's image sizes, and the mean and standard deviation of each colour, 0 to 1."""

    spec: ImageSpec
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class _Prefill:
    """The last prompt's cache rows: the next prompt may begin with the same."""

    prompt: Prompt
    rows: Tensor


class Vlm:
    """A model of one of the three families with its tokenizer. `open` and its sessions belong to
    one thread (the model's); `prompt` and `spec` may be called by another."""

    def __init__(
        self,
        model: Any,
        transformer: Transformer,
        tokenizer: Any,
        preprocessing: ImagePreprocessing,
        *,
        identity: str,
        chat_template: str | None,
        end_ids: tuple[int, ...],
    ) -> None:
        self._config = model.config
        self._image_features = model.model.get_image_features
        self.transformer, self.tokenizer = transformer, tokenizer
        self.preprocessing = preprocessing
        self.identity = identity
        self.chat_template, self.end_ids = chat_template, end_ids
        self._image_id: int = model.config.image_token_id
        self._image_token: str = tokenizer.convert_ids_to_tokens(self._image_id)
        rows = model.config.text_config.vocab_size
        self.vocabulary: int = min(rows, len(tokens_of(tokenizer)))
        self.tokenizer_digest: bytes = tokenizer_digest(tokenizer)
        self._pictures: LruCache[tuple[np.ndarray, tuple[int, int, int]]] = LruCache(2)
        self._features: LruCache[tuple[Tensor, tuple[Tensor, ...]]] = LruCache(2)
        self._last: _Prefill | None = None

    def crop(self, vocabulary: int) -> None:
        """Keep this many rows of the logits (the common vocabulary) in sessions opened from now.

        ValueError: the model has no such number of rows.
        """
        if not 1 < vocabulary <= self._config.text_config.vocab_size:
            raise ValueError(f"cannot crop the vocabulary of {self.identity} to {vocabulary}")
        self.vocabulary = vocabulary

    def spec(self, system_text: str, max_tokens: int) -> PromptSpec:
        """How prompts for this model, the target, are made; for the robot to make the same.

        UserError: the checkpoint has no chat template.
        """
        if not self.chat_template:
            raise UserError(
                f"{self.identity} has no chat template: add chat_template.jinja to its directory, "
                "or take an instruction-tuned checkpoint"
            )
        return PromptSpec(
            chat_template=self.chat_template,
            system_text=system_text,
            image=self.preprocessing.spec,
            end_ids=self.end_ids,
            max_tokens=max_tokens,
            target=self.identity,
            vocabulary=self.vocabulary,
        )

    def prompt(self, request: Request, spec: PromptSpec) -> Prompt:
        """The prompt of `spec` with this model's tokenizer and image statistics.

        UserError: damaged picture, unusable instruction, a patch size this model cannot read.
        """
        ours = self.preprocessing.spec
        for name in ("patch_size", "merge_size", "temporal_patch_size"):
            if getattr(ours, name) != getattr(spec.image, name):
                raise UserError(
                    f"{self.identity} has {name} {getattr(ours, name)} and the target "
                    f"{spec.target} has {getattr(spec.image, name)}: choose models of one family"
                )
        pixels, grid = self._pictures.get(
            (request.image_digest, spec.image), lambda: self._patches(request.jpeg, spec.image)
        )
        ids = render(self.tokenizer, request, spec, grid, self._image_token)
        if ids.max() >= self._config.text_config.vocab_size:
            raise UserError(
                f"{self.identity} has no embedding for token {ids.max()} of its own tokenizer: "
                "its directory mixes files of two models"
            )
        return Prompt(ids, pixels, grid, request.image_digest)

    def _patches(self, jpeg: bytes, spec: ImageSpec) -> tuple[np.ndarray, tuple[int, int, int]]:
        image = decode_image(jpeg, spec.max_frame_pixels)
        return patches(image, spec, self.preprocessing.mean, self.preprocessing.std)

    def open(self, prompt: Prompt) -> Session:
        """Prefill: a session whose prefix is the prompt, with the logits row after it."""
        transformer, ids, count = self.transformer, prompt.input_ids, len(prompt.input_ids)
        positions, delta = positions_of(ids, prompt.image_grid_thw, self._image_id, self._merge)
        cache = transformer.new_cache(count + 128)
        shared = self._shared(prompt)
        with torch.inference_mode():
            if shared and self._last is not None:
                cache.paste(self._last.rows, shared)
            hidden = transformer.embed(ids[shared:])
            image_rows = torch.from_numpy(np.flatnonzero(ids[shared:] == self._image_id))
            deepstack = None
            if len(image_rows):
                features, deep = self._features.get(
                    (prompt.image_digest, prompt.image_grid_thw), lambda: self._encode_image(prompt)
                )
                image_rows = image_rows.to(transformer.device)
                hidden[image_rows] = features.to(hidden.dtype)
                deepstack = Deepstack(image_rows, deep) if deep else None
            fresh = count - shared
            segment = Segment(cache, shared, fresh, transformer.causal_mask(shared, fresh))
            hidden = transformer.forward(
                hidden, torch.from_numpy(positions[:, shared:]), (segment,), deepstack
            )
            row = transformer.logits(hidden[-1:], self.vocabulary).cpu().numpy()[0]
            self._last = _Prefill(prompt, cache.copy_rows(count))
        return Session(transformer, cache, count, delta, row)

    @property
    def _merge(self) -> int:
        return self.preprocessing.spec.merge_size

    def _shared(self, prompt: Prompt) -> int:
        """How many rows of the last prompt's prefill to take over; 0 when it is not worth it."""
        if self._last is None:
            return 0
        ours, theirs = prompt.input_ids, self._last.prompt.input_ids
        size = min(len(ours), len(theirs))
        differs = np.flatnonzero(ours[:size] != theirs[:size])
        same = int(differs[0]) if len(differs) else size
        if prompt.image_digest != self._last.prompt.image_digest:
            same = min(same, int(np.argmax(ours == self._image_id)))
        same = min(same, len(ours) - 1)  # the last row is computed: its logits are needed
        return same if 8 * same >= len(ours) else 0

    def _encode_image(self, prompt: Prompt) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Image features [m, E] and, for Qwen3-VL, the deepstack's, one [m, E] a layer."""
        device = self.transformer.device
        pixels = torch.from_numpy(prompt.pixel_values).to(device)
        grid = torch.tensor([prompt.image_grid_thw], device=device)
        encoded = self._image_features(pixels, grid, return_dict=True)
        deep = getattr(encoded, "deepstack_features", None) or ()
        return torch.cat(list(encoded.pooler_output)), tuple(torch.cat(list(each)) for each in deep)


def positions_of(
    ids: np.ndarray, grid: tuple[int, int, int], image_id: int, merge: int
) -> tuple[np.ndarray, int]:
    """Rotary positions int64 [3, n] (time, height, width) of a prompt with one picture, and the
    position of the first row after it minus that row's index (transformers' `get_rope_index`).

    A picture's tokens share one time and span max(h, w) positions, not h * w.
    """
    high, wide = grid[1] // merge, grid[2] // merge
    tokens = grid[0] * high * wide
    first = int(np.argmax(ids == image_id))
    positions = np.tile(np.arange(len(ids)), (3, 1))
    at = np.arange(tokens)
    positions[0, first : first + tokens] = first + at // (high * wide)
    positions[1, first : first + tokens] = first + at // wide % high
    positions[2, first : first + tokens] = first + at % wide
    delta = max(high, wide) - tokens
    positions[:, first + tokens :] += delta
    return positions, delta
