"""One transformer block without attention: linear layers, norms and rotary positions, optimized."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError, library_errors, refuse

QUANTIZATIONS = ("none", "int8", "int4", "dynamic-int8")
INT4_GROUP, SMALLEST_INT4_GROUP = 128, 32  # weights of a row that share an int4 scale
CAPABILITY = (8, 0)  # the lowest compute capability for torch's int4 product


def check_quantization(kind: str, device: str, dtype: str, config: dict[str, Any]) -> None:
    """Raise UserError if quantization `kind` is unknown, or unavailable for this device and
    checkpoint."""
    if kind not in QUANTIZATIONS:
        raise UserError(
            f"quantization {kind!r} is unknown: choose one of {', '.join(QUANTIZATIONS)}"
        )
    if kind == "none":
        return
    method = config.get("quantization_config", {}).get("quant_method", "already")
    on_cpu = torch.device(device).type == "cpu"
    refuse(
        (
            "quantization_config" in config,
            f"the checkpoint is {method} quantized: load it as it is, with quantization 'none'",
        ),
        (
            kind == "int4" and on_cpu,
            "int4 weights do not run on a CPU: choose int8, or a CUDA device",
        ),
        (
            kind == "dynamic-int8" and not on_cpu,
            "dynamic-int8 runs on a CPU only: choose int8 or int4",
        ),
        (
            kind == "int4" and dtype != "bfloat16",
            f"int4 weights compute in bfloat16, not in {dtype}: choose dtype auto",
        ),
    )
    if kind == "int4" and (found := torch.cuda.get_device_capability(device)) < CAPABILITY:
        raise UserError(
            f"int4 weights need a GPU of compute capability {CAPABILITY[0]}.{CAPABILITY[1]} and "
            f"{device} has {found[0]}.{found[1]}: choose int8"
        )
    if kind != "dynamic-int8":
        _torchao_config(kind)


def quantize_linears(module: nn.Module, kind: str) -> None:
    """Quantize the linear layers below `module` in place.

    `kind` is one of QUANTIZATIONS. For text layers only: embeddings, head and the vision part,
    which runs once a frame, keep their dtype. Raises UserError if a layer cannot be quantized.
    """
    if kind == "none":
        return
    if kind == "dynamic-int8":
        from torch.ao.quantization import quantize_dynamic

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated, but still the fastest on a CPU
            quantize_dynamic(  # type: ignore[no-untyped-call]  # torch's
                module, {nn.Linear}, dtype=torch.qint8, inplace=True
            )
        return
    inputs = [each.in_features for each in module.modules() if isinstance(each, nn.Linear)]
    group = math.gcd(INT4_GROUP, *inputs)  # torchao silently skips layers that groups do not divide
    if kind == "int4" and group < SMALLEST_INT4_GROUP:
        raise UserError(
            f"int4 weights need layers of whole groups of {SMALLEST_INT4_GROUP} inputs, and this "
            f"model has {', '.join(map(str, sorted(set(inputs))))}: choose int8"
        )
    from torchao.quantization import quantize_

    quantize_(module, _torchao_config(kind, group))


def _torchao_config(kind: str, group: int = INT4_GROUP) -> Any:
    """torchao's configuration of a quantization; UserError: torchao is missing, or does not support
    it."""
    remedy = "pip install torchao, of the version in requirements/transformers.txt"
    with library_errors(f"quantization {kind} needs torchao", remedy):
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig

        if kind == "int8":
            return Int8WeightOnlyConfig(set_inductor_config=False)
        # torch's own int4 product; torchao's default packing needs mslk, which has no release
        return Int4WeightOnlyConfig(
            group, set_inductor_config=False, int4_packing_format="tile_packed_to_4d"
        )


PACK_ROWS = 8  # the number of rows that the packed layout is optimized for: a draft, not a prefill
FEW_ROWS = 4  # a large product is faster with so many rows than with one (3.2 instead of 4.3 ms)
LARGE = 1 << 19  # weights of a large product
SMALLEST = 1 << 16  # weights of a packed product: its call takes 15 us longer than `nn.Linear`'s


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether this is an ordinary linear layer; quantized weights are tensor subclasses, and
    quantized inputs are in a forward of the layer's own."""
    ordinary = type(module) is nn.Linear and type(module.weight.data) is Tensor
    return ordinary and "forward" not in vars(module)


def join(parts: Sequence[nn.Module]) -> nn.Module:
    """Fuse linear layers of the same input into one; quantized ones stay separate."""
    linears = [part for part in parts if is_plain(part)]
    if len(linears) < len(parts):
        return _Apart(parts)
    has_biases = linears[0].bias is not None  # as all have in each family, or none
    biases = torch.cat([part.bias.data for part in linears]) if has_biases else None
    return linear_of(torch.cat([part.weight.data for part in linears]), biases)


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer with these weights [out, in], which are not copied."""
    linear = nn.Linear(1, 1, bias=False)
    linear.out_features, linear.in_features = weight.shape
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


class _Apart(nn.Module):
    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.cat([part(rows) for part in self.parts], -1)


class PackedLinear(nn.Module):
    """y = x W^T + b with W in oneDNN's layout: on a CPU five rows cost hardly more than one.

    MKL's product, which `nn.Linear` uses, takes about three times as long for five rows;
    speculation needs a draft to be scored in about the time of one token.
    """

    def __init__(self, linear: nn.Linear, rows: int | None = None) -> None:
        super().__init__()
        weight = linear.weight.data[:rows].contiguous()
        self._large = weight.numel() >= LARGE
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
        self.bias = None if linear.bias is None else linear.bias.data[:rows].contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]; float32 on a CPU."""
        rows = x.shape[0]
        if self._large and rows < FEW_ROWS and x.dim() == 2:
            x = F.pad(x, (0, 0, 0, FEW_ROWS - rows))
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return y[:rows]


def can_pack(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether this is a plain float32 layer on a CPU, and torch supports packed oneDNN weights."""
    return (
        is_plain(module)
        and module.weight.numel() >= SMALLEST
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
            setattr(module, name, PackedLinear(child))
        else:
            pack_linears(child)


class PatchLinear(nn.Module):
    """The vision part's patch embedding as a matrix product: a convolution whose stride is its
    kernel.

    CPUs and GPUs run convolutions of this shape in slow general code.
    """

    def __init__(self, conv: nn.Conv3d) -> None:
        super().__init__()
        bias = None if conv.bias is None else conv.bias.data
        self.linear = linear_of(conv.weight.data.flatten(1), bias)

    @property
    def weight(self) -> Tensor:
        """The weights [hidden, values of a patch]; the vision part reads their dtype."""
        return self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map patches [n, channels, time, height, width] to [n, hidden]."""
        y: Tensor = self.linear(x.flatten(1))
        return y


class RmsNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; `weight` may be [heads, dim]."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self.weight, self._eps, self._shape = weight, eps, (size,)
        self._scaled = weight * size**0.5
        self._floor = torch.tensor((eps * size) ** 0.5, dtype=weight.dtype, device=weight.device)
        self._lean = weight.device.type == "cpu" and weight.dtype == torch.float32
        self._flat = weight.dim() == 1

    def __call__(self, x: Tensor) -> Tensor:
        if (
            self._lean and x.dtype == torch.float32
        ):  # half as many operations on a CPU as torch's composite
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return torch.div(x, torch.hypot(length, self._floor)).mul_(self._scaled)
        if self.weight.dtype != x.dtype:
            return self._normed(x.float()).type_as(x)
        return self._normed(x)

    def _normed(self, x: Tensor) -> Tensor:
        if self._flat:
            return F.rms_norm(x, self._shape, self.weight, self._eps)
        return F.rms_norm(x, self._shape, None, self._eps) * self.weight

    @classmethod
    def of(cls, norm: Any) -> RmsNorm:
        """The equivalent of a norm module of transformers."""
        return cls(*weight_of(norm))


def weight_of(norm: Any) -> tuple[Tensor, float]:
    """The weight of a norm module of transformers, and its epsilon."""
    weight: Tensor = norm.weight.data
    if hasattr(norm, "variance_epsilon"):
        return weight, norm.variance_epsilon
    return 1 + weight.float(), norm.eps  # Qwen3.5's, whose weight is how far it is from 1


TABLE = 2048  # positions


class RotaryEmbedding:
    """Cosines and sign-folded sines of positions, for the queries and keys of one model.

    A text token has three equal positions (time, height, width), so its angles come from a table.
    """

    def __init__(self, rotary: Any, config: Any, dtype: torch.dtype) -> None:
        """rotary, config: the language model's, from transformers."""
        self._dtype = dtype
        self._frequency = rotary.inv_freq.detach().float()  # [dim / 2]
        self._scaling = float(getattr(rotary, "attention_scaling", 1.0))
        half = len(self._frequency)
        # Of a configuration without it, the rotary module has the default; text alone has neither.
        section = getattr(rotary, "mrope_section", None) or config.rope_parameters.get(
            "mrope_section", [half]
        )
        axis = torch.zeros(half, dtype=torch.long)
        if len(section) > 1 and "qwen3" in config.model_type:  # interleaved: t h w t h w ... then t
            for which, offset in ((1, 1), (2, 2)):
                axis[offset : section[which] * 3 : 3] = which
        else:  # one block of frequencies an axis
            ends = torch.tensor(section).cumsum(0)
            axis = (torch.arange(half)[:, None] >= ends[None, :]).sum(1).clamp(max=2)
        self._axis = axis.to(self._frequency.device)
        self._places = torch.arange(half, device=self._frequency.device)
        self._cos = self._sin = torch.empty(0, half, dtype=dtype, device=self._frequency.device)
        self._reach(TABLE - 1)

    def _reach(self, top: int) -> None:
        """Extend the tables to this position, in blocks of equal size: so an entry is always the
        same (the last bit of a vectorized cos may depend on the block's end)."""
        while top >= len(self._cos):
            first = len(self._cos)
            positions = torch.arange(first, first + TABLE, device=self._axis.device)
            angle = positions[:, None].float() * self._frequency  # [TABLE, dim / 2]
            cos, sin = angle.cos() * self._scaling, angle.sin() * self._scaling
            self._cos = torch.cat([self._cos, cos.to(self._dtype)])
            self._sin = torch.cat([self._sin, sin.to(self._dtype)])
            self._text = _folded(self._cos, self._sin)

    def __call__(self, positions: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """cos and sin, [n, 1, dim] each, of int64 [3, n] (time, height, width) or one text position
        per token."""
        if isinstance(positions, Tensor):
            self._reach(int(positions.max()))
            rows = positions.to(self._axis.device)[self._axis].T  # [n, dim / 2]
            return _folded(self._cos[rows, self._places], self._sin[rows, self._places])
        first, count, top = positions[0], len(positions), max(positions)
        self._reach(top)
        cos, sin = self._text
        if top - first + 1 == count and list(positions) == list(range(first, top + 1)):
            return cos.narrow(0, first, count), sin.narrow(0, first, count)
        index = torch.tensor(positions, device=self._axis.device)
        return cos.index_select(0, index), sin.index_select(0, index)


def _folded(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, [n, 1, dim] each, from [n, dim / 2]: rotate_half(x) * sin == roll(x, dim / 2) *
    (-sin, sin)."""
    return torch.cat([cos, cos], -1)[:, None], torch.cat([-sin, sin], -1)[:, None]


Activation = Callable[[Tensor], Tensor]


class GatedMlp(nn.Module):
    """down(activation(gate x) * (up x)), with gate and up in one product; [..., E] to [..., E]."""

    def __init__(self, gate_up: nn.Module, down: nn.Module, activation: Activation) -> None:
        super().__init__()
        self.gate_up, self.down, self.activation = gate_up, down, activation

    def forward(self, rows: Tensor) -> Tensor:
        gate, up = self.gate_up(rows).chunk(2, -1)
        y: Tensor = self.down(self.activation(gate) * up)
        return y


class MixtureOfExperts(nn.Module):
    """The experts that a router chooses for each row, weighted; [n, E] to [n, E].

    The router is transformers' own, and the experts, too, where the device computes them by one
    grouped product: no row waits for what the router says to the host. On a CPU and quantized each
    expert is a layer of its own. A row's sum is in the order of its own choice, whichever rows
    share the pass.
    """

    def __init__(self, mlp: Any, quantize: str) -> None:
        super().__init__()
        self.router, fused = mlp.gate, mlp.experts
        self.grouped: nn.Module | None = None
        self.experts = nn.ModuleList()
        if quantize == "none" and fused.down_proj.device.type != "cpu":
            self.grouped = fused
            return
        for gate_up, down in zip(fused.gate_up_proj.data, fused.down_proj.data, strict=True):
            self.experts.append(GatedMlp(linear_of(gate_up), linear_of(down), fused.act_fn))

    def forward(self, rows: Tensor) -> Tensor:
        _, weights, chosen = self.router(rows)  # [n, k] each
        if self.grouped is not None:
            together: Tensor = self.grouped(rows, chosen, weights)
            return together
        order = chosen.flatten().argsort(stable=True)  # pairs of a row and an expert, by expert
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        parts = torch.split(rows[order // chosen.shape[1]], counts)
        done = [expert(part) for expert, part in zip(self.experts, parts, strict=True) if len(part)]
        sorted_rows = torch.cat(done)
        each = torch.empty_like(sorted_rows).index_copy_(0, order, sorted_rows)
        weighted: Tensor = each.view(*chosen.shape, -1) * weights[..., None]
        return weighted.sum(1)


def mlp_of(mlp: Any, quantize: str) -> nn.Module:
    """The equivalent of an MLP module of transformers, dense or of experts."""
    if hasattr(mlp, "experts"):
        return MixtureOfExperts(mlp, quantize)
    return GatedMlp(join([mlp.gate_proj, mlp.up_proj]), mlp.down_proj, mlp.act_fn)


class Block:
    """The weights of a block: what its mixer, attention or another, reads and what follows it."""

    def __init__(
        self, layer: Any, inputs: Sequence[nn.Module], output: nn.Module, quantize: str
    ) -> None:
        self._norm_in = RmsNorm.of(layer.input_layernorm)
        self._norm_mid = RmsNorm.of(layer.post_attention_layernorm)
        products = nn.ModuleDict(
            {
                "in": join(inputs),
                "out": output,
                "mlp": mlp_of(layer.mlp, quantize),
            }
        )
        quantize_linears(products, quantize)
        pack_linears(products)
        self._in, self._out, self._mlp = products["in"], products["out"], products["mlp"]

    def finish(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Hidden rows [n, E] after the block, from those before it and the mixer's output [n,
        M]."""
        hidden = torch.add(hidden, self._out(mixed))
        return torch.add(hidden, self._mlp(self._norm_mid(hidden)))


# (index of the layer among its like, queries and keys, values) -> [n, heads * dim]
Attention = Callable[[int, Tensor, Tensor], Tensor]


class AttentionLayer(Block):
    """A block with attention; with a norm of queries and keys, and a gate of what attention
    returns, if the block has them."""

    def __init__(
        self, layer: Any, place: int, heads: int, kv_heads: int, dim: int, quantize: str
    ) -> None:
        """place: its index among these layers."""
        attention = layer.self_attn
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        super().__init__(layer, parts, attention.o_proj, quantize)
        self._place, self._heads, self._kv_heads, self._dim = place, heads, kv_heads, dim
        self._gated = is_gated(attention, heads)
        self._norm_qk: RmsNorm | None = None
        if hasattr(attention, "q_norm"):
            query, epsilon = weight_of(attention.q_norm)
            key, _ = weight_of(attention.k_norm)
            both = [query.expand(heads, -1), key.expand(kv_heads, -1)]
            self._norm_qk = RmsNorm(torch.cat(both), epsilon)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """Hidden rows [n, E] after the block. cos, sin: [n, 1, rotated], see
        ``RotaryEmbedding``.

        attention: of rotated queries and keys [n, heads + kv_heads, dim], and values [n, kv_heads,
        dim].
        """
        heads, split = self._heads, self._heads + self._kv_heads
        qkv = self._in(self._norm_in(hidden)).view(hidden.shape[0], -1, self._dim)
        gate: Tensor | None = None
        if self._gated:  # each query head is followed by its gate
            query, gate = qkv[:, : 2 * heads].unflatten(1, (heads, 2)).unbind(2)
            qkv = torch.cat([query, qkv[:, 2 * heads :]], 1)
        qk, values = qkv[:, :split], qkv[:, split:]
        if self._norm_qk is not None:
            qk = self._norm_qk(qk)
        rotated = cos.shape[-1]
        if rotated == self._dim:
            qk = torch.addcmul(qk * cos, qk.roll(self._dim // 2, -1), sin)
        else:
            part, rest = qk.split([rotated, self._dim - rotated], -1)
            part = torch.addcmul(part * cos, part.roll(rotated // 2, -1), sin)
            qk = torch.cat([part, rest], -1)
        attended = attention(self._place, qk, values)
        if gate is not None:
            attended = attended * gate.flatten(1).sigmoid()
        return self.finish(hidden, attended)


def is_gated(attention: Any, heads: int) -> bool:
    """Whether an attention module of transformers has a gate for each query head."""
    return bool(getattr(attention.q_proj, "out_features", 0) == 2 * heads * attention.head_dim)
