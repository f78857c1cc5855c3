"""Vision-language navigation with edge-cloud speculative decoding."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from pathlib import Path
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .edge.link.route import ClientSettings as ClientSettings
    from .edge.picture_decoder import Answer as Answer
    from .edge.picture_decoder import Decoder as Decoder
    from .edge.picture_decoder import PictureDecoder as PictureDecoder
    from .errors import UserError as UserError
    from .models.load_drafter import DraftModelSettings as DraftModelSettings
    from .pilot.pilot import Pilot as Pilot
    from .request import Message as Message
    from .request import Picture as Picture

# edge_cloud_spec.msg is generated when the package is built and lives in the installed copy; this
# lets a checkout (pytest from the repository's root) see it too. A whole installation takes nothing
# from another one: two versions would mix.
if not Path(__file__).with_name("msg").is_dir():
    __path__ = extend_path(__path__, __name__)
__version__ = "0.2.0"

# What libraries would tell their makers is not told (docs/privacy.md), and gRPC does not print
# what our own sentences say. Each reads its variable when it is first used; one that is set stays.
QUIET = {
    "DO_NOT_TRACK": "1",
    "GRPC_VERBOSITY": "ERROR",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
os.environ.update({**QUIET, **os.environ})

# What torchao, which transformers imports in any case, says where its own kernels are not for this
# machine or torch (none of them is used here), and torch of how torchao registers its enums.
_NO_NEWS = (
    "Failed to load ",
    "Skipping import of cpp extensions ",
    "Warning: Detected no triton",
    "%s is an Enum subclass ",
)


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_NO_NEWS)


for _name in ("torchao", "torchao.kernel.intmm", "torch.utils._pytree"):
    logging.getLogger(_name).addFilter(_is_news)


# The public names, each imported when it is first used; what is not here is private.
_PUBLIC = {
    "Answer": "edge.picture_decoder",
    "ClientSettings": "edge.link.route",
    "Decoder": "edge.picture_decoder",
    "DraftModelSettings": "models.load_drafter",
    "Message": "request",
    "Picture": "request",
    "Pilot": "pilot.pilot",
    "PictureDecoder": "edge.picture_decoder",
    "UserError": "errors",
}
__all__ = [*_PUBLIC]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
