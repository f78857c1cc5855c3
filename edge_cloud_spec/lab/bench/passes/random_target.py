"""A target of a published shape with random weights, made on its device: for the times of passes.

Times do not depend on what the weights and caches hold, so nothing is read or prefilled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ....errors import UserError
from ....models.cache import KeyValueCache
from ....models.kv_memory import KvMemory
from ....models.load import DTYPES, quiet_libraries
from ....models.passes.transformer import Transformer
from ....models.session import Session


@dataclass(frozen=True)
class TextShape:
    """The text half of a Qwen2.5-VL."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


# As the checkpoints' config.json have them; tiny is for machines without a GPU.
SHAPES = {
    "tiny": TextShape(64, 128, 3, 4, 2, 512),
    "qwen2-vl-2b": TextShape(1536, 8960, 28, 12, 2, 151_936),
    "qwen2.5-vl-3b": TextShape(2048, 11_008, 36, 16, 2, 151_936),
    "qwen2.5-vl-7b": TextShape(3584, 18_944, 28, 28, 4, 152_064),
}


class RandomTarget:
    """The model as transformers has it, and after ``take_over`` as ours. Raises UserError."""

    def __init__(self, shape: TextShape, device: str, dtype: str) -> None:
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError("no CUDA device is usable here: choose --device cpu")
        self.shape, self.device, self.dtype = shape, torch.device(device), DTYPES[dtype]
        half = shape.hidden // shape.heads // 2
        side = 3 * half // 8
        text = {
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.mlp,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [half - 2 * side, side, side],
            },
        }
        vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32}
        config = Qwen2_5_VLConfig(
            text_config=text, vision_config={**vision, "out_hidden_size": shape.hidden}
        )
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with quiet_libraries(), self.device:
                self.model: Any = Qwen2_5_VLForConditionalGeneration(config).eval()
        finally:
            torch.set_default_dtype(before)

    def take_over(self, passes: str = "free") -> Transformer:
        """Our transformer of its layers; transformers' own forward does not work afterwards."""
        model, self.model = self.model, None
        text = model.model.language_model
        self.transformer = Transformer(text, model.lm_head, passes=passes)
        return self.transformer

    @property
    def weight_bytes(self) -> int:
        """What a pass reads of the weights: all but the embedding, of which it takes a few rows."""
        shape, size = self.shape, self.dtype.itemsize
        attention = shape.hidden * (
            shape.hidden * 2 + 2 * shape.hidden * shape.kv_heads // shape.heads
        )
        layer = attention + 3 * shape.hidden * shape.mlp
        return size * (shape.layers * layer + shape.hidden * shape.vocabulary)

    def cache_bytes(self, rows: int) -> int:
        """Of so many rows of a session's keys and values."""
        return rows * self.transformer.cache_layout.row_bytes

    def session(self, rows: int, seed: int = 0) -> Session:
        """A session after a prompt of so many rows, whose cache holds random numbers."""
        cache = KeyValueCache(self.transformer.cache_layout, rows + 128, KvMemory())
        generator = torch.Generator(self.device).manual_seed(seed)
        cache.rows(0, rows).normal_(generator=generator)
        row = np.zeros(self.shape.vocabulary, np.float32)
        refill: Callable[..., Any] = _no_refill
        return Session(self.transformer, cache, rows, 0, row, refill)


def _no_refill(*_: Any) -> Any:
    raise AssertionError("nothing is evicted here")
