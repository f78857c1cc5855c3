"""Linear layers and norms in the form that is fastest where they run; the numbers stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACK_ROWS = 8  # that the packed layout is made for: a drafted chain, not a prefill
FEW_ROWS = 4  # with as many rows a large product is faster than with one (4.3 to 3.2 ms)
LARGE = 1 << 19  # weights


def is_plain(module: nn.Module) -> bool:
    """Whether this is an ordinary linear layer; quantized weights are tensor subclasses."""
    return type(module) is nn.Linear and type(module.weight.data) is Tensor


def join(parts: Sequence[nn.Module]) -> nn.Module:
    """One product in place of several of the same input; quantized parts stay apart."""
    if not all(is_plain(part) for part in parts):
        return _Apart(parts)
    linears = [part for part in parts if isinstance(part, nn.Linear)]
    weight = torch.cat([part.weight.data for part in linears])
    joined = nn.Linear(1, 1, bias=any(part.bias is not None for part in linears))
    joined.in_features, joined.out_features = weight.shape[1], weight.shape[0]
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if joined.bias is not None:
        none = [weight.new_zeros(part.weight.shape[0]) for part in linears]
        biases = [
            zero if part.bias is None else part.bias.data
            for part, zero in zip(linears, none, strict=True)
        ]
        joined.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return joined


class _Apart(nn.Module):
    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.cat([part(rows) for part in self.parts], -1)


class PackedLinear(nn.Module):
    """y = x W^T + b with W in oneDNN's own layout: five rows cost a CPU hardly more than one.

    MKL's product, which `nn.Linear` uses, takes about three times as long for five rows, and
    speculation depends on scoring a draft in the time of one token.
    """

    def __init__(self, linear: nn.Linear, rows: int | None = None) -> None:
        super().__init__()
        weight = linear.weight.data[:rows].contiguous()
        self.shape = tuple(weight.shape)  # [out, in]
        self._large = weight.numel() >= LARGE
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
        self.bias = None if linear.bias is None else linear.bias.data[:rows].contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]; float32 on a CPU."""
        rows = x.shape[0]
        if self._large and rows < FEW_ROWS and x.dim() == 2:
            x = F.pad(x, (0, 0, 0, FEW_ROWS - rows))
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return y[:rows]


def can_pack(module: nn.Module) -> bool:
    """Whether this is plain float32 on a CPU, and torch's oneDNN takes packed weights."""
    return (
        isinstance(module, nn.Linear)
        and is_plain(module)
        and module.weight.device.type == "cpu"
        and module.weight.dtype == torch.float32
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]  # torch's
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def pack_linears(module: nn.Module) -> None:
    """Replace, in place, the linear layers below `module` that can be packed."""
    for name, child in module.named_children():
        if can_pack(child):
            assert isinstance(child, nn.Linear)
            setattr(module, name, PackedLinear(child))
        else:
            pack_linears(child)


class PatchLinear(nn.Module):
    """The vision part's patch embedding, a convolution whose stride is its kernel, as a product.

    Convolutions of this shape fall into slow general code on CPUs and GPUs alike.
    """

    def __init__(self, conv: nn.Conv3d) -> None:
        super().__init__()
        if conv.kernel_size != conv.stride:
            raise ValueError(f"patches overlap: {conv}")
        weight = conv.weight.data.flatten(1)
        self.linear = nn.Linear(1, 1, bias=conv.bias is not None)
        self.linear.weight = nn.Parameter(weight, requires_grad=False)
        if conv.bias is not None:
            self.linear.bias = nn.Parameter(conv.bias.data, requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """[hidden, values of a patch]; the vision part reads its dtype."""
        return self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, time, height, width] of one patch a row -> [n, hidden]"""
        y: Tensor = self.linear(x.flatten(1))
        return y


class RmsNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; `weight` may be [heads, dim]."""

    def __init__(self, weight: Tensor, eps: float, fixed: bool = False) -> None:
        """fixed: round each number alike wherever it stands; a vector's hypot is not a number's."""
        size = weight.shape[-1]
        self.weight, self._eps, self._shape = weight, eps, (size,)
        self._scaled = weight * size**0.5
        self._floor = torch.tensor((eps * size) ** 0.5, dtype=weight.dtype, device=weight.device)
        self._floor_square = self._floor.square()
        self._lean = weight.device.type == "cpu" and weight.dtype == torch.float32
        self._flat, self._fixed = weight.dim() == 1, fixed

    def __call__(self, x: Tensor) -> Tensor:
        if self._lean:  # half as many operations as torch's composite on a CPU
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            if self._fixed:
                length = length.square_().add_(self._floor_square).sqrt_()
            else:
                length = torch.hypot(length, self._floor)
            return torch.div(x, length).mul_(self._scaled)
        if self._flat:
            return F.rms_norm(x, self._shape, self.weight, self._eps)
        return F.rms_norm(x, self._shape, None, self._eps) * self.weight

    @classmethod
    def of(cls, norm: Any, fixed: bool = False) -> RmsNorm:
        """The same as a norm module of transformers."""
        return cls(norm.weight.data, norm.variance_epsilon, fixed)
