"""A scripted pair in the place of two VLMs; its passes take the times of a regime.

``sleep`` lets that time pass: ``time.sleep`` in real time, a virtual clock's in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from ..cloud.events import Predicted
from ..cloud.sessions import WorkerLimits
from ..cloud.worker import Worker
from ..decoding.accept import accept
from ..decoding.draft import Draft
from ..decoding.policy import SamplingPolicy
from ..decoding.propose import coupled_token
from ..decoding.random_source import SeededRandomSource
from ..models.image import ImageSpec
from ..models.prompt import PromptSpec, Request
from .calibrated import VOCABULARY, CalibratedModel
from .regimes import Regime
from .scripted_model import ScriptedSession, mix

DRAFT_LAYERS = 28  # Qwen2-VL-2B's and Qwen3-0.6B's

Sleep = Callable[[float], None]  # seconds
OnPass = Callable[[str, float, int], None]  # verify or draft, ms, drafted tokens; it has ended


class BusyTime:
    """A sleep that adds up its time: ``total`` seconds of passes so far."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self.total = 0.0

    def __call__(self, seconds: float) -> None:
        self.total += seconds
        self._sleep(seconds)


# The end token is outside the vocabulary: an answer has as many tokens as were asked for.
SPEC = PromptSpec(
    "scripted", "", ImageSpec(784, 784, 14, 2, 2), (VOCABULARY,), 2**20, "scripted", VOCABULARY
)


def request_of(seed: int) -> Request:
    """The request whose answer has this seed."""
    return Request(f"answer {seed}", seed.to_bytes(8, "little"))


def own_answer(seed: int, policy: SamplingPolicy, tokens: int) -> tuple[int, ...]:
    """The target's own tokens, one after the other."""
    target = CalibratedModel()
    state, own = target.begin(seed), []
    for position in range(tokens):
        own.append(coupled_token(target.row(state), policy, position))
        state = target.after(state, own[-1])
    return tuple(own)


@dataclass(frozen=True)
class _ScriptedPrompt:
    seed: int
    digest: bytes


class ScriptedVlm(CalibratedModel):
    """What a decode asks of a ``Vlm``."""

    identity = "scripted"
    tokenizer_digest = b"scripted"

    def __init__(self, regime: Regime, sleep: Sleep, alpha: float, runner_up: float = 0.0) -> None:
        super().__init__(alpha, runner_up)
        self.regime = regime
        self.on_pass: OnPass | None = None
        self._sleep = sleep

    def crop(self, vocabulary: int) -> None:
        """See `Vlm.crop`; there is one vocabulary."""
        assert vocabulary == VOCABULARY

    def prompt(self, request: Request, spec: PromptSpec) -> _ScriptedPrompt:
        """The prompt of a request made by ``request_of``."""
        return _ScriptedPrompt(int.from_bytes(request.jpeg, "little"), request.image_digest)

    def spend(self, rows: int) -> None:
        """Nothing: its sessions take the time of a pass."""

    def take(self, ms: float) -> None:
        """Let the time of a pass go by."""
        self._sleep(ms / 1e3)

    def passed(self, kind: str, ms: float, drafted: int = 0) -> None:
        """Call ``on_pass``, if there is one."""
        if self.on_pass is not None:
            self.on_pass(kind, ms, drafted)


class DraftVlm(ScriptedVlm):
    """The draft model of a regime."""

    def __init__(self, regime: Regime, sleep: Sleep) -> None:
        super().__init__(regime, sleep, regime.alpha, regime.runner_up)

    def open(self, prompt: _ScriptedPrompt) -> ScriptedSession:
        """A session at the beginning of the answer; the prefill costs nothing."""
        return _DraftSession(self, self.begin(prompt.seed))


class _DraftSession(ScriptedSession):
    """A session whose pass can be interrupted after each layer."""

    _model: DraftVlm

    def _spend(self, rows: int, on_layer: Any) -> None:
        if not rows:
            return
        whole = self._model.regime.draft_pass_ms(rows)
        for layer in range(DRAFT_LAYERS):
            self._model.take(whole / DRAFT_LAYERS)
            if on_layer is not None:
                on_layer(layer, None)
        self._model.passed("draft", whole)


class TargetVlm(ScriptedVlm):
    """The target of a regime."""

    def __init__(self, regime: Regime, sleep: Sleep) -> None:
        super().__init__(regime, sleep, alpha=1.0)

    def open(self, prompt: _ScriptedPrompt) -> ScriptedSession:
        """A session at the beginning of the answer; the prefill costs nothing."""
        return _TargetSession(self, self.begin(prompt.seed))


class _TargetSession(ScriptedSession):
    """A session whose pass has an exit."""

    _model: TargetVlm

    @property
    def known_row(self) -> np.ndarray | None:
        """Logits float32 [V] after the prefix, where no pass is needed for them."""
        return self.logits_after(-1) if self._computed == len(self._tokens) else None

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None, on_layer: Any = None
    ) -> np.ndarray:
        """Logits float32 [1 + n, V]; ``on_layer`` is given them at the exit's depth."""
        is_known = self._computed == len(self._tokens) and not len(tokens)
        logits = super().forward(tokens, parents)
        if is_known:
            return logits
        model, regime = self._model, self._model.regime
        whole = regime.verify_pass_ms(len(tokens)) if len(tokens) else regime.ar_ms
        depth = regime.exit_depth if on_layer is not None else 0.0
        if on_layer is not None:
            model.take(depth * whole)
            on_layer(logits)
        model.take((1 - depth) * whole)
        model.passed("verify", whole, len(tokens))
        return logits


class ScriptedExits:
    """One exit, which gives the verdict itself at a share of the rounds, else another one."""

    def __init__(self, regime: Regime) -> None:
        self._hit = regime.exit_hit
        self._layer = round(100 * regime.exit_depth)

    def predictor(
        self,
        draft: Draft,
        rule: str,
        policy: SamplingPolicy,
        position: int,
        on_prediction: Callable[[Predicted], None],
        *,
        first: np.ndarray | None = None,
        end_tokens: Iterable[int] = (),
        open_at: int | None = None,
    ) -> Callable[[np.ndarray], None]:
        """See ``Exits.predictor``; what it returns takes the pass's logits [1 + n, V]."""

        def predict(logits: np.ndarray) -> None:
            random_source = SeededRandomSource(policy.seed)
            taken = accept(rule, draft, logits, policy, position, random_source, open_at=open_at)
            token = taken.token
            if token is None:
                return
            drawn = reduce(mix, draft.tokens, position)
            if drawn / 2**64 >= self._hit:
                token = (token + 1 + drawn % (VOCABULARY - 1)) % VOCABULARY
            on_prediction(Predicted(taken.path, token, self._hit, self._layer))

        return predict


def scripted_worker(
    regime: Regime,
    clock: Callable[[], float],
    sleep: Sleep,
    limits: WorkerLimits | None = None,
    on_pass: OnPass | None = None,
) -> Worker:
    """The cloud's worker with a regime's target, its own drafter for ``cloud_sd``, and exits."""
    exits = ScriptedExits(regime) if regime.exit_hit else None
    drafter: Any = DraftVlm(regime, sleep)
    target: Any = TargetVlm(regime, sleep)
    drafter.on_pass = target.on_pass = on_pass
    return Worker(target, SPEC, drafter, limits, clock, exits)  # type: ignore[arg-type]
