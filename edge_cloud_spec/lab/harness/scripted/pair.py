"""A scripted pair in the place of two VLMs; its passes take the times of a regime.

Its words are a ``Language``'s: by default those of two models that agree as often as the regime
gives. ``sleep`` lets time pass: ``time.sleep`` in real time, a virtual clock's in virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np

from ....cloud.model_thread.sessions import WorkerLimits
from ....cloud.model_thread.worker import Worker
from ....cloud.session.events import Predicted
from ....decoding.accept import accept
from ....decoding.draft import Draft
from ....decoding.grammar import AllowedAfter, Grammar
from ....decoding.policy import SamplingPolicy
from ....decoding.propose import coupled_token
from ....decoding.random_source import SeededRandomSource
from ....decoding.target_rows import LogitRows
from ....errors import UserError
from ....models.image import ImageSpec
from ....models.prompt import PromptSpec, Request
from ..regimes import Regime
from .model import (
    AtExit,
    FakeVlm,
    Logits,
    PassSize,
    ScriptedPrefill,
    ScriptedSession,
    mix,
    scripted_pass,
)

VOCABULARY = 64
_SCALE = 2.0**64


class CalibratedModel:
    """Logits are a function of the prefix, which a state names .

    As target: the right token far above all others. As draft model: the right token first at a
    share ``alpha`` of all prefixes, and second at a share ``runner_up`` of the others; its
    probabilities are these shares: they are calibrated.
    """

    def __init__(self, alpha: float = 1.0, runner_up: float = 0.0) -> None:
        self._alpha, self._runner_up = alpha, runner_up
        confidence = min(max(alpha, 0.01), 0.99)
        second = (1 - confidence) * max(runner_up, 0.02)
        rest = max(1 - confidence - second, 1e-3) / (VOCABULARY - 2)
        self._levels = [math.log(level) for level in (confidence, second, rest)]

    def begin(self, seed: int) -> int:
        """The state before the first token of the answer with this seed."""
        return mix(seed, 0)

    def after(self, state: int, token: int) -> int:
        """The state of the prefix with one token more."""
        return mix(state, token + 3)

    def row(self, state: int) -> np.ndarray:
        """Logits float32 [V]."""
        right = mix(state, 1) % VOCABULARY
        wrong = (right + 1 + mix(state, 2) % (VOCABULARY - 1)) % VOCABULARY
        other = (right + 1 + mix(state, 5) % (VOCABULARY - 1)) % VOCABULARY
        if mix(state, 3) / _SCALE < self._alpha:
            first, second = right, wrong
        elif mix(state, 4) / _SCALE < self._runner_up:
            first, second = wrong, right
        else:
            first, second = wrong, other if other != wrong else (wrong + 1) % VOCABULARY
        if second == first:
            second = (first + 1) % VOCABULARY
        row = np.full(VOCABULARY, self._levels[2], np.float32)
        row[second], row[first] = self._levels[1], self._levels[0]
        return row


class Language(Protocol):
    """What names a model and makes its prompts, and its logits; a state names a prefix.

    ``tokenizer``: None where tokens are no text.
    """

    identity: str
    tokenizer: Any
    tokenizer_digest: bytes

    def crop(self, vocabulary: int) -> None:
        """Use so many tokens of the vocabulary."""

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        """The prompt of a request."""

    def grammar(self, text: str, spec: PromptSpec) -> Grammar:
        """The grammar that this text describes."""

    def start(self, prompt: Any) -> Any:
        """The state before the answer's first token."""

    def after(self, state: Any, token: int) -> Any:
        """The state one token later."""

    def row(self, state: Any) -> np.ndarray:
        """Logits float32 [V] after the prefix with this state."""


@dataclass(frozen=True)
class ScriptedPrompt:
    """A prompt that is the seed of its answer."""

    seed: int
    digest: bytes


class CalibratedLanguage(CalibratedModel):
    """That of a calibrated model, for requests made by ``request_of``."""

    identity = "scripted"
    tokenizer = None
    tokenizer_digest = b"scripted"

    def crop(self, vocabulary: int) -> None:
        """There is one vocabulary."""
        assert vocabulary == VOCABULARY

    def prompt(self, request: Request, spec: PromptSpec) -> ScriptedPrompt:
        """The request's picture is the seed."""
        return ScriptedPrompt(int.from_bytes(request.jpeg, "little"), request.image_digest)

    def grammar(self, text: str, spec: PromptSpec) -> Grammar:
        """There is none: UserError."""
        raise UserError("a calibrated model's tokens are no text, so no grammar fits them")

    def start(self, prompt: ScriptedPrompt) -> int:
        """The state before the answer's first token."""
        return self.begin(prompt.seed)


LAYERS = 28  # Qwen2-VL-2B's and Qwen3-0.6B's
PROMPT_ROWS = 256

Sleep = Callable[[float], None]  # seconds
OnPass = Callable[[str, float, int], None]  # verify, draft or prefill, ms, drafted tokens; it ended


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


class ScriptedVlm(FakeVlm):
    """What a decode asks of a ``Vlm``: the words are a language's, the times a regime's."""

    prompt_rows, layers = PROMPT_ROWS, LAYERS

    def __init__(self, regime: Regime, sleep: Sleep, language: Language) -> None:
        self.regime, self.language = regime, language
        self.identity, self.tokenizer = language.identity, language.tokenizer
        self.tokenizer_digest = language.tokenizer_digest
        self.crop, self.prompt, self.grammar = language.crop, language.prompt, language.grammar
        self.on_pass: OnPass | None = None
        self._sleep = sleep

    def start(self, prompt: Any) -> Any:
        """The state before the answer's first token."""
        return self.language.start(prompt)

    def after(self, state: Any, token: int) -> Any:
        """The state one token later."""
        return self.language.after(state, token)

    def row(self, state: Any) -> np.ndarray:
        """Logits float32 [V] after the prefix with this state."""
        return self.language.row(state)

    def prefill(self, prompt: Any) -> ScriptedPrefill:
        """`open` in steps."""

        def finish() -> ScriptedSession:
            if self.prefill_ms:
                self.passed("prefill", self.prefill_ms)
            return self.session(prompt)

        return ScriptedPrefill(finish, self.prompt_rows, self.read, self.layers)

    @property
    def prefill_ms(self) -> float:
        """How long a prompt takes."""
        return 0.0

    def read(self, share: float) -> None:
        """Let the time of this share of a prompt go by."""
        if self.prefill_ms:
            self.take(share * self.prefill_ms)

    def take(self, ms: float) -> None:
        """Let the time of a pass go by."""
        self._sleep(ms / 1e3)

    def passed(self, kind: str, ms: float, drafted: int = 0) -> None:
        """Call ``on_pass``, if there is one."""
        if self.on_pass is not None:
            self.on_pass(kind, ms, drafted)


class DraftVlm(ScriptedVlm):
    """The draft model of a regime."""

    def __init__(self, regime: Regime, sleep: Sleep, language: Language | None = None) -> None:
        """language: in place of one that is right as often as the regime says."""
        calibrated = CalibratedLanguage(regime.alpha, regime.runner_up)
        super().__init__(regime, sleep, language or calibrated)

    @property
    def prefill_ms(self) -> float:
        """How long a prompt takes."""
        return self.regime.draft_prefill_ms

    def session(self, prompt: Any) -> ScriptedSession:
        """A session at the beginning of the answer."""
        return _DraftSession(self, self.start(prompt))


class _DraftSession(ScriptedSession):
    """A session whose pass can be interrupted after each layer."""

    _model: DraftVlm

    def _spend(self, rows: int, on_layer: Any) -> None:
        if not rows:
            return
        whole = self._model.regime.draft_pass_ms(rows)
        for layer in range(LAYERS):
            self._model.take(whole / LAYERS)
            if on_layer is not None:
                on_layer(layer, None)
        self._model.passed("draft", whole)


class TargetVlm(ScriptedVlm):
    """The target of a regime."""

    def __init__(self, regime: Regime, sleep: Sleep, language: Language | None = None) -> None:
        """language: in place of the calibrated target's."""
        super().__init__(regime, sleep, language or CalibratedLanguage())

    @property
    def prefill_ms(self) -> float:
        """How long a prompt takes."""
        return self.regime.prefill_ms

    def session(self, prompt: Any) -> ScriptedSession:
        """A session at the beginning of the answer."""
        return _TargetSession(self, self.start(prompt))

    def forward_together(self, requests: Sequence[Any]) -> list[Logits | Exception]:
        """One pass over several sessions, whose exits all look on at the same depth."""
        return scripted_pass(requests, self._run_pass)

    def _run_pass(self, size: PassSize, at_exit: AtExit | None) -> None:
        whole, depth = self.regime.batch_pass_ms(size.drafted, at_exit is not None), 0.0
        if at_exit is not None:
            depth = self.regime.exit_depth
            self.take(depth * whole)
            at_exit()
        self.take((1 - depth) * whole)
        self.passed("verify", whole, sum(size.drafted))


@dataclass(frozen=True, eq=False)
class _Asked:
    """A ``PassRequest`` of one scripted session."""

    session: ScriptedSession
    tokens: Sequence[int]
    parents: Sequence[int] | None
    on_layer: Any


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
        (logits,) = self._model.forward_together([_Asked(self, tokens, parents, on_layer)])
        if isinstance(logits, Exception):
            raise logits
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
        allowed: AllowedAfter | None = None,
    ) -> Callable[[np.ndarray], None]:
        """As ``Exits.predictor`` has it; what it returns takes the pass's logits [1 + n, V]."""

        def predict(logits: np.ndarray) -> None:
            random_source = SeededRandomSource(policy.seed)
            rows = LogitRows(logits, allowed)
            taken = accept(rule, draft, rows, policy, position, random_source, open_at=open_at)
            token = taken.token
            if token is None:
                return
            drawn = reduce(mix, draft.tokens, position)
            if drawn / 2**64 >= self._hit:
                vocabulary = logits.shape[-1]
                token = (token + 1 + drawn % (vocabulary - 1)) % vocabulary
            on_prediction(Predicted(taken.path, token, self._hit, self._layer))

        return predict


def scripted_worker(
    regime: Regime,
    clock: Callable[[], float],
    sleep: Sleep,
    limits: WorkerLimits | None = None,
    on_pass: OnPass | None = None,
    drafts: bool = False,
) -> Worker:
    """The cloud's worker with a regime's target and exits; a draft model where it ``drafts``."""
    exits = ScriptedExits(regime) if regime.exit_hit else None
    drafter: Any = DraftVlm(regime, sleep)
    target: Any = TargetVlm(regime, sleep)
    drafter.on_pass = target.on_pass = on_pass
    own = drafter if drafts else None
    return Worker(target, SPEC, own, limits, clock, exits)  # type: ignore[arg-type]
