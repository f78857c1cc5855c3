"""Smaller weights for the model on the robot, chosen by a parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from edge_cloud_spec.errors import UserError

KINDS = ("none", "int8", "int4", "dynamic-int8")


def check_quantization(kind: str, device: str, model_type: str, config: dict[str, Any]) -> None:
    """UserError when `kind` is unknown or cannot run here."""
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


def quantize_text(model: Any, kind: str) -> None:
    """Replace the weights of the text layers in place; vision, embeddings and head stay.

    The head is tied to the embeddings in small checkpoints, and the vision part runs once a frame.
    """
    if kind == "none":
        return
    layers = model.model.language_model.layers
    if kind == "dynamic-int8":
        from torch.ao.quantization import quantize_dynamic

        quantize_dynamic(layers, {nn.Linear}, dtype=torch.qint8, inplace=True)
        return
    try:
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise UserError("quantization needs torchao: pip install torchao") from error
    config = Int8WeightOnlyConfig() if kind == "int8" else Int4WeightOnlyConfig()
    quantize_(layers, config)
