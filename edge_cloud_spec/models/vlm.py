"""Vision-language models: a checkpoint, its tokenizer and its sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError
from .cache import KeyValueCache, PrefixStore, prompt_parts
from .image import (
    Grid,
    ImageSpec,
    PictureLimits,
    decode_image,
    grid_of,
    patches,
    picture_positions,
    positions_of,
)
from .kv_memory import MB, KvMemory, LruCache
from .passes.target_rows import DeviceRows
from .passes.transformer import Transformer
from .prompt import USER_TEXT, Prompt, PromptSpec, Request, prompt_digest, render
from .session import EncodedPicture, PassRequest, Prefill, Session, forward_together
from .token_grammar import GrammarCompiler, TokenGrammar
from .tokenizer import tokenizer_digest, tokens_of


def diverse_tokens(features: Tensor, count: int) -> NDArray[np.int64]:
    """Indices [count], ascending, of the tokens [m, E] that are least like each other.

    DivPrune (Alvar et al., CVPR 2025, arXiv 2503.02175): the least distance between two tokens is
    made as large as it can be, greedily: whatever is farthest from all that are taken comes next,
    by the cosine. ValueError: there are fewer tokens.
    """
    if not 0 < count <= len(features):
        raise ValueError(f"{count} of {len(features)} tokens cannot be kept")
    if count == len(features):
        return np.arange(count)
    unit = torch.nn.functional.normalize(features.float(), dim=1)
    likeness = (unit @ unit.T).cpu().numpy()  # [m, m]
    taken = [int(likeness.sum(axis=1).argmin())]
    nearest = likeness[taken[0]].copy()  # [m]: to the most like of those that are taken
    while len(taken) < count:
        nearest[taken[-1]] = np.inf
        taken.append(int(nearest.argmin()))
        np.maximum(nearest, likeness[taken[-1]], out=nearest)
    return np.sort(np.asarray(taken))


CPU_KV_BYTES = 2048 * MB
CUDA_KV_SHARE = 0.7  # the rest is for what a pass computes


@dataclass(frozen=True)
class ImagePreprocessing:
    """A checkpoint's image sizes, and the mean and standard deviation of each colour, 0 to 1."""

    spec: ImageSpec
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture as preprocessed for this model: pixel values and grid, and the target's grid."""

    pixels: np.ndarray
    grid: Grid
    target_grid: Grid


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
        self.preprocessing, self._merge = preprocessing, preprocessing.spec.merge_size
        self.identity = identity
        self.chat_template, self.end_ids = chat_template, end_ids
        self._image_id: int = model.config.image_token_id
        self._image_token: str = tokenizer.convert_ids_to_tokens(self._image_id)
        rows = model.config.text_config.vocab_size
        self.vocabulary: int = min(rows, len(tokens_of(tokenizer)))
        self.tokenizer_digest: bytes = tokenizer_digest(tokenizer)
        self._features: LruCache[EncodedPicture] = LruCache(2)
        self._weights = identity
        self.limit_picture(PictureLimits())
        self._grammars = GrammarCompiler(tokenizer)
        self.use_memory(KvMemory())

    def crop(self, vocabulary: int) -> None:
        """Keep this many rows of the logits (the common vocabulary) in sessions opened from now.

        ValueError: the model has no such number of rows.
        """
        if not 1 < vocabulary <= self._config.text_config.vocab_size:
            raise ValueError(f"cannot crop the vocabulary of {self.identity} to {vocabulary}")
        self.vocabulary = vocabulary

    def limit_picture(self, limits: PictureLimits) -> None:
        """Look at pictures so closely in prompts made from now; their digests stay the same.

        What is drafted depends on it, so the identity names it. UserError: too few pixels.
        """
        limits.resized(self.preprocessing.spec)
        self._limits = limits
        self.identity = self._weights + limits.name
        self._pictures: LruCache[Picture] = LruCache(2)
        self._grids: LruCache[tuple[Grid, Grid]] = LruCache(1024)  # of pictures that are sound

    def spec(
        self, system_text: str, max_tokens: int, user_text: str = USER_TEXT, dialect: str = ""
    ) -> PromptSpec:
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
            user_text=user_text,
            dialect=dialect,
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
        picture = partial(self._picture, request, spec.image)
        grid, target_grid = self._grids.get(
            (request.image_digest, spec.image), lambda: (picture().grid, picture().target_grid)
        )
        ids = render(self.tokenizer, request, spec, target_grid, self._image_token)
        if ids.max() >= self._config.text_config.vocab_size:
            raise UserError(
                f"{self.identity} has no embedding for token {ids.max()} of its own tokenizer: "
                "its directory mixes files of two models"
            )
        image = np.flatnonzero(ids == self._image_id)
        kept = self._limits.kept(math.prod(grid) // self._merge**2)
        return Prompt(
            np.delete(ids, image[kept:]),
            lambda: picture().pixels,
            grid,
            request.image_digest,
            prompt_digest(ids, target_grid, request.image_digest),
        )

    def grammar(self, text: str, spec: PromptSpec) -> TokenGrammar:
        """The grammar of this text in this model's tokens; an answer ends with the first end token.

        UserError: it cannot be used, or llguidance is not there.
        """
        return self._grammars.grammar(text, spec.end_ids[0], spec.vocabulary)

    def _picture(self, request: Request, spec: ImageSpec) -> Picture:
        def made() -> Picture:
            image = decode_image(request.jpeg, spec.max_frame_pixels)
            ours = self.preprocessing
            pixels, grid = patches(image, self._limits.resized(spec), ours.mean, ours.std)
            return Picture(pixels, grid, grid_of(image.height, image.width, spec))

        return self._pictures.get((request.image_digest, spec), made)

    @property
    def default_kv_bytes(self) -> int:
        """A bound for the keys and values of many sessions: of a GPU the most of what is free."""
        device = self.transformer.device
        if device.type != "cuda":
            return CPU_KV_BYTES
        return int(CUDA_KV_SHARE * torch.cuda.mem_get_info(device)[0])

    def use_memory(self, memory: KvMemory) -> None:
        """Take the caches of sessions opened from now on from here, and the prefixes kept."""
        self.memory = memory
        self._prefixes = PrefixStore(self.transformer.cache_layout, memory)

    def open(self, prompt: Prompt) -> Session:
        """A session whose prefix is the prompt, with the logits row after it.

        MemoryFull: there is no room for its cache, which may be so at a session's next use, too.
        """
        return self.prefill(prompt).finish()

    def prefill(self, prompt: Prompt) -> Prefill:
        """`open` in steps: a session after the prompt, when all are made."""
        refill = partial(self._refill, prompt)
        rows = len(prompt.input_ids)
        return self._fill(prompt, Session(self.transformer, self.vocabulary, rows, refill))

    def _refill(self, prompt: Prompt, session: Session) -> Prefill:
        """`_fill` for an evicted session."""
        prefill = self._fill(prompt, session)
        self.memory.restored_rows += prefill.rows_left
        return prefill

    def _fill(self, prompt: Prompt, session: Session) -> Prefill:
        """Compute a cache of the prompt and the session's tokens after it."""
        tokens, grid = session.tokens, prompt.image_grid_thw
        ids = np.concatenate([prompt.input_ids, np.asarray(tokens, np.int64)])
        positions, delta = positions_of(ids, grid, self._image_id, self._merge)
        image = np.flatnonzero(prompt.input_ids == self._image_id)
        cache = KeyValueCache(self.transformer.cache_layout, len(ids) + session.spare, self.memory)
        name = prompt.image_digest + bytes(str(grid), "ascii")
        parts, prefixes = prompt_parts(prompt.input_ids, image, name), self._prefixes
        start, known = prefixes.paste(cache, parts, session.vocabulary)

        def fill(row: NDArray[np.float32]) -> None:
            prefixes.keep(cache, parts, None if tokens else row)
            session.adopt(cache, delta, tokens, row)

        return Prefill(
            self.transformer,
            session,
            cache,
            start,
            ids,
            positions,
            image,
            lambda: self._features.get(
                (prompt.image_digest, grid, len(image)), lambda: self._encode(prompt, len(image))
            ),
            fill,
            None if tokens else known,
        )

    def forward_together(self, requests: Sequence[PassRequest]) -> list[DeviceRows | Exception]:
        """One pass for several sessions: ``session.forward_together`` with this model."""
        return forward_together(self.transformer, self.vocabulary, requests)

    def _encode(self, prompt: Prompt, kept: int) -> EncodedPicture:
        """So many rows of the picture's."""
        device = self.transformer.device
        pixels = torch.from_numpy(prompt.pixel_values).to(device)
        grid = torch.tensor([prompt.image_grid_thw], device=device)
        encoded = self._image_features(pixels, grid, return_dict=True)
        features = torch.cat(list(encoded.pooler_output))
        deep = getattr(encoded, "deepstack_features", None) or ()
        places = diverse_tokens(features, kept)
        rows = torch.from_numpy(places).to(device)
        return EncodedPicture(
            features[rows],
            tuple(torch.cat(list(each))[rows] for each in deep),
            picture_positions(prompt.image_grid_thw, self._merge)[:, places],
        )
