"""Which library is behind a drafter."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..bounds import bounded, chosen, described
from ..errors import UserError
from . import BYTES, OPENAI
from .byte_drafter import ByteDrafter
from .drafter import Drafter
from .image import PictureLimits

if TYPE_CHECKING:
    from .llama import LlamaDrafter
    from .vlm import Vlm


@dataclass(frozen=True)
class LoadSettings:
    """How a model is loaded, as ``load`` takes it."""

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
        """These alone, for ``load``."""
        return {item.name: getattr(self, item.name) for item in fields(LoadSettings)}


def load_drafter(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    quantize: str = "none",
    threads: int = 0,
    max_pixels: int = 0,
    max_image_tokens: int = 0,
    tokenizer: str = "",
    server_model: str = "",
    key_file: str = "",
) -> Drafter:
    """Load the drafter of this name, in the library that its name asks for; raises UserError.

    A directory or hub name: torch (``load``). A GGUF file: llama.cpp (``load_llama``), where dtype
    says nothing. ``bytes``: none, for a verifier whose target is behind an API. ``openai:URL``: the
    tokens of a server, whose words become those of the checkpoint ``tokenizer`` (its weights are
    not needed); its model's name and the key's file as in ``OpenAiServer``. max_pixels,
    max_image_tokens: ``PictureLimits``.
    """
    if name == BYTES:
        return ByteDrafter()
    if name.startswith(OPENAI):
        from .openai_drafter import served_drafter

        if quantize != "none" or max_pixels or max_image_tokens:
            raise UserError("quantize, max_pixels and max_image_tokens are the server's to set")
        return served_drafter(name, tokenizer, server_model, key_file)
    model: Vlm | LlamaDrafter
    if name.endswith(".gguf"):
        from .llama import load_llama

        model = load_llama(name, device=device, quantize=quantize, threads=threads)
    else:
        from .load import load

        model = load(name, device=device, dtype=dtype, quantize=quantize, threads=threads)
    model.limit_picture(PictureLimits(max_pixels, max_image_tokens))
    return model
