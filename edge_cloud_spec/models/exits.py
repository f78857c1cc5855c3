"""Early exits of the target: its verdict, predicted before its pass has ended (FSD section 3).

An exit follows some of the layers: a low-rank adapter, then the target's own final norm and LM
head. The head runs over a shortlist of tokens, since over a vocabulary of Qwen's size it costs more
than two layers, and a prediction need not be exact. Nothing here touches the pass itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..decoding.draft import Draft
from ..decoding.grammar import AllowedAfter
from ..decoding.policy import SamplingPolicy
from ..errors import UserError, library_errors
from .exit_predictor import ExitPrediction, ExitPredictor
from .passes.linear import is_plain
from .passes.transformer import Transformer
from .vlm import Vlm

log = logging.getLogger(__name__)

CONFIG, WEIGHTS = "config.json", "exits.safetensors"


class Adapter(nn.Module):
    """h + up(silu(down(norm(h)))) of hidden rows [n, E]; begins as the identity.

    ``down`` is [E, rank] and takes in the norm's weight, ``up`` is [rank, E].
    """

    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(hidden, rank) * hidden**-0.5)
        self.up = nn.Parameter(torch.zeros(rank, hidden))

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden rows [n, E] as the target's last layer might leave them."""
        inner = F.silu(torch.mm(_normed(hidden), self.down))
        return torch.addmm(hidden, inner, self.up)


def _normed(rows: Tensor) -> Tensor:
    """RMSNorm without its weight, in few operations: in a small pass each of them counts."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    scale: float = rows.shape[-1] ** -0.5
    return rows / (length * scale)


class Exits:
    """The exits of one target: an adapter for each number of layers, and the shortlist."""

    def __init__(
        self,
        vlm: Vlm,
        adapters: dict[int, Adapter],
        shortlist: Iterable[int],
        dtype: torch.dtype | None = None,
    ) -> None:
        """adapters: by the number of layers before. shortlist: token ids; empty: all tokens.

        dtype: of the computation (default: the target's). Crop the target's vocabulary before.
        """
        transformer = vlm.transformer
        dtype = dtype or transformer.dtype
        self.adapters = {
            layer: adapters[layer].to(transformer.device, dtype).requires_grad_(False)
            for layer in sorted(adapters)
        }
        self._vlm = vlm
        self._ids = np.array(sorted({t for t in shortlist if t < vlm.vocabulary}), np.int64)
        self._known = frozenset(self._ids.tolist())
        self._dtype = dtype
        self._head = self._rows_of_head(self._ids) if self._known else None

    @classmethod
    def load(cls, folder: Path, vlm: Vlm) -> Exits | None:
        """The exits that were trained for this target; None where ``folder`` has none.

        UserError: they belong to another model, or cannot be read.
        """
        if not (folder / CONFIG).is_file():
            return None
        remedy = "train them again, or remove the folder"
        with library_errors(f"the exits in {folder} cannot be loaded", remedy):
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            _check(config, vlm, folder)
            weights = load_file(folder / WEIGHTS)
            adapters = {int(layer): _adapter(weights, layer) for layer in config["layers"]}
            return cls(vlm, adapters, config["shortlist"])

    def save(self, folder: Path, shortlist: Iterable[int]) -> None:
        """Write them into ``folder`` for ``load``, in fp16, with this shortlist (empty: all)."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {
            f"{layer}.{name}": value.detach().half().cpu().contiguous()
            for layer, adapter in self.adapters.items()
            for name, value in adapter.state_dict().items()
        }
        save_file(weights, folder / WEIGHTS)
        config = {
            **shape_of(self._vlm.transformer),
            "target": _weights_of(self._vlm),
            "layers": list(self.adapters),
            "rank": len(next(iter(self.adapters.values())).up),
            "shortlist": sorted(shortlist),
        }
        (folder / CONFIG).write_text(json.dumps(config) + "\n", encoding="utf-8")

    def logits(self, layer: int, hidden: Tensor, head: Tensor | None = None) -> Tensor:
        """float32 [n, S] of hidden rows [n, E] after ``layer`` layers.

        S are the tokens of ``head`` [S, E] (see ``over``), else those of the shortlist.
        """
        rows: Tensor = self.adapters[layer](hidden)
        head = self._head if head is None else head
        if head is None:
            return self._vlm.transformer.logits(rows, self._vlm.vocabulary)
        return F.linear(_normed(rows), head).float()

    def over(self, tokens: Sequence[int]) -> tuple[NDArray[np.int64], Tensor | None]:
        """The shortlist with these tokens: ids [S], and their rows [S, E] of the head.

        None in place of the rows: the whole vocabulary and the target's own head.
        """
        if self._head is None:
            return np.arange(self._vlm.vocabulary), None
        more = set(tokens) - self._known
        if not more:
            return self._ids, self._head
        ids = np.array(sorted(more), np.int64)
        return np.append(self._ids, ids), torch.cat([self._head, self._rows_of_head(ids)])

    def predictor(
        self,
        draft: Draft,
        rule: str,
        policy: SamplingPolicy,
        position: int,
        on_prediction: Callable[[ExitPrediction], None],
        *,
        first: NDArray[np.float32] | None = None,
        end_tokens: Iterable[int] = (),
        open_at: int | None = None,
        allowed: AllowedAfter | None = None,
    ) -> ExitPredictor | None:
        """The ``on_layer`` of a ``Session.forward`` that reports predictions of its verdict.

        None under ``rejection``: an exit's tokens are neither drawn nor tested there as a verdict's
        are. first: the session's ``known_row``, which the pass leaves out; without it such a pass
        has no predictions. See ``ExitPredictor`` for the rest.
        """
        if rule == "rejection" or not len(draft):
            return None
        ids, head = self.over(draft.tokens)
        return ExitPredictor(
            layers=frozenset(self.adapters),
            ids=ids,
            logits=partial(self.logits, head=head),
            draft=draft,
            policy=policy,
            position=position,
            on_prediction=on_prediction,
            first=first,
            end_tokens=frozenset(end_tokens),
            open_at=open_at,
            allowed=allowed,
        )

    def _rows_of_head(self, ids: NDArray[np.int64]) -> Tensor:
        """Rows [n, E] of the target's LM head, which take in the weight of its final norm."""
        transformer = self._vlm.transformer
        head = transformer.lm_head
        if not isinstance(head, nn.Linear) or not is_plain(head):
            raise UserError(
                "the target's head is quantized, so that no rows of it can be taken: give its "
                "exits the whole vocabulary (an empty shortlist in their config.json)"
            )
        rows = head.weight.data[torch.from_numpy(ids).to(transformer.device)]
        return (rows * transformer.norm.weight).to(self._dtype)


def shape_of(transformer: Transformer) -> dict[str, int]:
    """The sizes that exits must fit, by their names in transformers' configurations."""
    return {"hidden_size": transformer.hidden_size, "num_hidden_layers": transformer.layer_count}


def _adapter(weights: dict[str, Tensor], layer: int) -> Adapter:
    down, up = weights[f"{layer}.down"], weights[f"{layer}.up"]
    adapter = Adapter(*down.shape)
    adapter.load_state_dict({"down": down.float(), "up": up.float()})
    return adapter


def _weights_of(vlm: Vlm) -> str:
    """The part of a model's identity that names its weights, without dtype and quantization."""
    return vlm.identity.split(":")[1]


def _check(config: dict[str, Any], vlm: Vlm, folder: Path) -> None:
    for name, ours in shape_of(vlm.transformer).items():
        if config[name] != ours:
            raise UserError(
                f"the exits in {folder} are of a model with {name} {config[name]}, and this one "
                f"has {ours}: train exits for it (edge-cloud-spec train exits), or remove them"
            )
    if config["target"] != _weights_of(vlm):
        log.warning("the exits in %s were trained with other weights and may predict badly", folder)
