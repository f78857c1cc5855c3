"""The target computed by transformers alone: the reference of every comparison.

Only the prompt is shared with this package; forward, cache and ``generate`` are transformers'.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from edge_cloud_spec.decoding.grammar import Grammar
from edge_cloud_spec.decoding.noise import gumbel
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.models.checkpoint import read_json
from edge_cloud_spec.models.families import family_of
from edge_cloud_spec.models.load_check import generation_inputs
from edge_cloud_spec.models.prompt import Prompt, PromptSpec
from edge_cloud_spec.models.vlm import Vlm


class CropVocabulary(LogitsProcessor):  # type: ignore[misc] # untyped here
    """Excludes every token outside the common vocabulary."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, self._vocabulary :] = -torch.inf
        return scores


class GrammarMask(LogitsProcessor):  # type: ignore[misc] # untyped here
    """Excludes every token that the grammar does not allow; batch of one."""

    def __init__(self, grammar: Grammar, prompt_length: int) -> None:
        self._grammar, self._start = grammar, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        allowed = self._grammar.allowed(input_ids[0, self._start :].tolist())
        scores[:, : len(allowed)][:, ~torch.from_numpy(np.asarray(allowed))] = -torch.inf
        return scores


class GumbelMax(LogitsProcessor):  # type: ignore[misc] # untyped here
    """Turns greedy search into sampling with the coupled rule's noise; batch of one."""

    def __init__(self, policy: SamplingPolicy, vocabulary: int, prompt_length: int) -> None:
        self._policy, self._vocabulary, self._start = policy, vocabulary, prompt_length
        self._kept = LogitsProcessorList()
        if policy.top_k:
            self._kept.append(TopKLogitsWarper(policy.top_k))
        if policy.top_p < 1:
            self._kept.append(TopPLogitsWarper(policy.top_p))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1] - self._start
        noise = gumbel(self._policy.seed, position, np.arange(self._vocabulary))
        tempered = scores[:, : self._vocabulary].double() / self._policy.temperature
        noisy = torch.full_like(scores, -torch.inf, dtype=torch.float64)
        noisy[:, : self._vocabulary] = self._kept(input_ids, tempered) + torch.from_numpy(noise)
        return noisy


def generate(
    model: Any,
    prompt: Prompt,
    spec: PromptSpec,
    policy: SamplingPolicy,
    grammar: Grammar | None = None,
    **options: Any,
) -> tuple[int, ...]:
    """The answer's tokens by transformers' ``generate``; greedy, or coupled above temperature 0."""
    length = len(prompt.input_ids)
    processors: list[Any] = [] if grammar is None else [GrammarMask(grammar, length)]
    if policy.temperature > 0:
        processors.append(GumbelMax(policy, spec.vocabulary, length))
    options |= {"do_sample": False, "max_new_tokens": spec.max_tokens}
    (answer,) = _generated(model, prompt, spec, processors, **options)
    return tuple(answer)


def sample(
    model: Any,
    prompt: Prompt,
    spec: PromptSpec,
    policy: SamplingPolicy,
    count: int,
    max_tokens: int,
) -> list[tuple[int, ...]]:
    """``count`` answers of at most ``max_tokens`` tokens, sampled with torch's own RNG."""
    torch.manual_seed(policy.seed)
    options = {
        "do_sample": True,
        "temperature": policy.temperature,
        "top_k": policy.top_k,
        "top_p": policy.top_p,
        "num_return_sequences": count,
        "max_new_tokens": max_tokens,
    }
    answers = []
    for row in _generated(model, prompt, spec, [], **options):
        end = next((i + 1 for i, token in enumerate(row) if token in spec.end_ids), len(row))
        answers.append(tuple(row[:end]))
    return answers


def _generated(
    model: Any,
    prompt: Prompt,
    spec: PromptSpec,
    processors: Sequence[LogitsProcessor],
    **options: Any,
) -> list[list[int]]:
    """The tokens after the prompt, of each answer; where one is shorter, it is padded."""
    with torch.inference_mode():
        out = model.generate(
            **generation_inputs(model, prompt),
            eos_token_id=list(spec.end_ids),
            pad_token_id=spec.end_ids[0],
            logits_processor=LogitsProcessorList([CropVocabulary(spec.vocabulary), *processors]),
            **options,
        )
    answers: list[list[int]] = out[:, len(prompt.input_ids) :].tolist()
    return answers


def load_reference(directory: str, vlm: Vlm) -> Any:
    """transformers' model of a checkpoint directory, in the dtype of our model."""
    import transformers

    family = family_of(Path(directory), read_json(Path(directory), "config.json"))
    kind, dtype = getattr(transformers, family.model_class), vlm.transformer.dtype
    return kind.from_pretrained(directory, dtype=dtype).eval()
