"""Smaller weights for the model on the robot, chosen by a parameter."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from ...errors import UserError

KINDS = ("none", "int8", "int4", "dynamic-int8")


def check_quantization(kind: str, device: str, config: dict[str, Any]) -> None:
    """Raise UserError when `kind` is unknown, or cannot be used on this device and checkpoint."""
    if kind not in KINDS:
        raise UserError(f"quantization {kind!r} is unknown: choose one of {', '.join(KINDS)}")
    if kind == "none":
        return
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method", "already")
        raise UserError(
            f"the checkpoint is {method} quantized: load it as it is, with quantization 'none'"
        )
    on_cpu = torch.device(device).type == "cpu"
    if kind == "int4" and on_cpu:
        raise UserError("int4 weights do not run on a CPU: choose int8, or a CUDA device")
    if kind == "dynamic-int8" and not on_cpu:
        raise UserError("dynamic-int8 runs on a CPU only: choose int8 or int4")


def quantize_linears(module: nn.Module, kind: str) -> None:
    """Quantize the linear layers below `module` in place.

    `kind` is one of KINDS. For text layers only: embeddings, head and the vision part, which runs
    once a frame, stay as they are. Raises UserError where torchao is missing.
    """
    if kind == "none":
        return
    if kind == "dynamic-int8":
        from torch.ao.quantization import quantize_dynamic

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated, and still the fastest on a CPU
            quantize_dynamic(  # type: ignore[no-untyped-call]  # torch's
                module, {nn.Linear}, dtype=torch.qint8, inplace=True
            )
        return
    try:
        from torchao.quantization import (
            Int4WeightOnlyConfig,
            Int8WeightOnlyConfig,
            quantize_,
        )
    except ImportError as error:
        raise UserError("quantization needs torchao: pip install torchao") from error
    quantize_(module, Int8WeightOnlyConfig() if kind == "int8" else Int4WeightOnlyConfig())
