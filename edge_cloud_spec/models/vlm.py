"""Vision-language models: a checkpoint, its tokenizer and its sessions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..lru_cache import LruCache
from .cache import KeyValueCache, PrefixStore, prompt_parts
from .checkpoint import CheckpointFiles
from .image import picture_positions, positions_of
from .kv_memory import MB, KvMemory
from .passes.target_rows import DeviceRows
from .passes.transformer import Transformer
from .processor import Processor
from .prompt import Prompt
from .session import EncodedPicture, PassRequest, Prefill, Session, forward_together


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


class Vlm(Processor):
    """A model of one of the three families. `open` and its sessions belong to one thread (the
    model's); `prompt` and `spec` may be called by another."""

    chains_only = False

    def __init__(
        self, model: Any, transformer: Transformer, files: CheckpointFiles, identity: str
    ) -> None:
        super().__init__(files, identity)
        self._image_features = model.model.get_image_features
        self.transformer = transformer
        self._features: LruCache[Hashable, EncodedPicture] = LruCache(2)
        self.use_memory(KvMemory())

    @property
    def default_kv_bytes(self) -> int:
        """A bound for the keys and values of many sessions: of a GPU the most of what is free."""
        device = self.transformer.device
        if device.type != "cuda":
            return CPU_KV_BYTES
        return int(CUDA_KV_SHARE * torch.cuda.mem_get_info(device)[0])

    def use_memory(self, memory: KvMemory) -> None:
        """Allocate the KV caches of new sessions, and the kept prefixes, from this memory."""
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
        positions, delta = positions_of(ids, grid, self.image_id, self._merge)
        image = np.flatnonzero(prompt.input_ids == self.image_id)
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
            lambda: self._features.get_or_make(
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
