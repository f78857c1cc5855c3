"""Loads checkpoints, and chooses device and dtype for ``auto``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..errors import UserError, library_errors
from . import SHIPPED
from .checkpoint import (
    MERGE_ADAPTER,
    checkpoint_directory,
    checkpoint_files,
    quiet_libraries,
    read_json,
    weight_files,
    weights_digest,
)
from .families import Family, family_of
from .load_check import FirstAnswer
from .passes.layer import PatchLinear, check_quantization, pack_linears
from .passes.transformer import Transformer
from .processor import Processor
from .vlm import Vlm

AUTO = "auto"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose(device: str, dtype: str) -> tuple[str, str]:
    """Resolve ``auto``: CUDA if it is usable, bfloat16 on it, float32 on a CPU.

    UserError: this machine has no such device, or the dtype is unknown.
    """
    if dtype not in (AUTO, *DTYPES):
        raise UserError(f"dtype {dtype!r} is unknown: choose one of {AUTO}, {', '.join(DTYPES)}")
    if device == AUTO:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise UserError(f"device {device!r} is unknown: choose {AUTO}, cpu or cuda") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device is usable here: choose device cpu, or install CUDA torch")
    if dtype == AUTO:
        dtype = "float32" if kind == "cpu" else "bfloat16"
    return device, dtype


# How far our logits may be from transformers' own, in their standard deviations.
FLOAT32, FEWER_BITS, QUANTIZED = 1e-3, 0.2, 0.7
PROGRESS_BAR_BYTES = 1 << 30  # of weights; larger models show a progress bar


def load(
    name_or_dir: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    quantize: str = "none",
    threads: int = 0,
    generation_config: str = "auto",
    check: bool = True,
) -> Vlm:
    """Load a checkpoint of one of ``FAMILIES``.

    device, dtype: see ``choose``. threads: torch's intra-operation threads, for the whole process;
    0: unchanged. generation_config: ``none`` leaves out what the checkpoint does to its logits.
    check: compare a first answer with transformers' own, except of the embedded pairs; always done
    for a quantized checkpoint, whose kernels may lack the device or dtype.
    UserError names what is missing or does not fit, and what to do.
    """
    device, dtype = choose(device, dtype)
    directory = checkpoint_directory(str(name_or_dir))
    config = read_json(directory, "config.json")
    family = family_of(directory, config)
    check_quantization(quantize, device, dtype, config)
    weights = weight_files(directory)
    files = checkpoint_files(directory, generation_config)
    if threads:
        if threads < 0:
            raise UserError(f"threads is {threads}: give 1 or more, or 0 for torch's own number")
        torch.set_num_threads(threads)
    whole = f"the model in {directory} cannot be loaded"
    long = sum(path.stat().st_size for path in weights) > PROGRESS_BAR_BYTES
    with library_errors(whole, "fetch its files again"), quiet_libraries(long):
        model = _model(directory, family, config, device, DTYPES[dtype])
    name, quantized = identity(directory, dtype, quantize), "quantization_config" in config
    check = quantized or (check and not directory.resolve().is_relative_to(SHIPPED))
    first = None
    with library_errors(whole, "choose another device, dtype or quantization"), quiet_libraries():
        if not quantized:
            model = model.to(device)
        if check and files.chat_template:
            own = generation_config == "auto"
            first = FirstAnswer(model, Processor(files, name), directory, own)
        transformer = Transformer(family.text_model(model), model.lm_head, quantize)
        if family.reads_pictures:
            visual = model.model.visual
            visual.patch_embed.proj = PatchLinear(visual.patch_embed.proj)
            pack_linears(visual)
    vlm = Vlm(model, transformer, files, name)
    if first is not None:
        bits = FLOAT32 if dtype == "float32" else FEWER_BITS
        first.compare(vlm, bits if quantize == "none" else QUANTIZED)
    return vlm


def _model(
    directory: Path, family: Family, config: dict[str, Any], device: str, dtype: torch.dtype
) -> Any:
    import transformers

    kind = getattr(transformers, family.model_class, None)
    if kind is None:
        raise UserError(
            f"transformers {transformers.__version__} has no {family.model_class}: install the "
            "version in requirements/transformers.txt"
        )
    options: dict[str, Any] = {"attn_implementation": "sdpa", "use_safetensors": True}
    options["ignore_mismatched_sizes"] = True  # refused below, by its name
    if "quantization_config" in config:  # quantization kernels must be loaded on their device
        options["device_map"] = {"": device}
    model, report = kind.from_pretrained(
        directory, dtype=dtype, local_files_only=True, output_loading_info=True, **options
    )
    if others := sorted(report["mismatched_keys"]):
        name, stored, due = others[0]
        raise UserError(
            f"the weights in {directory} have {name} as {[*stored]}, by config.json it is "
            f"{[*due]}: take both files of the same model"
        )
    if names := sorted(report["missing_keys"]):
        raise UserError(
            f"the weights in {directory} lack {len(names)} tensors, {names[0]} first: "
            + (
                "set tie_word_embeddings to true in config.json if its head is its embedding, or "
                if names == ["lm_head.weight"]
                else ""
            )
            + "take them as transformers' save_pretrained writes them"
        )
    if adapters := sorted(name for name in report["unexpected_keys"] if ".lora_" in name):
        raise UserError(
            f"the weights in {directory} have an adapter ({adapters[0]}), which is not applied: "
            f"{MERGE_ADAPTER}"
        )
    return model.eval().requires_grad_(False)


def identity(name_or_dir: str | Path, dtype: str = AUTO, quantize: str = "none") -> str:
    """The ``identity`` that a model would have once loaded, from its files only; raises
    UserError."""
    directory = checkpoint_directory(str(name_or_dir))
    family = str(read_json(directory, "config.json").get("model_type", "nothing"))
    _, dtype = choose(AUTO, dtype)
    weights = weights_digest(directory, weight_files(directory))
    return f"{family}:{weights}:{dtype}" + (f":{quantize}" if quantize != "none" else "")
