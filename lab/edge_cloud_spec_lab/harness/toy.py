"""Toy models with a few tokens: logits are drawn by seed and prefix."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.grammar import Allowed
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.processors import LogitsProcessors
from edge_cloud_spec.models.image import ImageSpec
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.request import Request

from .scripted.model import FakeVlm, OnLayer, ScriptedSession, Sleep, answer_alone

TOY_VOCABULARY = 7
TOY_END = 0
TOY_MAX_TOKENS = 14
TOY_IMAGE = ImageSpec(784, 784, 14, 2, 2)


@lru_cache
def spec_of(max_tokens: int = TOY_MAX_TOKENS, vocabulary: int = TOY_VOCABULARY) -> PromptSpec:
    """The prompt specification of a toy target."""
    return PromptSpec("template", TOY_IMAGE, (TOY_END,), max_tokens, "toy", vocabulary)


@lru_cache(maxsize=100_000)
def _row(seed: int, prefix: tuple[int, ...], vocabulary: int) -> np.ndarray:
    row = np.random.default_rng((seed, 5, *prefix)).standard_normal(vocabulary)
    row[TOY_END] -= 1.5
    return row.astype(np.float32)


class ToyGrammar:
    """A grammar that allows random tokens after each prefix, by a hash of its text; sometimes only
    one."""

    def __init__(self, text: str, vocabulary: int) -> None:
        self._seed, self._vocabulary = zlib.crc32(text.encode()), vocabulary

    def allowed(self, answer: Sequence[int]) -> Allowed:
        """The allowed tokens, bool [V]."""
        random = np.random.default_rng((self._seed, 11, *answer))
        allowed: Allowed = np.zeros(self._vocabulary, bool)
        count = 1 if random.random() < 0.3 else random.integers(1, self._vocabulary + 1)
        allowed[random.permutation(self._vocabulary)[:count]] = True
        return allowed


class ToyTokenizer:
    """Writes tokens as numbers with blanks between them; it has none for a text."""

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": []}

    def decode(self, tokens: Sequence[int], **_: object) -> str:
        """The text of these tokens."""
        return " ".join(map(str, tokens))


class ToyVlm(FakeVlm):
    """A toy model: logits are a function of seed and prefix.

    ``draft_noise``: the scale of the noise that a draft model adds to the target's logits; 0: the
    target.
    """

    identity = "toy"
    tokenizer = ToyTokenizer()
    tokenizer_digest = b"toy tokenizer"

    def __init__(
        self, seed: int, draft_noise: float = 0.0, vocabulary: int = TOY_VOCABULARY
    ) -> None:
        self.seed, self.draft_noise, self.vocabulary = seed, draft_noise, vocabulary

    def logits(self, prefix: tuple[int, ...]) -> np.ndarray:
        """Logits float32 [V] after these tokens."""
        row = _row(self.seed, prefix, self.vocabulary)
        if not self.draft_noise:
            return row
        return row + np.float32(self.draft_noise) * _row(self.seed + 1, prefix, self.vocabulary)

    def prompt(self, request: Any, spec: PromptSpec) -> Any:
        """A prompt with a digest only."""
        return SimpleNamespace(digest=request.digest, input_ids=())

    def grammar(self, text: str, spec: PromptSpec, owner: str = "") -> ToyGrammar:
        """A grammar (``Vlm.grammar``); any text is valid."""
        return ToyGrammar(text, self.vocabulary)

    def row(self, state: tuple[int, ...]) -> np.ndarray:
        """Logits float32 [V] after this prefix."""
        return self.logits(state)


PROMPT_S = 0.1  # to make a prompt
PREFILL_S = 0.5  # to read it; the cloud may have said several tokens by then


class ToyDrafter(ToyVlm):
    """A draft model on the robot, whose passes take ``pass_s`` seconds each."""

    layers = 2

    def __init__(
        self,
        seed: int,
        draft_noise: float,
        vocabulary: int,
        pass_s: float,
        sleep: Sleep,
    ) -> None:
        super().__init__(seed, draft_noise, vocabulary)
        self.pass_s, self.sleep = pass_s, sleep

    def prompt(self, request: Any, spec: PromptSpec) -> Any:
        """The prompt of a request."""
        self.sleep(PROMPT_S)
        return super().prompt(request, spec)

    def session(self, prompt: Any) -> ScriptedSession:
        """A session whose first pass computes the prompt's last token."""
        return ScriptedSession(self, (), computed=-1)

    def read(self, share: float) -> None:
        """Spend the time of this share of a prompt."""
        self.sleep(share * PREFILL_S)

    def compute(self, rows: int, on_layer: OnLayer | None) -> None:
        """Spend the time of a pass, layer by layer."""
        for layer in range(self.layers):
            self.sleep(self.pass_s / self.layers)
            if on_layer is not None:
                on_layer(layer, None)


OTHER_DRAFT_NOISE = 2.0  # of the second verifier's own draft model: its verdicts begin elsewhere


@dataclass(frozen=True)
class ToyModels:
    """The models of both sides (``Models``); draft_noise: see ``ToyVlm``.

    draft_pass_s: a pass of the robot's draft model, s; the cloud's passes take no time.
    """

    seed: int
    draft_noise: float
    spec: PromptSpec
    draft_pass_s: float

    def model(self, draft_noise: float = 0.0) -> ToyVlm:
        """The target, or a draft model of it."""
        return ToyVlm(self.seed, draft_noise, self.spec.vocabulary)

    def draft_model(self, sleep: Sleep) -> ToyDrafter:
        """The robot's draft model."""
        return ToyDrafter(
            self.seed, self.draft_noise, self.spec.vocabulary, self.draft_pass_s, sleep
        )

    def request(self, request: Request) -> Request:
        """The same; its pictures need not be any."""
        return request

    def own_answer(
        self, request: Request, policy: SamplingPolicy, longest: int
    ) -> tuple[list[int], str]:
        """The target's answer to any request, and why it ends."""
        return own_answer(self.model(), policy, longest)

    def worker(self, clock: Callable[[], float], sleep: Sleep, verifier: int = 0) -> Worker:
        """A worker; the second verifier's draft model is another one."""
        target: Any = self.model()
        drafter: Any = self.model(OTHER_DRAFT_NOISE if verifier else self.draft_noise)
        return Worker(target, self.spec, drafter, WorkerLimits(sessions=1000), clock)


def toy_worker(limits: WorkerLimits | None = None) -> Worker:
    """A worker whose answers have at most 60 tokens."""
    return Worker(ToyVlm(1), spec_of(60), ToyVlm(1, 0.5), limits)  # type: ignore[arg-type]


def own_answer(model: ToyVlm, policy: SamplingPolicy, longest: int) -> tuple[list[int], str]:
    """The target's answer under greedy or coupled, and why it ends."""
    grammar = ToyGrammar(policy.grammar, model.vocabulary) if policy.grammar else None
    processors = LogitsProcessors(model.vocabulary, grammar)
    tokens = answer_alone(model, None, policy, longest, end=TOY_END, processors=processors)
    return list(tokens), "end" if tokens[-1:] == (TOY_END,) else "length"
