"""The families of models that our engine runs, by the ``model_type`` of their config.json.

Biases, norms, sizes, rotary positions, heads and experts are read from transformers' own modules,
and what our layers cannot compute is refused there (``passes``). So a family is one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError

# The classes of transformers' tokenizers of these families.
QWEN, QWEN_3_5 = "Qwen2Tokenizer", "Qwen3_5Tokenizer"


@dataclass(frozen=True)
class Family:
    """The name of transformers' class, and whether its models read pictures.

    recurrent: some layers are Gated DeltaNet, whose state is not rolled back by dropping rows.
    tokenizer: the class by whose rule transformers cuts words where the checkpoint names none, or
    ``always_this_tokenizer``; None: as tokenizer.json has it. rows: of the embedding matrix, where
    config.json omits them.
    """

    model_class: str
    reads_pictures: bool = True
    recurrent: bool = False
    tokenizer: str | None = QWEN
    always_this_tokenizer: bool = False
    rows: int = 151936

    def text_model(self, model: Any) -> Any:
        """The text's part of such a model."""
        return model.model.language_model if self.reads_pictures else model.model


FAMILIES = {
    "qwen2_vl": Family("Qwen2VLForConditionalGeneration", rows=152064),
    "qwen2_5_vl": Family("Qwen2_5_VLForConditionalGeneration", rows=152064),
    "qwen3_vl": Family("Qwen3VLForConditionalGeneration"),
    "qwen3_vl_moe": Family("Qwen3VLMoeForConditionalGeneration"),
    "qwen3_5": Family(
        "Qwen3_5ForConditionalGeneration",
        recurrent=True,
        tokenizer=QWEN_3_5,
        always_this_tokenizer=True,
        rows=248320,
    ),
    "llama": Family("LlamaForCausalLM", reads_pictures=False, tokenizer=None, rows=32000),
    "qwen2": Family("Qwen2ForCausalLM", reads_pictures=False, always_this_tokenizer=True),
    "qwen3": Family("Qwen3ForCausalLM", reads_pictures=False),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", reads_pictures=False),
    "qwen3_5_text": Family(
        "Qwen3_5ForCausalLM",
        reads_pictures=False,
        recurrent=True,
        tokenizer=QWEN_3_5,
        rows=248320,
    ),
}


def family_of(path: Path, config: dict[str, Any]) -> Family:
    """The family of the config.json at ``path``. UserError: our engine does not run it."""
    name = str(config.get("model_type", "nothing"))
    if name not in FAMILIES:
        raise UserError(f"{path} holds a {name!r} model: choose one of {', '.join(FAMILIES)}")
    return FAMILIES[name]
