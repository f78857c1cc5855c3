"""A head of the target drafts for it, without a second model: multi-token prediction (MTP).

Qwen3.5's checkpoints have one (``mtp.*``, of the form in DeepSeek-V3 section 2.2). Of the target's
row after its last layer and final norm, and of the embedding of the token that follows, a
projection makes the input of one more layer with attention. After a norm of its own, the target's
LM head makes logits of it, for the token after next. To draft on, it reads its own row in place of
the target's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from ..decoding.digest import common_prefix
from ..decoding.token_tree import TokenTree
from ..errors import UserError, library_errors
from .cache import KeyValueCache
from .checkpoint import read_json, weight_files
from .drafter import OnLayer
from .exits import weights_of
from .passes.attention import PassItem, attend
from .passes.layer import AttentionLayer, RmsNorm, pack_linears
from .passes.transformer import Transformer
from .prompt import Prompt
from .session import Session
from .vlm import Vlm

log = logging.getLogger(__name__)

MTP = "mtp."  # with which the names of its weights begin
LARGEST_LOGIT = 1e4  # of its logits, which no temperature makes infinite


HEAD_CONFIG, HEAD_WEIGHTS = "config.json", "head.safetensors"  # of a trained one, in ``head/``


def head_modules(transformer: Transformer, device: str = "meta") -> nn.ModuleDict:
    """The modules of a head for this target, named as in Qwen3.5's checkpoints; on ``meta`` without
    weights, elsewhere with new ones."""
    with torch.device(device):
        layer, width = transformer.attention_like(), transformer.hidden_size
        if hasattr(layer.mlp, "experts"):  # which transformers' layers leave as memory was
            with torch.no_grad():
                for weight in layer.mlp.parameters():
                    most = weight.shape[-1] ** -0.5  # as of nn.Linear
                    weight.uniform_(-most, most)
        return nn.ModuleDict(
            {
                "fc": nn.Linear(2 * width, width, bias=False),
                "pre_fc_norm_embedding": deepcopy(layer.input_layernorm),
                "pre_fc_norm_hidden": deepcopy(layer.input_layernorm),
                "layers": nn.ModuleList([layer]),
                "norm": deepcopy(layer.input_layernorm),
            }
        )


def flaw_of(weights: Mapping[str, Tensor]) -> str:
    """Why a head cannot have these weights; empty: it can."""
    for name, tensor in weights.items():
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            kind = str(tensor.dtype).removeprefix("torch.")
            return f"has weights in {kind}, as in {name}, which are not read"
        if not tensor.isfinite().all():
            return f"has weights that are not finite, as in {name}"
    return ""


def keep_hidden(vlm: Vlm) -> None:
    """Let this model's caches keep what a head reads, from now on."""
    transformer = vlm.transformer
    transformer.cache_layout = replace(transformer.cache_layout, hidden=transformer.hidden_size)
    vlm.use_memory(vlm.memory)  # of rows of the new layout


def has_head(directory: Path) -> bool:
    """Whether there is a head with this checkpoint, of whatever form."""
    return (directory / "head" / HEAD_CONFIG).is_file() or any(_names(directory).values())


def _names(directory: Path) -> dict[Path, list[str]]:
    """The names of a head's weights in each file of a checkpoint."""
    names: dict[Path, list[str]] = {}
    for path in weight_files(directory):
        with safe_open(path, "pt") as file:
            names[path] = [name for name in file.keys() if name.startswith(MTP)]  # noqa: SIM118
    return names


class DraftHead:
    """A head of one target."""

    def __init__(self, vlm: Vlm, modules: nn.ModuleDict, name: str) -> None:
        """modules: of ``head_modules``, with weights of the target's dtype on its device. name: for
        people."""
        self._vlm, self.name, transformer = vlm, name, vlm.transformer
        layout, self.transformer = transformer.cache_layout, transformer
        layer = modules.get_submodule("layers.0")
        sizes = transformer.heads, layout.heads, layout.size
        self._layer = AttentionLayer(layer, layout.layers, *sizes, "none")
        names = "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"
        self._norm_embedding, self._norm_hidden, self._norm = (
            RmsNorm.of(modules[name]) for name in names
        )
        fused = nn.ModuleDict({"fc": modules["fc"]})
        pack_linears(fused)
        self._fc = fused["fc"]
        keep_hidden(vlm)

    @classmethod
    def load(cls, directory: Path, vlm: Vlm) -> DraftHead | None:
        """The head in the checkpoint that this model was loaded from, first one that was trained
        for it (``head/``); None: there is none, or one of another form, which is logged. UserError:
        it cannot be read."""
        folder = directory / "head"
        if (folder / HEAD_CONFIG).is_file():
            with library_errors(f"the head in {folder} cannot be loaded", "train it again"):
                if read_json(folder, HEAD_CONFIG)["target"] != weights_of(vlm):
                    log.warning(
                        "the head in %s was trained with other weights than the target's, and "
                        "drafts all the same: train it again if its drafts are rejected",
                        folder,
                    )
                return cls.of(load_file(folder / HEAD_WEIGHTS), vlm, "trained for the target")
        weights: dict[str, Tensor] = {}
        for path, names in _names(directory).items():
            with safe_open(path, "pt") as file:
                weights |= {name.removeprefix(MTP): file.get_tensor(name) for name in names}
        return cls.of(weights, vlm, "MTP of the checkpoint") if weights else None

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], vlm: Vlm, name: str) -> DraftHead | None:
        """The head with these weights; None: they are of another form, or not all are numbers,
        which is logged."""
        transformer, modules = vlm.transformer, head_modules(vlm.transformer)
        shapes = {name: tensor.shape for name, tensor in modules.state_dict().items()}
        given = {name: tensor.shape for name, tensor in weights.items()}
        own: dict[str, Tensor] = {}
        if given != shapes:
            odd = min({*given.items()} ^ {*shapes.items()})[0]
            flaw = f"has another form than Qwen3.5's, {odd} first"
        elif not (flaw := flaw_of(weights)):
            own = {
                each: tensor.to(transformer.device, transformer.dtype)
                for each, tensor in weights.items()
            }
            flaw = flaw_of(own)  # fp16 ends at 65504
        if flaw:
            log.warning("the target's head %s: generation goes on without it", flaw)
            return None
        modules.load_state_dict(own, assign=True)
        return cls(vlm, modules.requires_grad_(False), name)

    def rows(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        positions: Tensor | Sequence[int],
        cache: KeyValueCache,
        start: int,
    ) -> Tensor:
        """The head's rows [n, E] after its norm, and their keys and values into rows ``start`` on.

        embeddings [n, E]: of the tokens after those of ``hidden`` [n, E], the rows after the
        target's final norm, or the head's own. positions: those of ``hidden``.
        """
        inputs = torch.cat([self._norm_embedding(embeddings), self._norm_hidden(hidden)], -1)
        count = len(inputs)
        mask = self.transformer.mask(start, count, TokenTree(), 0)
        item = PassItem(cache, start, range(count), mask)
        cos, sin = self.transformer.rotary(positions)
        attention = partial(attend, item=item, heads=self.transformer.heads)
        return self._norm(self._layer(self._fc(inputs), cos, sin, attention))

    def logits(self, rows: Tensor) -> NDArray[np.float32]:
        """Logits [n, V] of the head's rows [n, E]; none is NaN, which no draft could be drawn
        from."""
        logits = self.transformer.unembed(rows, self._vlm.vocabulary).clamp_(
            -LARGEST_LOGIT, LARGEST_LOGIT
        )
        return logits.nan_to_num_(0.0).cpu().numpy()

    def beside(self, target: Session, prompt: Prompt) -> HeadSession:
        """Drafts after a session of its target, of this prompt."""
        keep = partial(self._vlm.keep_head, prompt)
        return HeadSession(self, target, partial(self._vlm.inputs, prompt), keep)


class HeadSession:
    """A head's ``DraftSession`` of chains, beside one of its target.

    Row i of the head reads the target's row i and token i + 1; its keys and values are in the
    target's cache, so that they go when that goes. What is missing is computed at the next use: of
    the prompt, too, when it begins, and after an eviction, as far as no prompt before began so.
    """

    def __init__(
        self,
        head: DraftHead,
        target: Session,
        inputs: Callable[[], tuple[Tensor, Tensor]],
        keep: Callable[[KeyValueCache], None],
    ) -> None:
        """inputs: what the target's first layer reads of the prompt, see ``Vlm.inputs``. keep: see
        ``Vlm.keep_head``."""
        self._head, self._target, self._inputs, self._keep = head, target, inputs, keep
        self.tokens: tuple[int, ...] = ()
        self.nodes = TokenTree()
        # Its rows [1, E], and the logits [V] of each: after the prefix, if known, and the nodes.
        self._last: tuple[Tensor, NDArray[np.float32]] | None = None
        self._after: list[tuple[Tensor, NDArray[np.float32]]] = []

    @property
    def _end(self) -> int:
        """The head's rows for the prefix: one fewer than its tokens, as each reads the next one."""
        return self._target.prompt_rows + len(self.tokens) - 1

    @property
    def _cache(self) -> KeyValueCache:
        assert self._target.cache is not None
        return self._target.cache

    @property
    def pending_rows(self) -> int:
        """As ``DraftSession``."""
        return max(self._end - self._cache.head_rows, int(self._last is None))

    def truncate(self, length: int) -> None:
        """As ``DraftSession``."""
        self._follow(self.tokens[:length])

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """As ``DraftSession``, but no node stays: the target's rows take the place of the head's
        own."""
        self._follow((*self.tokens, *(self.nodes.tokens[node] for node in path)))

    def extend(self, tokens: Sequence[int]) -> None:
        """As ``DraftSession``."""
        self._follow((*self.tokens, *tokens))

    def _follow(self, tokens: tuple[int, ...]) -> None:
        self.nodes, self._after = TokenTree(), []
        if tokens != self.tokens:
            known = self._target.prompt_rows + common_prefix(tokens, self.tokens) - 1
            self.tokens, self._last = tokens, None
            if self._target.cache is not None:
                self._cache.head_rows = min(self._cache.head_rows, known)

    def close(self) -> None:
        """As ``DraftSession``; all that it holds is the target's."""

    def logits_after(self, node: int, on_layer: OnLayer | None = None) -> NDArray[np.float32]:
        """As ``DraftSession``. UserError: the target has not computed the rows before."""
        if node >= 0:
            return self._after[node][1]
        if self.pending_rows or self._last is None:
            with torch.inference_mode():
                self._last = self._compute()
        return self._last[1]

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: OnLayer | None = None
    ) -> NDArray[np.float32]:
        """As ``DraftSession``, a pass for each node. ValueError: the nodes are no chain."""
        self.logits_after(-1)
        assert self._last is not None
        before = len(self.nodes)
        nodes = self.nodes.extend(tokens, parents)
        if nodes.parents is not None:
            raise ValueError("a head drafts chains")
        target = self._target
        valid = max(self._end + before, target.computed_rows + len(target.nodes))
        self._cache.grow(self._end + len(nodes), valid)
        with torch.inference_mode():
            for token in tokens:
                hidden, _ = self._after[-1] if self._after else self._last
                at = self._end + len(self._after)
                position = [at + self._target.delta]
                embedding = self._head.transformer.embed([token])
                self._after.append(
                    self._output(self._head.rows(embedding, hidden, position, self._cache, at))
                )
        self.nodes = nodes
        return np.stack([logits for _, logits in self._after[before:]])

    def _compute(self) -> tuple[Tensor, NDArray[np.float32]]:
        """Compute the missing rows for the prefix, and the last one in any case."""
        cache, target, end = self._cache, self._target, self._end
        if target.computed_rows < end or end < 1:
            raise UserError("the head of the target needs the rows before, which are missing")
        start, prompt = min(cache.head_rows, end - 1), target.prompt_rows
        transformer = self._head.transformer
        hidden = transformer.norm(cache.hidden[start:end])  # as the target's LM head reads them
        embeddings = transformer.embed(  # maybe of none
            np.asarray(self.tokens[max(start + 1 - prompt, 0) :], np.int64)
        )
        # A prompt ends with text, so that its last row is placed as those after it.
        positions = torch.arange(max(start, prompt - 1), end).expand(3, -1) + target.delta
        if start < prompt - 1:
            of_prompt, places = self._inputs()
            embeddings = torch.cat([of_prompt[start + 1 :], embeddings])
            positions = torch.cat([places[:, start : prompt - 1], positions], 1)
        rows = self._head.rows(embeddings, hidden, positions, cache, start)
        cache.head_rows = end
        if start < prompt - 1:
            self._keep(cache)
        return self._output(rows[-1:])

    def _output(self, row: Tensor) -> tuple[Tensor, NDArray[np.float32]]:
        return row, self._head.logits(row)[0]
