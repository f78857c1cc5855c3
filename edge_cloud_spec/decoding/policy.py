"""The sampling policy, part of the target's definition, and the acceptance rules by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import refuse

MAX_GRAMMAR = 4096  # characters


@dataclass(frozen=True)
class SamplingPolicy:
    """How logits become a distribution; temperature 0 is greedy, top_k 0 keeps all tokens.

    ``grammar``: text in llguidance's Lark dialect; tokens that it does not allow are removed first
    (see ``grammar.Grammar``). Empty: no grammar.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    grammar: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "temperature", float(self.temperature)
        )  # so that 0 and 0.0 give the same hash
        object.__setattr__(self, "top_p", float(self.top_p))
        refuse(
            (
                not 0 <= self.temperature <= 100,
                f"temperature must be between 0 and 100, not {self.temperature}",
            ),
            (self.top_k < 0, f"top_k must be 0 (keep all) or more, not {self.top_k}"),
            (not 0 < self.top_p <= 1, f"top_p must be above 0 and at most 1, not {self.top_p}"),
            (not 0 <= self.seed < 2**64, f"seed must be a number of 64 bits, not {self.seed}"),
            (
                len(self.grammar) > MAX_GRAMMAR,
                f"a grammar has at most {MAX_GRAMMAR} characters, not {len(self.grammar)}",
            ),
            error=ValueError,
        )

    @property
    def truncates(self) -> bool:
        """Whether tokens that the grammar allows may be removed, too."""
        return self.top_k > 0 or self.top_p < 1


GREEDY = SamplingPolicy()


def scaled_logits(logits: NDArray[np.float32], policy: SamplingPolicy) -> NDArray[np.float64]:
    """Logits of the policy's distribution, float64 [..., V], -inf outside its support.

    At temperature 0 the logits are not divided: only their argmax has a meaning. Raises ValueError
    if a logit is NaN or the largest is infinite.
    """
    scaled = np.asarray(logits, np.float64)
    top = scaled.max(-1, keepdims=True)
    check_top(top)
    if policy.temperature > 0:
        with np.errstate(over="ignore"):  # at a tiny temperature all but the best become -inf
            scaled = (scaled - top) / policy.temperature
    return truncated(scaled, policy.top_k, policy.top_p)


def check_top(top: NDArray[np.floating] | np.floating) -> None:
    """Raise ValueError unless the largest logits are finite; a NaN anywhere makes the largest
    NaN."""
    if not np.isfinite(top).all():
        raise ValueError("the model's logits hold something that is not a number")


def truncated(scaled: NDArray[np.float64], top_k: int, top_p: float) -> NDArray[np.float64]:
    """Logits [..., V] with -inf outside the ``top_k`` most likely tokens (0: all; ties stay).

    Of these, only the smallest set with probability ``top_p`` is kept.
    """
    if 0 < top_k < scaled.shape[-1]:
        smallest = np.partition(scaled, -top_k, axis=-1)[..., -top_k, None]
        scaled = np.where(scaled < smallest, -np.inf, scaled)
    if top_p < 1:
        order = np.argsort(-scaled, axis=-1, kind="stable")
        ranked = np.take_along_axis(softmax(scaled), order, -1)
        before = np.cumsum(ranked, axis=-1) - ranked
        outside = np.empty(scaled.shape, bool)
        np.put_along_axis(outside, order, before >= top_p, -1)
        scaled = np.where(outside, -np.inf, scaled)
    return scaled


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities [..., V] of logits [..., V]; -inf becomes 0."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    normalized: NDArray[np.float64] = weights / weights.sum(-1, keepdims=True)
    return normalized


RULES = ("greedy", "coupled", "rejection")


def check_rule(rule: str, temperature: float) -> None:
    """Raise UserError for an unknown rule, or one that excludes this temperature."""
    refuse(
        (rule not in RULES, f"rule must be {', '.join(RULES[:-1])} or {RULES[-1]}, not {rule!r}"),
        (
            (rule == "greedy") != (temperature == 0),
            "rule greedy goes with temperature 0, coupled and rejection with one above 0; "
            f"got {rule} at {temperature:g}",
        ),
    )


def temperature_of(rule: str, sampling: float) -> float:
    """The temperature of a decode: 0 under greedy, else ``sampling``."""
    return 0.0 if rule == "greedy" else sampling
