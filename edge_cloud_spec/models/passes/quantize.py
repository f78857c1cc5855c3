"""Smaller weights for the model on the robot, chosen by a parameter."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import nn

from ...errors import UserError, library_errors

KINDS = ("none", "int8", "int4", "dynamic-int8")
GROUP, SMALLEST_GROUP = 128, 32  # weights of a row that share an int4 scale
CAPABILITY = (8, 0)  # of a GPU, from which on torch has the int4 product


def check_quantization(kind: str, device: str, dtype: str, config: dict[str, Any]) -> None:
    """Raise UserError when `kind` is unknown, or cannot be had here of this checkpoint."""
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
    if kind == "int4" and dtype != "bfloat16":
        raise UserError(f"int4 weights compute in bfloat16, not in {dtype}: choose dtype auto")
    if kind == "int4" and (found := torch.cuda.get_device_capability(device)) < CAPABILITY:
        raise UserError(
            f"int4 weights need a GPU of compute capability {_dotted(CAPABILITY)} and {device} has "
            f"{_dotted(found)}: choose int8"
        )
    if kind != "dynamic-int8":
        _torchao_config(kind)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def quantize_linears(module: nn.Module, kind: str) -> None:
    """Quantize the linear layers below `module` in place.

    `kind` is one of KINDS. For text layers only: embeddings, head and the vision part, which runs
    once a frame, stay as they are. Raises UserError where a layer cannot be quantized.
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
    inputs = [each.in_features for each in module.modules() if isinstance(each, nn.Linear)]
    group = math.gcd(GROUP, *inputs)  # torchao leaves out, silently, what groups do not divide
    if kind == "int4" and group < SMALLEST_GROUP:
        raise UserError(
            f"int4 weights need layers of whole groups of {SMALLEST_GROUP} inputs, and this model "
            f"has {', '.join(map(str, sorted(set(inputs))))}: choose int8"
        )
    from torchao.quantization import quantize_

    quantize_(module, _torchao_config(kind, group))


def _torchao_config(kind: str, group: int = GROUP) -> Any:
    """UserError: torchao is missing, or does not know it."""
    remedy = "pip install torchao, of the version in requirements/base.txt"
    with library_errors(f"quantization {kind} needs torchao", remedy):
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig

        if kind == "int8":
            return Int8WeightOnlyConfig(set_inductor_config=False)
        # torch's own int4 product; the default packing needs mslk, of which there is no release
        return Int4WeightOnlyConfig(
            group, set_inductor_config=False, int4_packing_format="tile_packed_to_4d"
        )
