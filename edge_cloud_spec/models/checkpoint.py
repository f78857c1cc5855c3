"""Reads a checkpoint's directory without its weights: configuration, tokenizer, image sizes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from PIL import Image

from ..decoding.processors import UNPROCESSED, LogitsProcessing
from ..errors import UserError, library_errors, one_line
from ..share import path_of
from .families import FAMILIES
from .image import NO_PICTURES, ImageSpec
from .tokenizer import Tokenizer, load_tokenizer

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ("*.json", "*.jinja", "*.txt", "*.safetensors")
_POINTER = b"version https://git-lfs"
_ADAPTER = "adapter_config.json"
MERGE_ADAPTER = (
    "merge it into its model (peft's merge_and_unload), save that, and give its directory"
)

# Fields of generation_config.json that change answers but are not applied, and the values that do
# not. Temperature, top_k, top_p and lengths are a request's own.
_UNAPPLIED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "constraints": (),
    "force_words_ids": (),
    "guidance_scale": (1,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "sequence_bias": (),
    "bad_words_ids": (),
    "min_length": (0,),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "token_healing": (False,),
    "stop_strings": ("", []),
    "max_time": (),
    "min_p": (0,),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}
# What our preprocessing does, by fields of the image processor.
_PREPROCESSING = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "resample": Image.Resampling.BICUBIC,
    "rescale_factor": 1 / 255,
}


_IMAGE_ID = 151655  # where an older config.json omits it
STRETCHED = "yarn", "linear", "dynamic"  # positions, by a factor that their number leaves out
PICTURE_IDS = "video_token_id", "vision_start_token_id", "vision_end_token_id"  # in config.json


@dataclass(frozen=True)
class ImagePreprocessing:
    """A checkpoint's image sizes, and the mean and standard deviation of each colour, 0 to 1."""

    spec: ImageSpec
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class CheckpointFiles:
    """A checkpoint's files besides its weights.

    image_id: the token of each row of a picture; -1: a model of text. picture_ids: that and others
    that stand for pictures or videos, or stand around them. rows: of the embedding matrix.
    positions: that the model was made for, of a prompt and its answer; 0: unknown.
    chat_template: None if there is none; such a checkpoint cannot be a target. logits: what it does
    to its logits as a target.
    """

    tokenizer: Tokenizer
    preprocessing: ImagePreprocessing
    chat_template: str | None
    end_ids: tuple[int, ...]
    image_id: int
    rows: int
    logits: LogitsProcessing = UNPROCESSED
    picture_ids: frozenset[int] = frozenset()
    positions: int = 0

    @property
    def reads_pictures(self) -> bool:
        """Whether a prompt may have pictures."""
        return self.image_id >= 0


def checkpoint_files(directory: Path, generation_config: str = "auto") -> CheckpointFiles:
    """Read a checkpoint's files besides its weights; raises UserError for a missing or unfit one.

    generation_config: ``none`` leaves out what it does to logits.
    """
    config = read_json(directory, "config.json")
    sees = reads_pictures(config)
    preprocessing = (
        image_preprocessing(directory) if sees else ImagePreprocessing(NO_PICTURES, (), ())
    )
    if not (directory / "tokenizer.json").is_file():
        raise missing(directory, "tokenizer.json")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            check_fetched(directory / name)
    with library_errors(f"the tokenizer in {directory} cannot be loaded", "fetch its files again"):
        tokenizer = load_tokenizer(directory, config)
        text = config.get("text_config") or config
        rows = int(
            text["vocab_size"] if "vocab_size" in text else FAMILIES[config["model_type"]].rows
        )
        image_id = int(config.get("image_token_id", _IMAGE_ID)) if sees else -1
        positions = _positions(text)
    if sees and not (0 <= image_id < rows and tokenizer.convert_ids_to_tokens(image_id)):
        raise UserError(
            f"the tokenizer in {directory} has no image token {image_id}: "
            "its files belong to another model"
        )
    return CheckpointFiles(
        tokenizer,
        preprocessing,
        _chat_template(directory, tokenizer),
        _end_ids(directory, config, tokenizer),
        image_id,
        rows,
        UNPROCESSED if generation_config == "none" else _logits_processing(directory, config),
        frozenset([image_id, *(config[name] for name in PICTURE_IDS if name in config)] * sees),
        positions,
    )


def reads_pictures(config: dict[str, Any]) -> bool:
    """Whether a model of this config.json reads pictures; one behind a server is of any family."""
    family = FAMILIES.get(str(config.get("model_type")))
    named = {"image_token_id", "vision_config"} & config.keys()
    return family.reads_pictures if family else bool(named)


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


def checkpoint_directory(name: str) -> Path:
    """The local directory of this name, or the Hugging Face hub's cached copy; raises UserError."""
    path = path_of(name)
    if not path.is_dir():
        if path.exists() or not _HUB_NAME.fullmatch(name):
            raise UserError(
                f"{name} is not a model directory: give a directory or a hub name owner/name"
                + (" (a GGUF file can only draft)" if path.suffix == ".gguf" else "")
            )
        from huggingface_hub import snapshot_download

        with library_errors(
            f"there is no directory {name}, and the hub has not given it",
            "check the name and the network, or download the model and give its directory",
        ):
            path = Path(snapshot_download(name, allow_patterns=list(_FILES)))
    if (path / _ADAPTER).exists():
        raise UserError(
            f"{path} has an adapter ({_ADAPTER}), which is not applied: {MERGE_ADAPTER}; if "
            "it is merged already, remove that file"
        )
    return path


def check_fetched(path: Path) -> Path:
    """The path; raises UserError if the file is only a pointer to what it should be."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise UserError(f"{path} is a Git LFS pointer: run `git lfs pull` where it was cloned")
    return path


def missing(directory: Path, name: str) -> UserError:
    """The error for a file that is missing."""
    if name.endswith(".safetensors") and (others := sorted(directory.glob("pytorch_model*.bin"))):
        return UserError(
            f"the weights in {directory} are in {others[0].name}, and that format may run code: "
            "load them with transformers, and give the directory of its save_pretrained"
        )
    if name == "config.json":
        at = ("*", "snapshots/*", "*/snapshots/*")  # as the hub's cache has them
        found = (place for each in at for place in directory.glob(f"{each}/{name}"))
        if below := sorted(str(place.parent) for place in found):
            return UserError(
                f"{directory} holds no model, but a folder in it may: give one of these, "
                f"{', '.join(below[:3])}"
            )
    return UserError(
        f"{name} is missing in the model directory {directory}: copy it there from the checkpoint"
    )


def read_json(directory: Path, name: str, needed: bool = True) -> dict[str, Any]:
    """The content of a JSON file; empty if it is missing and not ``needed``. Raises UserError."""
    try:
        content = json.loads(check_fetched(directory / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if needed:
            raise missing(directory, name) from None
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{directory / name} cannot be read ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{directory / name} is not a JSON object: fetch it again")
    return content


def weight_files(directory: Path) -> list[Path]:
    """The files of a checkpoint's weights; raises UserError if one is missing."""
    index = directory / "model.safetensors.index.json"
    if index.is_file() and not (directory / "model.safetensors").is_file():  # as transformers
        names = sorted(set(read_json(directory, index.name).get("weight_map", {}).values()))
    else:
        names = ["model.safetensors"]
    for name in names:
        if not (directory / name).is_file():
            raise missing(directory, name)
    return [check_fetched(directory / name) for name in names]


def weights_digest(directory: Path, weights: Sequence[Path]) -> str:
    """A hash of config.json and the weights; of a weight file only size, first and last megabyte
    count."""
    whole = hashlib.blake2b((directory / "config.json").read_bytes(), digest_size=8)
    for path in weights:
        with path.open("rb") as file:
            whole.update(file.read(1 << 20))
            size = file.seek(0, 2)
            file.seek(max(0, size - (1 << 20)))
            whole.update(file.read() + size.to_bytes(8, "little"))
    return whole.hexdigest()


def image_preprocessing(directory: str | Path) -> ImagePreprocessing:
    """The image settings in processor_config.json, or its predecessor preprocessor_config.json.

    Raises UserError.
    """
    directory, name = path_of(directory), "processor_config.json"
    content = read_json(directory, name, needed=False).get("image_processor")
    if content is None:
        name = "preprocessor_config.json"
        content = read_json(directory, name)
    try:
        for setting, ours in _PREPROCESSING.items():
            if (value := content.get(setting)) not in (None, ours):
                raise UserError(
                    f"{directory / name} sets {setting} to {value!r}, which is not implemented: "
                    f"set it to {json.dumps(ours)} if the model works with that"
                )
        size = content.get("size") or {}
        low = content.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels")
        high = content.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels")
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
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{directory / name} does not describe a Qwen image processor ({error}): "
            "copy it from the checkpoint"
        ) from error


def _chat_template(directory: Path, tokenizer: Any) -> str | None:
    older = read_json(directory, "chat_template.json", needed=False)  # where Qwen2-VL has it
    template = older.get("chat_template") if older else tokenizer.chat_template
    if isinstance(template, dict):  # named ones
        template = template.get("default")
    return template if isinstance(template, str) else None


def _logits_processing(directory: Path, config: dict[str, Any]) -> LogitsProcessing:
    content = read_json(directory, "generation_config.json", needed=False)
    content = content or {**(config.get("text_config") or {}), **config}  # as older checkpoints
    given = {name: value for name, value in content.items() if value is not None}
    remedy = "remove it there, or give --generation-config none"
    for name in given.keys() & _UNAPPLIED.keys():
        if given[name] not in _UNAPPLIED[name]:
            raise UserError(
                f"generation_config.json in {directory} sets {name} to {given[name]!r}, which is "
                f"not implemented: {remedy}"
            )
    known = {each.name for each in fields(LogitsProcessing)}
    applied = {name: value for name, value in given.items() if name in known}
    try:
        return LogitsProcessing(**applied)
    except (ValueError, TypeError):
        raise UserError(
            f"generation_config.json in {directory} has a value that is none: {one_line(applied)}; "
            f"{remedy}"
        ) from None


def _positions(text: dict[str, Any]) -> int:
    """The positions that a model of text was made for; 0: its configuration does not say."""
    most = int(text.get("max_position_embeddings") or 0)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) not in STRETCHED:
        return most
    original = int(rope.get("original_max_position_embeddings") or most)
    return max(most, int(original * float(rope.get("factor") or 1)))


def _end_ids(directory: Path, config: dict[str, Any], tokenizer: Any) -> tuple[int, ...]:
    first = read_json(directory, "generation_config.json", needed=False)
    named = (first, config, config.get("text_config") or {})
    ids = next(
        (each["eos_token_id"] for each in named if each.get("eos_token_id") not in (None, [])),
        tokenizer.eos_token_id,
    )
    if ids is None:
        raise UserError(f"the model in {directory} names no end token: add generation_config.json")
    with library_errors(f"eos_token_id in {directory} is {ids!r}", "give token ids"):
        return tuple(int(index) for index in (ids if isinstance(ids, list) else [ids]))
