"""The families of models that our engine runs, by the ``model_type`` of their config.json.

Biases, norms, sizes, rotary positions and heads are read from transformers' own modules, and what
our layers cannot compute is refused there (``passes``). So a family is one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError


@dataclass(frozen=True)
class Family:
    """The name of transformers' class, and whether its models read pictures.

    recurrent: some layers are Gated DeltaNet, whose state is not rolled back by dropping rows.
    """

    model_class: str
    reads_pictures: bool = True
    recurrent: bool = False

    def text_model(self, model: Any) -> Any:
        """The text's part of such a model."""
        return model.model.language_model if self.reads_pictures else model.model


FAMILIES = {
    "qwen2_vl": Family("Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": Family("Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": Family("Qwen3VLForConditionalGeneration"),
    "qwen3_5": Family("Qwen3_5ForConditionalGeneration", recurrent=True),
    "llama": Family("LlamaForCausalLM", reads_pictures=False),
    "qwen2": Family("Qwen2ForCausalLM", reads_pictures=False),
    "qwen3": Family("Qwen3ForCausalLM", reads_pictures=False),
    "qwen3_5_text": Family("Qwen3_5ForCausalLM", reads_pictures=False, recurrent=True),
}


def family_of(path: Path, config: dict[str, Any]) -> Family:
    """The family of the config.json at ``path``. UserError: our engine does not run it."""
    name = str(config.get("model_type", "nothing"))
    if name not in FAMILIES:
        raise UserError(f"{path} holds a {name!r} model: choose one of {', '.join(FAMILIES)}")
    return FAMILIES[name]
