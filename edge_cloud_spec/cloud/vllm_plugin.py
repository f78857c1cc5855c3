"""Rule ``coupled`` in vLLM: a logits processor, which runs in vLLM's own processes.

Beside vLLM: ``pip install --no-deps edge-cloud-spec``, and ``vllm serve --logits-processors
edge_cloud_spec.cloud.vllm_plugin:Coupled``. Of a request with ``extra_args: {"coupled": ...}`` the
token of the rule becomes the row's only one, so that vLLM's greedy sampler says it. Other requests
are left as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from ..decoding.policy import SamplingPolicy
from ..decoding.target_rows import LogitRows


@dataclass(frozen=True)
class Wanted:
    """What a request asks for; ``said``: its own tokens so far, as vLLM appends them."""

    policy: SamplingPolicy
    position: int
    vocabulary: int
    said: list[int]


def wanted_of(params: Any, said: list[int]) -> Wanted | None:
    """A request's coupled sampling; None where it asks for none.

    Raises ValueError, TypeError or KeyError for parameters that cannot be used.
    """
    asked = (params.extra_args or {}).get("coupled")
    if asked is None:
        return None
    policy = SamplingPolicy(
        asked["temperature"], int(asked["top_k"]), asked["top_p"], int(asked["seed"])
    )
    return Wanted(policy, int(asked["position"]), int(asked["vocabulary"]), said)


class Coupled(LogitsProcessor):  # type: ignore[misc]
    """vLLM's interface; a row that is no distribution is left as it is, for vLLM to tell."""

    @classmethod
    def validate_params(cls, params: Any) -> None:
        """ValueError: refused before it is scheduled."""
        try:
            wanted_of(params, [])
        except (KeyError, TypeError) as error:
            raise ValueError(f"extra_args of rule coupled: {error!r}") from None

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._wanted: dict[int, Wanted] = {}  # by the row of the batch

    def is_argmax_invariant(self) -> bool:
        """No: greedy requests must pass through."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Requests have come, gone or moved."""
        process_dict_updates(
            self._wanted, batch_update, lambda params, prompt, said: wanted_of(params, said)
        )

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [requests, V] with one token left in each row that asks for it."""
        for index, wanted in self._wanted.items():
            row = logits[index, : wanted.vocabulary].float().cpu().numpy()
            try:
                place = wanted.position + len(wanted.said)
                token = LogitRows(row[None]).token(-1, wanted.policy, place)
            except ValueError:
                continue
            logits[index] = -torch.inf
            logits[index, token] = 0.0
        return logits
