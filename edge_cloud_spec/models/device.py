"""Where a model computes, and in which arithmetic, where nobody says."""

from __future__ import annotations

import torch

from ..errors import UserError

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
