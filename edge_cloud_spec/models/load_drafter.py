"""Chooses the library that runs a drafter, and loads it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..errors import UserError, check_installed
from ..options import bounded, chosen, described
from . import BYTES, EMBEDDED, OPENAI
from .byte_drafter import ByteDrafter
from .drafter import Drafter
from .image import PictureLimits

if TYPE_CHECKING:
    from .llama import LlamaDrafter
    from .vlm import Vlm


@dataclass(frozen=True)
class LoadSettings:
    """How a model is loaded: device, dtype, quantization, threads."""

    device: str = described("auto", "auto: cuda where it is usable; cpu or cuda", fixed=True)
    dtype: str = chosen(
        "auto",
        ("auto", "float32", "float16", "bfloat16"),
        "arithmetic; auto: bfloat16 on cuda, float32 on a CPU",
        fixed=True,
    )
    quantize: str = chosen(
        "none", ("none", "int8", "int4", "dynamic-int8"), "of the weights", fixed=True
    )
    threads: int = bounded(0, 0, 1024, "of torch; 0: as many as it wants", fixed=True)

    @property
    def load_options(self) -> dict[str, Any]:
        """These four as keyword arguments of ``load``."""
        return {item.name: getattr(self, item.name) for item in fields(LoadSettings)}


@dataclass(frozen=True)
class DraftModelSettings(LoadSettings, PictureLimits):
    """The settings of the robot's draft model."""

    path: str = described(
        "",
        "directory, hub name, GGUF file, openai:URL or bytes; empty: the embedded one",
        fixed=True,
        flag="--drafter",
    )
    tokenizer: str = described("", "of openai: a checkpoint's directory, for its own", fixed=True)
    name: str = described(
        "", "of openai: what the server calls the model", fixed=True, flag="--model"
    )
    key_file: str = described("", "of openai: file with the server's key", fixed=True)
    threads: int = bounded(1, 1, 64, "threads of torch, or of llama.cpp", fixed=True)

    @property
    def source(self) -> str:
        """``path``, or the embedded drafter's path if it is empty."""
        return self.path or str(EMBEDDED / "drafter")


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """For imports of torch and transformers: half a million objects, and no garbage among them; to
    look for it again and again is a seventh of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_drafter(settings: DraftModelSettings) -> Drafter:
    """Load this drafter with the library that its path asks for; raises UserError.

    A directory or hub name: torch (``load``). A GGUF file: llama.cpp (``load_llama``), which
    ignores dtype. ``bytes``: no model, for a verifier whose target is behind an API.
    ``openai:URL``: a server, whose text is tokenized by the checkpoint in ``tokenizer``.
    """
    path, limits = settings.source, PictureLimits(settings.max_pixels, settings.max_image_tokens)
    if path == BYTES:
        return ByteDrafter()
    if path.startswith(OPENAI):
        from .openai_drafter import served_drafter

        if settings.quantize != "none" or limits != PictureLimits():
            raise UserError("quantize, max_pixels and max_image_tokens are the server's to set")
        return served_drafter(path, settings.tokenizer, settings.name, settings.key_file)
    model: Vlm | LlamaDrafter
    if path.endswith(".gguf"):
        from .llama import load_llama

        device, quantize = settings.device, settings.quantize
        model = load_llama(path, device=device, quantize=quantize, threads=settings.threads)
    else:
        what = f"a drafter that is no GGUF file, no openai:URL and not bytes ({path})"
        for package in ("torch", "transformers"):
            check_installed(package, what)
        with no_garbage_collection():
            from .load import load

            model = load(path, **settings.load_options, generation_config="none", check=False)
    model.limit_picture(limits)
    return model
