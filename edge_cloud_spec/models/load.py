"""Loads checkpoints, and chooses device and arithmetic where nobody does."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError, library_errors
from .image import ImageSpec
from .passes.layer import PatchLinear, check_quantization, pack_linears
from .passes.transformer import PASSES, Transformer
from .vlm import ImagePreprocessing, Vlm

AUTO = "auto"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose(device: str, dtype: str) -> tuple[str, str]:
    """Device and dtype, ``auto`` replaced: CUDA where it is usable, bfloat16 on it, float32 on a
    CPU. UserError: there is no such device or dtype here."""
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


FAMILIES = {
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PROGRESS_BAR_BYTES = 1 << 30  # of weights; with more a progress bar is shown
_FILES = ("*.json", "*.jinja", "*.txt", "*.safetensors")


def load(
    name_or_dir: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    quantize: str = "none",
    threads: int | None = None,
    passes: str = "free",
) -> Vlm:
    """Load a Qwen2-VL, Qwen2.5-VL or Qwen3-VL checkpoint.

    device, dtype: see ``choose``. threads: torch's intra-operation threads, of the whole process.
    passes: with fixed a row's bits depend on its prefix only, whatever else is in its pass.
    UserError names what is missing or does not fit, and what to do.
    """
    device, dtype = choose(device, dtype)
    if passes not in PASSES:
        raise UserError(f"passes {passes!r} is unknown: choose one of {', '.join(PASSES)}")
    directory = _directory(str(name_or_dir))
    config = _read_json(directory, "config.json")
    family = config.get("model_type", "nothing")
    if family not in FAMILIES:
        raise UserError(
            f"{directory} holds a {family!r} model: choose one of {', '.join(FAMILIES)}"
        )
    check_quantization(quantize, device, dtype, config)
    weights = weight_files(directory)
    preprocessing = image_preprocessing(directory)
    if not any((directory / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        raise _missing(directory, "tokenizer.json")
    if threads is not None:
        if threads < 1:
            raise UserError(f"threads is {threads}: give 1 or more")
        torch.set_num_threads(threads)
    whole = f"the model in {directory} cannot be loaded"
    long = sum(path.stat().st_size for path in weights) > PROGRESS_BAR_BYTES
    with library_errors(whole, "fetch its files again"), quiet_libraries(long):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(directory)
        model = _model(directory, family, config, device, DTYPES[dtype])
    with library_errors(whole, "choose another device, dtype or quantization"), quiet_libraries():
        if "quantization_config" not in config:
            model = model.to(device)
        transformer = Transformer(model.model.language_model, model.lm_head, quantize, passes)
        visual = model.model.visual
        visual.patch_embed.proj = PatchLinear(visual.patch_embed.proj)
        pack_linears(visual)
    if tokenizer.convert_ids_to_tokens(model.config.image_token_id) is None:
        raise UserError(
            f"the tokenizer in {directory} has no image token {model.config.image_token_id}: "
            "its files belong to another model"
        )
    return Vlm(
        model,
        transformer,
        tokenizer,
        preprocessing,
        identity=identity(directory, dtype, quantize),
        chat_template=_chat_template(directory, tokenizer),
        end_ids=_end_ids(directory, config, tokenizer),
    )


@contextmanager
def quiet_libraries(long: bool = False) -> Iterator[None]:
    """Hide progress bars unless loading takes ``long``."""
    from transformers.utils import logging as bars

    shown = bars.is_progress_bar_enabled()
    if not long:
        bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def _directory(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists() or not _HUB_NAME.fullmatch(name):
        raise UserError(
            f"{name} is not a model directory: give a directory or a hub name owner/name"
        )
    from huggingface_hub import snapshot_download

    with library_errors(
        f"there is no directory {name}, and the hub has not given it",
        "check the name and the network, or download the model and give its directory",
    ):
        return Path(snapshot_download(name, allow_patterns=list(_FILES)))


def _missing(directory: Path, name: str) -> UserError:
    return UserError(
        f"{name} is missing in the model directory {directory}: copy it there from the checkpoint"
    )


def _read_json(directory: Path, name: str, needed: bool = True) -> dict[str, Any]:
    """What is in a file; nothing where it is missing, unless it is needed."""
    try:
        content = json.loads((directory / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if needed:
            raise _missing(directory, name) from None
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{directory / name} cannot be read ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{directory / name} is not a JSON object: fetch it again")
    return content


def weight_files(directory: Path) -> list[Path]:
    """The files that hold a checkpoint's weights; raises UserError where one is not there."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(_read_json(directory, index.name).get("weight_map", {}).values()))
    else:
        names = ["model.safetensors"]
    for name in names:
        if not (directory / name).is_file():
            raise _missing(directory, name)
    return [directory / name for name in names]


def image_preprocessing(directory: str | Path) -> ImagePreprocessing:
    """The settings of preprocessor_config.json, or of processor_config.json, which replaced it.

    Raises UserError.
    """
    directory = Path(directory).expanduser()
    name, newer = "preprocessor_config.json", "processor_config.json"
    if not (directory / name).is_file() and (directory / newer).is_file():
        name = newer
    content = _read_json(directory, name)
    content = content.get("image_processor", content)
    size = content.get("size") or {}
    low = content.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels")
    high = content.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels")
    try:
        return ImagePreprocessing(
            ImageSpec(
                min_pixels=int(low or 56 * 56),
                max_pixels=int(high or 28 * 28 * 1280),
                patch_size=int(content["patch_size"]),
                merge_size=int(content["merge_size"]),
                temporal_patch_size=int(content["temporal_patch_size"]),
            ),
            mean=tuple(float(value) for value in content["image_mean"]),
            std=tuple(float(value) for value in content["image_std"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{directory / name} does not describe a Qwen image processor ({error}): "
            "copy it from the checkpoint"
        ) from error


def _model(
    directory: Path, family: str, config: dict[str, Any], device: str, dtype: torch.dtype
) -> Any:
    import transformers

    kind = getattr(transformers, FAMILIES[family])
    options: dict[str, Any] = {"attn_implementation": "sdpa", "use_safetensors": True}
    if "quantization_config" in config:  # its kernels have to be loaded on their device
        options["device_map"] = {"": device}
    model, report = kind.from_pretrained(
        directory, dtype=dtype, local_files_only=True, output_loading_info=True, **options
    )
    if report["missing_keys"]:
        names = sorted(report["missing_keys"])
        raise UserError(
            f"the weights in {directory} lack {len(names)} tensors, {names[0]} first: "
            "fetch the checkpoint again"
        )
    return model.eval().requires_grad_(False)


def identity(name_or_dir: str | Path, dtype: str = AUTO, quantize: str = "none") -> str:
    """Names a model's weights and arithmetic, as it has them once loaded; raises UserError.

    Files are hashed by size, first and last megabyte.
    """
    directory = _directory(str(name_or_dir))
    family = str(_read_json(directory, "config.json").get("model_type", "nothing"))
    _, dtype = choose(AUTO, dtype)
    whole = hashlib.blake2b((directory / "config.json").read_bytes(), digest_size=8)
    for path in weight_files(directory):
        with path.open("rb") as file:
            whole.update(file.read(1 << 20))
            size = file.seek(0, 2)
            file.seek(max(0, size - (1 << 20)))
            whole.update(file.read() + size.to_bytes(8, "little"))
    return f"{family}:{whole.hexdigest()}:{dtype}" + (f":{quantize}" if quantize != "none" else "")


def _chat_template(directory: Path, tokenizer: Any) -> str | None:
    older = _read_json(directory, "chat_template.json", needed=False)  # Qwen2-VL's place
    template = older.get("chat_template") if older else tokenizer.chat_template
    return template if isinstance(template, str) else None


def _end_ids(directory: Path, config: dict[str, Any], tokenizer: Any) -> tuple[int, ...]:
    ids = _read_json(directory, "generation_config.json", needed=False).get("eos_token_id")
    ids = ids if ids is not None else config.get("eos_token_id", tokenizer.eos_token_id)
    if ids is None:
        raise UserError(f"the model in {directory} names no end token: add generation_config.json")
    return tuple(int(index) for index in (ids if isinstance(ids, list) else [ids]))
