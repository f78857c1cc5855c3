"""Models of text, or of pictures and text: a checkpoint, its tokenizer and its sessions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..lru_cache import LruCache
from .cache import SPARE_ROWS, KeyValueCache, PrefixStore, PromptPart, prompt_parts, worth_pasting
from .checkpoint import CheckpointFiles
from .image import diverse_tokens, picture_positions, picture_spans, positions_of
from .kv_memory import MB, KvMemory
from .pass_request import PassRequest
from .passes.target_rows import DeviceRows
from .passes.transformer import Transformer
from .processor import Processor
from .prompt import Prompt, PromptImage
from .session import EncodedPicture, PlacedPicture, Prefill, Session, forward_together

CPU_KV_BYTES = 2048 * MB
ENCODED_PICTURES = 16  # whose features are kept: a conversation that is read anew needs several
CUDA_KV_SHARE = 0.7  # the rest is for what a pass computes


def _cosines(features: Tensor) -> NDArray[np.float32]:
    """The cosines [m, m] between features [m, E], computed where they are."""
    unit = torch.nn.functional.normalize(features.float(), dim=1)
    return (unit @ unit.T).cpu().numpy()


def _whole(features: Tensor | Sequence[Tensor]) -> Tensor:
    """The features [m, E] of pictures; transformers gives them picture by picture, and those of
    Qwen3-VL's first layers in one piece before its 5.18."""
    return features if isinstance(features, Tensor) else torch.cat(tuple(features))


class Vlm(Processor):
    """A model of one of ``FAMILIES``, with or without a vision part. `open` and its sessions belong
    to one thread (the model's); `prompt` and `spec` may be called by another."""

    chains_only = False

    def __init__(
        self, model: Any, transformer: Transformer, files: CheckpointFiles, identity: str
    ) -> None:
        super().__init__(files, identity)
        self._image_features: Any = getattr(model.model, "get_image_features", None)
        self.transformer = transformer
        self._features: LruCache[Hashable, EncodedPicture] = LruCache(ENCODED_PICTURES)
        self.use_memory(KvMemory())

    @property
    def default_kv_bytes(self) -> int:
        """The default limit of KV memory, bytes: on a GPU a share of what is free."""
        device = self.transformer.device
        if device.type != "cuda":
            return CPU_KV_BYTES
        return int(CUDA_KV_SHARE * torch.cuda.mem_get_info(device)[0])

    def use_memory(self, memory: KvMemory) -> None:
        """Allocate KV caches and kept prefixes from this memory from now on."""
        self.memory = memory
        self._prefixes = PrefixStore(self.transformer.cache_layout, memory)

    def open(self, prompt: Prompt) -> Session:
        """A session whose prefix is the prompt, with the logits after it.

        MemoryFull: its cache does not fit; a later use of the session may raise it, too.
        """
        return self.prefill(prompt).finish()

    def prefill(self, prompt: Prompt) -> Prefill:
        """`open` in steps: a session after the prompt, when all are made."""
        refill, keep = partial(self._refill, prompt), partial(self._keep, prompt)
        rows = len(prompt.input_ids)
        return self._fill(prompt, Session(self.transformer, self.vocabulary, rows, refill, keep))

    def _refill(self, prompt: Prompt, session: Session) -> Prefill:
        """`_fill` for an evicted session."""
        prefill = self._fill(prompt, session)
        self.memory.restored_rows += prefill.rows_left
        return prefill

    def _fill(self, prompt: Prompt, session: Session) -> Prefill:
        """A prefill that computes a cache of the prompt and the session's tokens after it."""
        tokens, prompt_ids = session.tokens, prompt.input_ids
        ids = np.concatenate([prompt_ids, np.asarray(tokens, np.int64)])
        grids = [image.grid for image in prompt.images]
        positions, delta = positions_of(prompt_ids, grids, self.image_id, self._merge)
        after = np.arange(len(prompt_ids), len(ids)) + delta
        positions = np.concatenate([positions, np.tile(after, (3, 1))], axis=1)
        layout, spare = self.transformer.cache_layout, session.spare
        cache = KeyValueCache(layout, len(ids) + spare, self.memory, spare - SPARE_ROWS)
        parts, prefixes = self._parts(prompt), self._prefixes
        start, known = prefixes.paste(cache, parts, session.vocabulary)
        stops: set[int] = set()  # where a copy of the state is kept, of which only one is at hand
        if layout.recurrent is not None:
            stops = {len(prompt_ids)} - {len(ids)}
            if worth_pasting(prompt.common, len(prompt_ids)):
                stops.add(prompt.common)

        def fill(row: NDArray[np.float32]) -> None:
            prefixes.keep(cache, parts, None if tokens else row)
            session.adopt(cache, delta, tokens, row)

        spans = picture_spans(prompt_ids, self.image_id)
        return Prefill(
            self.transformer,
            session,
            cache,
            start,
            ids,
            positions,
            [
                PlacedPicture(*span, partial(self._encoded, prompt.owner, image, span[1] - span[0]))
                for span, image in zip(spans, prompt.images, strict=True)
            ],
            fill,
            None if tokens else known,
            {
                stop: partial(
                    prefixes.keep, cache, [part for part in parts if part.end <= stop], None
                )
                for stop in stops
            },
        )

    def inputs(self, prompt: Prompt) -> tuple[Tensor, Tensor]:
        """What the first layer reads of a prompt: embeddings [n, E], with its pictures' features,
        and rotary positions int64 [3, n]."""
        ids, grids = prompt.input_ids, [image.grid for image in prompt.images]
        positions, _ = positions_of(ids, grids, self.image_id, self._merge)
        embeddings = self.transformer.embed(ids)
        spans = picture_spans(ids, self.image_id)
        for (start, end), image in zip(spans, prompt.images, strict=True):
            encoded = self._encoded(prompt.owner, image, end - start)
            embeddings[start:end] = encoded.features.to(embeddings.dtype)
            positions[:, start:end] = positions[0, start] + encoded.positions
        return embeddings, torch.from_numpy(positions)

    def _keep(self, prompt: Prompt, cache: KeyValueCache, answer: Sequence[int]) -> None:
        """Keep what the mission's next prompt begins with: this one and its answer."""
        if prompt.grows:
            self._prefixes.keep(cache, self._parts(prompt, answer), None)

    def keep_head(self, prompt: Prompt, cache: KeyValueCache) -> None:
        """Keep what a draft head has computed of this prompt, for the next one that begins so."""
        self._prefixes.keep_head(cache, self._parts(prompt))

    def _parts(self, prompt: Prompt, answer: Sequence[int] = ()) -> list[PromptPart]:
        """The parts of a prompt and of these tokens after it; the owner alone may reuse what is not
        common."""
        spans = picture_spans(prompt.input_ids, self.image_id)
        ids = np.concatenate([prompt.input_ids, np.asarray(answer, np.int64)])
        names = [f"{prompt.owner} {image.grid} ".encode() + image.digest for image in prompt.images]
        return prompt_parts(ids, spans, names, prompt.owner, prompt.common)

    def _encoded(self, owner: str, image: PromptImage, kept: int) -> EncodedPicture:
        """The picture's features, reduced to ``kept`` tokens; cached."""
        key = owner, image.digest, image.grid, kept
        return self._features.get_or_make(key, lambda: self._encode(image, kept))

    def forward_together(
        self, requests: Sequence[PassRequest[Session]]
    ) -> list[DeviceRows | Exception]:
        """One pass for several sessions: ``session.forward_together`` with this model."""
        return forward_together(self.transformer, self.vocabulary, requests)

    def _encode(self, image: PromptImage, kept: int) -> EncodedPicture:
        device = self.transformer.device
        pixels = torch.from_numpy(image.pixels()).to(device)
        grid = torch.tensor([image.grid], device=device)
        encoded = self._image_features(pixels, grid, return_dict=True)
        features = _whole(encoded.pooler_output)
        deep = getattr(encoded, "deepstack_features", None) or ()
        places = diverse_tokens(len(features), kept, lambda: _cosines(features))
        rows = torch.from_numpy(places).to(device)
        return EncodedPicture(
            features[rows],
            tuple(_whole(each)[rows] for each in deep),
            picture_positions(image.grid, self._merge)[:, places],
        )
