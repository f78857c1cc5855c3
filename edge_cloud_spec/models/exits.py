"""A prediction of the verdict from an exit's rows, while the target's pass continues."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..decoding.accept import follow
from ..decoding.draft import Draft
from ..decoding.grammar import AllowedAfter, forced_token, masked
from ..decoding.noise import gumbel
from ..decoding.policy import SamplingPolicy, scaled_logits
from ..decoding.propose import coupled_token
from ..errors import UserError, library_errors
from .passes.layer import is_plain
from .passes.transformer import Transformer
from .vlm import Vlm

NOTHING = -1  # the token after an end token
CERTAIN = 0.999  # the noise is left out for a likelier token: it changes fewer than 1 in 1000


@dataclass(frozen=True)
class ExitPrediction:
    """An exit's prediction of the verdict; never acted on.

    layer: how many of the target's layers are before it. path: nodes of the draft, root to leaf.
    token: the recovered or bonus token; None where the answer ends with the path, or the verdict is
    open. confidence: probability, 0 to 1, that all of it is right.
    """

    layer: int
    path: tuple[int, ...]
    token: int | None
    confidence: float


class _Rows:
    """Logits [m, S], each one's likeliest place in [S], and how likely that is."""

    def __init__(self, scaled: Tensor) -> None:
        self.scaled = scaled
        best = torch.softmax(scaled, -1).max(-1)
        self.chances, self.places = best.values.tolist(), best.indices.tolist()


@dataclass(eq=False)
class ExitPredictor:
    """Predicts the verdict of one pass, as ``on_layer`` of ``Session.forward``.

    ``on_prediction`` is called with each prediction that has other tokens than the last one.
    layers: after how many there are exits. ids: tokens [S] that they may predict. logits: float32
    [m, S] from hidden rows [m, E] after these layers. position: of the first drafted token in the
    answer. first: logits [V] after the prefix, for a pass that leaves them out. open_at: the leaf
    after which the draft continues, so that the verdict is open there. allowed: by a grammar.
    """

    layers: frozenset[int]
    ids: NDArray[np.int64]
    logits: Callable[[int, Tensor], Tensor]
    draft: Draft
    policy: SamplingPolicy
    position: int
    on_prediction: Callable[[ExitPrediction], None]
    first: NDArray[np.float32] | None = None
    end_tokens: frozenset[int] = frozenset()
    open_at: int | None = None
    allowed: AllowedAfter | None = None
    _noise: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # by position
    _reported: tuple[int | None, ...] | None = None

    def __call__(self, index: int, hidden: Tensor) -> None:
        """Called after the target's layer of this index.

        hidden: rows [m, E] of the nodes, after the prefix's row where the pass computes that too.
        """
        layer = index + 1
        if layer not in self.layers:
            return
        left_out = 1 + len(self.draft) - len(hidden)
        if left_out and self.first is None:
            return
        prediction = self._predict(layer, self.logits(layer, hidden), left_out)
        tokens = (*(self.draft.tokens[node] for node in prediction.path), prediction.token)
        if tokens != self._reported and prediction.confidence > 0:  # false where it is NaN
            self._reported = tokens
            self.on_prediction(prediction)

    def _scaled(self, logits: Tensor) -> Tensor:
        """Logits [m, S] of the policy's distribution, but for a factor at temperature 0."""
        policy = self.policy
        if policy.temperature == 0:
            return logits
        if policy.top_k or policy.top_p < 1:
            return torch.from_numpy(scaled_logits(logits.cpu().numpy(), policy))
        return logits / policy.temperature

    def _predict(self, layer: int, logits: Tensor, left_out: int) -> ExitPrediction:
        """Follow the draft along the exit's own tokens; ``logits`` [m, S] are its own."""
        every = _Rows(self._scaled(logits)) if self.allowed is None else None
        confidence, position = 1.0, self.position - 1

        def token_after(node: int) -> int:
            nonlocal confidence, position
            position += 1
            if node >= 0 and self.draft.tokens[node] in self.end_tokens:
                return NOTHING
            row = node + 1 - left_out
            if row < 0:
                assert self.first is not None  # so this one is known, not predicted
                first = self.first if self.allowed is None else masked(self.first, self.allowed(-1))
                return coupled_token(first, self.policy, position)
            rows = every
            if self.allowed is not None:
                allowed = self.allowed(node)
                if (forced := forced_token(allowed)) is not None:
                    return forced
                outside = torch.from_numpy(~allowed[self.ids]).to(logits.device)
                rows = _Rows(self._scaled(logits[row : row + 1].masked_fill(outside, -torch.inf)))
                row = 0
            assert rows is not None
            chance, place = rows.chances[row], rows.places[row]
            if self.policy.temperature > 0 and chance < CERTAIN:
                chance, place = self._with_noise(rows.scaled[row], position)
            confidence *= chance
            return int(self.ids[place])

        taken = follow(self.draft, token_after, self.open_at)
        token = None if taken.token == NOTHING else taken.token
        return ExitPrediction(layer, taken.path, token, confidence)

    def _with_noise(self, scaled: Tensor, position: int) -> tuple[float, int]:
        """How likely the exit's token is the final pass's own, and its place in [S].

        argmax(log P + G) with the final pass's noise, as ``coupled_token`` has it (cf.
        ``beliefs``).
        """
        if position not in self._noise:
            self._noise[position] = gumbel(self.policy.seed, position, self.ids)
        scores = scaled.cpu().numpy() + self._noise[position]
        place = int(scores.argmax())
        return float(1 / np.exp(scores - scores[place]).sum()), place


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
    """The early exits of one target: an adapter for each exit layer, and the head's shortlist."""

    def __init__(
        self,
        vlm: Vlm,
        adapters: dict[int, Adapter],
        shortlist: Iterable[int],
        dtype: torch.dtype | None = None,
    ) -> None:
        """adapters: by the number of layers before. shortlist: token ids; empty: all tokens.

        dtype: the computation's (default: the target's). Crop the target's vocabulary before.
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
    return {"hidden_size": transformer.hidden_size, "num_hidden_layers": len(transformer.layers)}


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
