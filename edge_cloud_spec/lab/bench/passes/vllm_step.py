"""vLLM's own step at a published shape, where vLLM is installed.

That was on no machine of ours yet: what is after the check for it has not been run.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
import time
from typing import Any

from .random_target import TextShape

SHORT, LONG = 16, 144  # tokens; the difference is steps alone


def vllm_ms(shape: TextShape, dtype: str, prompt: int) -> float | str:
    """ms of a step of one session, of the same text layers with random weights; or why not."""
    if importlib.util.find_spec("vllm") is None:
        return "vllm is not installed"
    from transformers import Qwen2Config

    vllm: Any = importlib.import_module("vllm")
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        architectures=["Qwen2ForCausalLM"],
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        try:
            engine = vllm.LLM(
                model=folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                dtype=dtype,
                max_model_len=prompt + LONG + 1,
                gpu_memory_utilization=0.5,
            )
            took = []
            for tokens in (SHORT, SHORT, LONG):  # the first warms up
                sampling = vllm.SamplingParams(
                    temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
                )
                started = time.perf_counter()
                engine.generate([{"prompt_token_ids": [1] * prompt}], sampling)
                took.append(time.perf_counter() - started)
        except Exception as error:  # its own reasons are many, and the other rows do not need it
            return f"vllm failed: {error}"
    return 1e3 * (took[2] - took[1]) / (LONG - SHORT)
