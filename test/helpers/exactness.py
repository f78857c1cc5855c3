"""A round of robot and cloud with every choice from outside, and what should come of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from helpers.enumeration import BranchingChooser, outcomes
from numpy.typing import NDArray

from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.processors import LogitsProcessors
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.decoding.random_source import RandomSource
from edge_cloud_spec.decoding.token_distribution import distribution_of
from edge_cloud_spec.wire.messages import ClientMessage, ServerMessage
from edge_cloud_spec_lab.harness.loopback import LoopbackPair, Wire
from edge_cloud_spec_lab.harness.toy import ToyVlm

Joint = dict[tuple[int, ...], float]
Message = ClientMessage | ServerMessage
ONE = SamplingPolicy(1.0)


class Model(ToyVlm):
    """A toy model; ``spread`` 0 makes all tokens equal."""

    def __init__(self, seed: int, vocabulary: int, spread: float) -> None:
        super().__init__(seed, vocabulary=vocabulary)
        self.spread = np.float32(spread)

    def logits(self, prefix: tuple[int, ...]) -> NDArray[np.float32]:
        return self.spread * super().logits(prefix)

    def along(self, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        """Logits [1 + n, V] along a chain."""
        return np.stack([self.logits(tokens[:i]) for i in range(len(tokens) + 1)])

    def probabilities(self, prefix: tuple[int, ...], policy: SamplingPolicy) -> NDArray[np.float64]:
        return probabilities(self.logits(prefix), policy)


class OneWord(Model):
    """A server that says one token, and nothing of the others."""

    def logits(self, prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = np.full(self.vocabulary, -np.inf, np.float32)
        row[int(super().logits(prefix).argmax())] = 0.0
        return row


def probabilities(logits: NDArray[np.float32], policy: SamplingPolicy) -> NDArray[np.float64]:
    """The policy's distribution [V]."""
    row = distribution_of(logits, policy)
    whole = np.zeros(len(logits))
    whole[slice(None) if row.ids is None else row.ids] = row.shares
    return whole


def continued(target: Model, policy: SamplingPolicy, prefix: tuple[int, ...], more: int) -> Joint:
    """The probability of each answer of ``more`` more tokens from the target alone."""
    joint: Joint = {prefix: 1.0}
    for _ in range(more):
        joint = {
            (*p, token): mass * q
            for p, mass in joint.items()
            for token, q in enumerate(target.probabilities(p, policy))
            if q > 0
        }
    return joint


def joint_of(
    run: Callable[[BranchingChooser], tuple[int, ...]],
    target: Model,
    policy: SamplingPolicy,
    length: int,
    trials: int | None = None,
) -> Joint:
    """The probability of each answer of this length: what ``run`` emits, then the target alone.

    With ``trials``, of a draft of one token: a rejected place where the robot's trials go on for
    ever is cut there. Every trial ends alike, so what has ended stands for what has not.
    """
    emitted: Joint = defaultdict(float)
    unfinished = 0.0
    for tokens, mass in outcomes(run, trials):
        if tokens is None:
            unfinished += mass
        else:
            emitted[tokens] += mass
    if unfinished:
        rejected = sum(mass for tokens, mass in emitted.items() if len(tokens) == 1)
        for tokens in [tokens for tokens in emitted if len(tokens) == 1]:
            emitted[tokens] *= 1 + unfinished / rejected
    joint: Joint = defaultdict(float)
    for tokens, mass in emitted.items():
        for finished, p in continued(target, policy, tokens, length - len(tokens)).items():
            joint[finished] += mass * p
    return joint


def distance(a: Joint, b: Joint) -> float:
    """The largest difference of a probability."""
    return max(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in {*a, *b})


def own_tokens(target: Model, policy: SamplingPolicy, start: int, length: int) -> list[int]:
    """What the target alone says, token by token; the prefix begins at position ``start``."""
    tokens: tuple[int, ...] = ()
    for i in range(length):
        tokens += (coupled_token(target.logits(tokens), policy, start + i),)
    return list(tokens)


def as_it_is(message: Message) -> tuple[Message, int]:
    """A message as it was made, not made float32 by the codec."""
    return message, 0


def pair(
    preset: Preset,
    rule: str,
    policy: SamplingPolicy,
    models: tuple[Model, Model],
    random_source: RandomSource | None = None,
    wire: Wire = as_it_is,
    processors: LogitsProcessors | None = None,
) -> LoopbackPair:
    """Robot and cloud over two toy models: the draft model, then the target."""
    sessions: Any = tuple(model.session(None) for model in models)
    return LoopbackPair(
        preset,
        rule,
        policy,
        sessions,
        models[1].vocabulary,
        random_source=random_source,
        processors=processors,
        wire=wire,
    )


def assert_chi_square(counts: dict[tuple[int, ...], int], expected: Joint, runs: int) -> None:
    """Within five standard deviations of a chi-square's mean."""
    statistic = sum((counts.get(k, 0) - runs * p) ** 2 / (runs * p) for k, p in expected.items())
    freedom = len(expected) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)
