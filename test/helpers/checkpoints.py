"""Small random checkpoints and what transformers itself computes with them."""

from __future__ import annotations

import functools
import io
import shutil
import tempfile
from collections import deque
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from edge_cloud_spec.decoding.grammar import masked
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.models import families
from edge_cloud_spec.models.draft_head import MTP, head_modules
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.passes.target_rows import on_host
from edge_cloud_spec.models.prompt import Prompt, PromptSpec
from edge_cloud_spec.models.vlm import Vlm
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.request import Request
from edge_cloud_spec_lab.harness.random_checkpoint import (
    CheckpointShape,
    make_checkpoint,
    make_shallow,
)

HIDDEN, LAYERS = 32, 3  # of each checkpoint
CLOSE = 1e-4  # of logits, that were computed in another order
ALL_FAMILIES = tuple(families.FAMILIES)
FAMILIES = tuple(name for name in ALL_FAMILIES if families.FAMILIES[name].reads_pictures)
TEXT_FAMILIES = tuple(name for name in ALL_FAMILIES if name not in FAMILIES)
_ROOT = tempfile.TemporaryDirectory(prefix="models_")
_FORWARDS: deque[tuple[Any, list[int], np.ndarray]] = deque(maxlen=400)  # of `full_logits`


@functools.cache
def checkpoint(family: str = "qwen3_vl", seed: int = 0, vocabulary: int = 0) -> Path:
    """A directory with random weights; the same arguments give the same directory."""
    directory = Path(_ROOT.name) / f"{family}_{seed}_{vocabulary}"
    return make_checkpoint(directory, family, CheckpointShape(vocabulary=vocabulary), seed=seed)


@functools.cache
def headed(family: str = "qwen3_5", seed: int = 0) -> Path:
    """The same weights as in ``checkpoint``, with a head of random weights that drafts for them."""
    directory = Path(_ROOT.name) / f"{family}_{seed}_headed"
    if directory.exists():  # of a call that left out what is usual
        return directory
    shutil.copytree(checkpoint(family, seed), directory)
    file = directory / "model.safetensors"
    head = {MTP + name: tensor for name, tensor in random_head(vlm(family, seed)).items()}
    save_file(load_file(file) | head, file, {"format": "pt"})
    return directory


def random_head(model: Vlm, seed: int = 0) -> dict[str, torch.Tensor]:
    """The weights of a head for this target."""
    random = torch.Generator().manual_seed(seed)
    adds_one = type(model.transformer.attention_like()).__name__.startswith("Qwen3_5")
    return {
        name: around + 0.1 * torch.randn(tensor.shape, generator=random)
        for name, tensor in head_modules(model.transformer).state_dict().items()
        for around in [float("norm" in name and not adds_one)]
    }


def text_pair(directory: Path, family: str) -> tuple[Path, Path]:
    """A random target whose answers depend on the whole prompt, and its first layers as a drafter
    that is right now and then."""
    shape = CheckpointShape(layers=4)
    target = make_checkpoint(directory / "target", family, shape, text={"initializer_range": 0.15})
    return target, make_shallow(target, directory / "drafter")


@functools.cache
def vlm(family: str = "qwen3_vl", seed: int = 0, vocabulary: int = 0, **options: str) -> Vlm:
    return load(checkpoint(family, seed, vocabulary), **options, check=False)


def fresh(family: str = "qwen3_vl") -> Vlm:
    """A model of a test's own, that keeps nothing of any prompt yet."""
    model = copy(vlm(family))
    model.use_memory(KvMemory())
    return model


@functools.cache
def reference(family: str) -> Any:
    """The same weights in transformers' own class, untouched by this package."""
    kind = getattr(transformers, families.FAMILIES[family].model_class)
    return kind.from_pretrained(checkpoint(family), dtype=torch.float32).eval()


def jpeg(seed: int = 0, width: int = 112, height: int = 96) -> bytes:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 7, 3), dtype=np.uint8))
    file = io.BytesIO()
    coarse.resize((width, height)).save(file, "JPEG", quality=90)
    return file.getvalue()


def prompt_of(model: Vlm, seed: int = 0, text: str = "find the silver bottle") -> Prompt:
    spec = model.spec(64)
    if model.reads_pictures:
        return model.prompt(CLAUSES.request(text, jpeg(seed)), spec)
    return model.prompt(spec.request(f"picture {seed}: {text}"), spec)


def full_logits(
    family: str, prompt: Prompt, tokens: list[int], hidden: Sequence[int] = ()
) -> np.ndarray:
    """float32 [1 + len(tokens), V] of one plain forward over the prompt and `tokens` or more, in
    which no row sees the `hidden` ones."""
    asked = family, prompt.digest, [*hidden]
    for those, longer, rows in _FORWARDS:
        if those == asked and longer[: len(tokens)] == tokens:
            return rows[: 1 + len(tokens)]
    model = reference(family)
    ids = torch.tensor([*prompt.input_ids.tolist(), *tokens])[None]
    inputs: dict[str, Any] = {}
    if family in FAMILIES:
        inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
        if prompt.images:
            inputs["image_grid_thw"] = torch.tensor([image.grid for image in prompt.images])
        # Positions are given, as rope_deltas would be of the prompt before.
        inputs["position_ids"] = model.model.get_rope_index(ids, **inputs)[0]
    if prompt.images:
        shown = [torch.from_numpy(image.pixels()) for image in prompt.images]
        inputs["pixel_values"] = torch.cat(shown)
    mask = torch.ones_like(ids)
    mask[0, list(hidden)] = 0
    with torch.inference_mode():
        if (
            len(hidden) and families.FAMILIES[family].recurrent
        ):  # whose layers do not forget what a mask hides
            out = model(**without(model, ids, inputs, mask[0].bool()))
        else:
            out = model(input_ids=ids, attention_mask=mask, **inputs)
    rows = out.logits[0, -1 - len(tokens) :].numpy()
    _FORWARDS.appendleft((asked, [*tokens], rows))
    return rows


def without(
    model: Any, ids: torch.Tensor, inputs: dict[str, Any], seen: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The arguments of a forward over the rows that are seen."""
    embedded = model.get_input_embeddings()(ids)[0]
    pictures = model.model.get_image_features(
        inputs["pixel_values"], inputs["image_grid_thw"], return_dict=True
    )
    embedded[ids[0] == model.config.image_token_id] = torch.cat(pictures.pooler_output)
    return {
        "inputs_embeds": embedded[None, seen],
        "position_ids": inputs["position_ids"][..., seen],
    }


def difference(
    rows: Any, family: str, prompt: Prompt, tokens: list[int], hidden: Sequence[int] = ()
) -> float:
    """How far these rows, the last of them after the tokens, are from transformers' own."""
    ours = on_host(rows)
    assert ours.dtype == np.float32
    theirs = full_logits(family, prompt, tokens, hidden)[-len(ours) :, : ours.shape[1]]
    return float(np.abs(ours - theirs).max())


def own_tokens(
    model: Any, request: Request, spec: PromptSpec, policy: SamplingPolicy
) -> tuple[int, ...]:
    """What a target says by itself, one pass for each token, in the policy's grammar."""
    session, tokens = model.open(model.prompt(request, spec)), list[int]()
    grammar = model.grammar(policy.grammar, spec) if policy.grammar else None
    while len(tokens) < spec.max_tokens:
        logits = session.forward(())[0]
        if grammar is not None:
            logits = masked(np.asarray(logits), grammar.allowed(tokens))
        tokens.append(coupled_token(logits, policy, len(tokens)))
        if tokens[-1] in spec.end_ids:
            break
        session.extend(tokens[-1:])
    return tuple(tokens)
