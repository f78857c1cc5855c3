"""The rule ``coupled`` in vLLM: a logits processor, which runs in vLLM's processes.

Install it beside vLLM: ``pip install --no-deps .`` in a checkout, and ``vllm serve
--logits-processors edge_cloud_spec.cloud.vllm_plugin:Coupled``. For a request with ``extra_args:
{"coupled": ...}`` it leaves only the logit of the token that the rule chooses, so that vLLM's
greedy sampler takes it. Other requests are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from ..decoding.policy import SamplingPolicy
from ..decoding.processors import LogitsProcessing, LogitsProcessors
from ..decoding.target_rows import LogitRows


@dataclass(frozen=True)
class Wanted:
    """The coupled sampling of one request; ``said``: its tokens so far, a list that vLLM appends
    to."""

    policy: SamplingPolicy
    position: int
    vocabulary: int
    processors: LogitsProcessors
    said: list[int]


def wanted_of(params: Any, prompt: Sequence[int] | None, said: list[int]) -> Wanted | None:
    """Parse a request's coupled sampling; None if it asks for none.

    prompt: the request's tokens. said: the generated ones, a list that vLLM appends to. Raises
    ValueError, TypeError or KeyError for invalid parameters.
    """
    asked = (params.extra_args or {}).get("coupled")
    if asked is None:
        return None
    policy = SamplingPolicy(
        asked["temperature"], int(asked["top_k"]), asked["top_p"], int(asked["seed"])
    )
    vocabulary, own = int(asked["vocabulary"]), LogitsProcessing(**asked["logits"])
    processors = LogitsProcessors(vocabulary, None, own, prompt or ())
    return Wanted(policy, int(asked["position"]), vocabulary, processors, said)


class Coupled(LogitsProcessor):  # type: ignore[misc]
    """The logits processor; logits that are no distribution are left unchanged, for vLLM to
    report."""

    @classmethod
    def validate_params(cls, params: Any) -> None:
        """Raise ValueError for invalid parameters, before the request is scheduled."""
        try:
            wanted_of(params, (), [])
        except (KeyError, TypeError) as error:
            raise ValueError(f"extra_args of rule coupled: {error!r}") from None

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._wanted: dict[int, Wanted] = {}  # by index in the batch

    def is_argmax_invariant(self) -> bool:
        """False: greedy requests must be processed, too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that were added, removed or moved in the batch."""
        process_dict_updates(self._wanted, batch_update, wanted_of)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """In logits [requests, V], keep only the chosen token for each coupled request."""
        for index, wanted in self._wanted.items():
            row = logits[index, : wanted.vocabulary].float().cpu().numpy()
            try:
                place = wanted.position + len(wanted.said)
                row = wanted.processors.after(wanted.said).of(row)
                token = LogitRows(row[None]).token(-1, wanted.policy, place)
            except ValueError:
                continue
            logits[index] = -torch.inf
            logits[index, token] = 0.0
        return logits
