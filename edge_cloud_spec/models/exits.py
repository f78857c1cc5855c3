"""Early exits: predict the verdict from an intermediate layer, while the target's pass
continues."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from ..decoding.accept import ExitPrediction, follow
from ..decoding.draft import Draft
from ..decoding.noise import gumbel
from ..decoding.policy import SamplingPolicy, scaled_logits
from ..decoding.processors import AdjustmentAfter
from ..decoding.propose import coupled_token
from ..errors import UserError, library_errors
from .passes.layer import is_plain
from .passes.target_rows import adjusted_row
from .passes.transformer import Transformer
from .vlm import Vlm

NO_TOKEN = -1  # stands for the token after an end token
# A token with a higher probability is taken without noise, which would change fewer than 1 in 1000.
CERTAIN = 0.999


class _Rows:
    """Logits [m, S], with each one's most likely index in [S] and its probability."""

    def __init__(self, scaled: Tensor) -> None:
        self.scaled = scaled
        best = torch.softmax(scaled, -1).max(-1)
        self.chances, self.places = best.values.tolist(), best.indices.tolist()


class ExitPredictor:
    """Predicts the verdict of one pass; is the ``on_layer`` of ``Session.forward``.

    It calls ``on_prediction`` whenever the predicted tokens change.
    """

    def __init__(
        self,
        exits: Exits,
        draft: Draft,
        policy: SamplingPolicy,
        position: int,
        on_prediction: Callable[[ExitPrediction], None],
        *,
        first: NDArray[np.float32] | None = None,
        end_tokens: Iterable[int] = (),
        open_at: int | None = None,
        adjusted: AdjustmentAfter | None = None,
    ) -> None:
        """position: of the first drafted token in the answer. first: logits [V] after the prefix,
        if the pass leaves them out; without them there are no predictions then. open_at: the leaf
        after which another draft continues, so that the verdict is open there. adjusted: how the
        logits of the whole vocabulary change."""
        self._exits, self._draft, self._policy = exits, draft, policy
        self._position, self._on_prediction, self._first = position, on_prediction, first
        self._ends, self._open_at, self._adjusted = frozenset(end_tokens), open_at, adjusted
        self._ids, self._head = exits.over(draft.tokens)  # [S] that may be predicted, their rows
        self._noise: dict[int, NDArray[np.float64]] = {}  # by position
        self._reported: tuple[int | None, ...] | None = None

    def __call__(self, index: int, hidden: Tensor) -> None:
        """Called after the target's layer with this index.

        hidden: hidden rows [m, E] of the nodes, after the prefix's if the pass computes that.
        """
        layer = index + 1
        if layer not in self._exits.adapters:
            return
        left_out = 1 + len(self._draft) - len(hidden)
        if left_out and self._first is None:
            return
        prediction = self._predict(layer, self._exits.logits(layer, hidden, self._head), left_out)
        tokens = (*(self._draft.tokens[node] for node in prediction.path), prediction.token)
        if tokens != self._reported and prediction.confidence > 0:  # false for NaN
            self._reported = tokens
            self._on_prediction(prediction)

    def _scaled(self, logits: Tensor) -> Tensor:
        """Logits [m, S] of the policy's distribution, up to a factor at temperature 0."""
        policy = self._policy
        if policy.temperature == 0:
            return logits
        if policy.truncates:
            return torch.from_numpy(scaled_logits(logits.cpu().numpy(), policy))
        return logits / policy.temperature

    def _predict(self, layer: int, logits: Tensor, left_out: int) -> ExitPrediction:
        """Follow the draft along the exit's tokens; ``logits`` [m, S]."""
        every = _Rows(self._scaled(logits)) if self._adjusted is None else None
        confidence, position = 1.0, self._position - 1

        def token_after(node: int) -> int:
            nonlocal confidence, position
            position += 1
            if node >= 0 and self._draft.tokens[node] in self._ends:
                return NO_TOKEN
            row = node + 1 - left_out
            if row < 0:
                first = self._first  # so the verdict's token is known here, not predicted
                assert first is not None
                if self._adjusted is not None:
                    first = self._adjusted(-1).of(first)
                return coupled_token(first, self._policy, position)
            rows = every
            if self._adjusted is not None:
                adjustment = self._adjusted(node)
                if adjustment.forced is not None:
                    return adjustment.forced
                changed = adjusted_row(logits[row], adjustment.among(self._ids))
                rows, row = _Rows(self._scaled(changed[None])), 0
            assert rows is not None
            chance, place = rows.chances[row], rows.places[row]
            if self._policy.temperature > 0 and chance < CERTAIN:
                chance, place = self._with_noise(rows.scaled[row], position)
            confidence *= chance
            return int(self._ids[place])

        taken = follow(self._draft, token_after, self._open_at)
        token = None if taken.token == NO_TOKEN else taken.token
        return ExitPrediction(taken.path, token, confidence, layer)

    def _with_noise(self, scaled: Tensor, position: int) -> tuple[float, int]:
        """The exit's token as an index in [S], and the probability that the final pass has the
        same.

        argmax(log P + G) with the final pass's noise, as in ``coupled_token`` (cf. ``beliefs``).
        """
        if position not in self._noise:
            self._noise[position] = gumbel(self._policy.seed, position, self._ids)
        scores = scaled.cpu().numpy() + self._noise[position]
        place = int(scores.argmax())
        return float(1 / np.exp(scores - scores[place]).sum()), place


log = logging.getLogger(__name__)

EXIT_CONFIG, EXIT_WEIGHTS = "config.json", "exits.safetensors"


class Adapter(nn.Module):
    """h + up(silu(down(norm(h)))) of hidden rows [n, E]; initially the identity.

    ``down`` is [E, rank] and includes the norm's weight, ``up`` is [rank, E].
    """

    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(hidden, rank) * hidden**-0.5)
        self.up = nn.Parameter(torch.zeros(rank, hidden))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden rows [n, E] to what the target's last layer would return."""
        inner = F.silu(torch.mm(_normed(hidden), self.down))
        return torch.addmm(hidden, inner, self.up)


def _normed(rows: Tensor) -> Tensor:
    """RMSNorm without its weight, in few operations, as each costs time in a small pass."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    scale: float = rows.shape[-1] ** -0.5
    return rows / (length * scale)


class Exits:
    """The early exits of one target: an adapter per exit layer, and a shortlist of the LM head's
    tokens."""

    def __init__(
        self,
        vlm: Vlm,
        adapters: dict[int, Adapter],
        shortlist: Iterable[int],
        dtype: torch.dtype | None = None,
    ) -> None:
        """adapters: by the number of layers before. shortlist: token ids; empty: all tokens.

        dtype: of the computation (default: the target's). The target's vocabulary must be cropped
        before.
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
        """The exits in ``folder``, trained for this target; None if there are none.

        UserError: they belong to another model, or cannot be read.
        """
        if not (folder / EXIT_CONFIG).is_file():
            return None
        remedy = "train them again, or remove the folder"
        with library_errors(f"the exits in {folder} cannot be loaded", remedy):
            config = json.loads((folder / EXIT_CONFIG).read_text(encoding="utf-8"))
            _check(config, vlm, folder)
            weights = load_file(folder / EXIT_WEIGHTS)
            adapters = {int(layer): _adapter(weights, layer) for layer in config["layers"]}
            return cls(vlm, adapters, config["shortlist"])

    def logits(self, layer: int, hidden: Tensor, head: Tensor | None = None) -> Tensor:
        """Logits float32 [n, S] of hidden rows [n, E] after ``layer`` layers.

        The S tokens are those of ``head`` [S, E] (see ``over``), or by default the shortlist.
        """
        rows: Tensor = self.adapters[layer](hidden)
        head = self._head if head is None else head
        if head is None:
            return self._vlm.transformer.logits(rows, self._vlm.vocabulary)
        return F.linear(_normed(rows), head).float()

    def over(self, tokens: Sequence[int]) -> tuple[NDArray[np.int64], Tensor | None]:
        """The shortlist extended by these tokens: ids [S], and their rows [S, E] of the LM head.

        Without a shortlist: all ids, and None for the target's whole head.
        """
        if self._head is None:
            return np.arange(self._vlm.vocabulary), None
        more = set(tokens) - self._known
        if not more:
            return self._ids, self._head
        ids = np.array(sorted(more), np.int64)
        return np.append(self._ids, ids), torch.cat([self._head, self._rows_of_head(ids)])

    def _rows_of_head(self, ids: NDArray[np.int64]) -> Tensor:
        """Rows [n, E] of the target's LM head, multiplied by the weight of its final norm."""
        transformer = self._vlm.transformer
        head = transformer.lm_head
        if not is_plain(head):
            raise UserError(
                "the target's head is quantized, so that no rows of it can be taken: give its "
                "exits the whole vocabulary (an empty shortlist in their config.json)"
            )
        rows = head.weight.data[torch.from_numpy(ids).to(transformer.device)]
        return (rows * transformer.norm.weight).to(self._dtype)


def shape_of(transformer: Transformer) -> dict[str, int]:
    """The target's sizes that exits must fit, named as in transformers' configurations."""
    return {"hidden_size": transformer.hidden_size, "num_hidden_layers": len(transformer.layers)}


def _adapter(weights: dict[str, Tensor], layer: int) -> Adapter:
    down, up = weights[f"{layer}.down"], weights[f"{layer}.up"]
    adapter = Adapter(*down.shape)
    adapter.load_state_dict({"down": down.float(), "up": up.float()})
    return adapter


def weights_of(vlm: Vlm) -> str:
    """The part of a model's identity that names its weights, without dtype and quantization."""
    return vlm.identity.split(":")[1]


def _check(config: dict[str, Any], vlm: Vlm, folder: Path) -> None:
    for name, ours in shape_of(vlm.transformer).items():
        if config[name] != ours:
            raise UserError(
                f"the exits in {folder} are of a model with {name} {config[name]}, and this one "
                f"has {ours}: train exits for it (edge-cloud-spec train exits), or remove them"
            )
    if config["target"] != weights_of(vlm):
        log.warning("the exits in %s were trained with other weights and may predict badly", folder)
