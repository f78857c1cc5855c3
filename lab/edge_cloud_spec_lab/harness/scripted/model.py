"""Fake models without weights: logits are a function of the prefix; a pass takes no time or a
profile's.

Both sides' models of a decode are `FakeVlm`s: logits follow from the prefix, costs from ``spend``.
``DraftVlm`` and ``TargetVlm`` have another model's logits, by default those of a calibrated pair
with the cost profile's acceptance and times. ``sleep`` passes time: ``time.sleep`` in real time, a
virtual clock's in virtual time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.model_runner import LocalModels, OnPredicted, adjustments_of
from edge_cloud_spec.cloud.model_thread.sessions import HeldSession
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.session.events import EMPTY
from edge_cloud_spec.decoding.accept import ExitPrediction, accept
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.grammar import Grammar
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.processors import LogitsProcessors
from edge_cloud_spec.decoding.propose import coupled_token
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.decoding.token_tree import TokenTree
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.image import ImageSpec
from edge_cloud_spec.models.kv_memory import KvMemory
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.request import Picture, Request

from ..cost_profiles import CostProfile

OnLayer = Callable[[int, Any], None]
Logits = np.ndarray  # float32 [1 + n, V], of one session
State = Any  # of a prefix, whatever names it to its model


class ScriptedPrefill:
    """A prefill that takes scripted time by token and layer, then returns the session."""

    def __init__(
        self,
        open_session: Callable[[], ScriptedSession],
        rows: int = 1,
        spend: Callable[[float], None] = lambda share: None,
        layers: int = 1,
    ) -> None:
        """rows: the prompt's length. spend: spends the time of a share of it."""
        self._open_session, self._spend = open_session, spend
        self.rows_left = self._rows = rows
        self._layers = layers
        self._nodes: tuple[Sequence[int], Sequence[int] | None] = ((), None)
        self._session: ScriptedSession | None = None

    def draft(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """Score these nodes with the prompt (`Prefill.draft`); a node costs as much as a prompt
        token."""
        self._nodes = (tokens, parents)

    @property
    def session(self) -> ScriptedSession:
        """The session after the prompt; ValueError before the last step."""
        if self._session is None:
            raise ValueError(f"{self.rows_left} rows of this prompt are not computed yet")
        return self._session

    def finish(self) -> ScriptedSession:
        """Compute the rest of the prompt; returns the session."""
        self.step(self.rows_left)
        return self.session

    def step(self, rows: int, on_layer: OnLayer | None = None) -> bool:
        """Compute more tokens of the prompt (`Prefill.step`); there is no vision part."""
        due = min(max(rows, 1), self.rows_left)
        nodes = len(self._nodes[0]) if due == self.rows_left else 0
        for layer in range(self._layers if due else 0):
            self._spend((due + nodes) / self._rows / self._layers)
            if on_layer is not None:
                on_layer(layer, None)
        self.rows_left -= due
        if not self.rows_left and self._session is None:
            self._session = self._open_session()
            if due and nodes:
                self._session.keep_scored(*self._nodes)
        return not self.rows_left


class FakeVlm:
    """A ``Vlm`` without weights, keys and values; a pass takes time only if ``spend`` does.

    A state represents a prefix; by default it is the prefix. ``prompt_rows`` and ``layers``: the
    prompt's tokens, and the layers after which a prefill may be interrupted. ``tokenizer``: None if
    tokens are no text.
    """

    identity = "fake"
    chains_only = False
    tokenizer: Any = None
    tokenizer_digest = b"fake"
    vocabulary: int
    default_kv_bytes = 1
    prompt_rows = layers = 1

    def speak_as(self, other: Any, *methods: str) -> None:
        """Copy another model's identity and tokenizer, and these of its methods."""
        for name in ("identity", "tokenizer", "tokenizer_digest", *methods):
            setattr(self, name, getattr(other, name))

    def use_memory(self, memory: KvMemory) -> None:
        """Does nothing: there are no caches to bound."""

    def crop(self, vocabulary: int) -> None:
        """Check that this is the model's only vocabulary."""
        assert vocabulary == self.vocabulary

    def prompt(self, request: Request, spec: PromptSpec) -> Any:
        """The prompt of a request."""
        raise NotImplementedError

    def grammar(self, text: str, spec: PromptSpec, owner: str = "") -> Grammar:
        """Compile a grammar; by default raises UserError."""
        raise UserError("a scripted model's tokens are no text, so no grammar fits them")

    def start(self, prompt: Any) -> State:
        """The state before the answer's first token."""
        return ()

    def after(self, state: State, token: int) -> State:
        """The state one token later."""
        return (*state, token)

    def row(self, state: State) -> np.ndarray:
        """Logits float32 [V] after the prefix with this state."""
        raise NotImplementedError

    def rows(self, states: Sequence[State]) -> np.ndarray:
        """Logits float32 [n, V] after each of these states."""
        return np.stack([self.row(state) for state in states])

    def session(self, prompt: Any) -> ScriptedSession:
        """A session at the beginning of the answer, without the time of a prefill."""
        return ScriptedSession(self, self.start(prompt))

    def open(self, prompt: Any) -> ScriptedSession:
        """A session after this prompt and the time of its prefill."""
        return self.prefill(prompt).finish()

    def prefill(self, prompt: Any) -> ScriptedPrefill:
        """`open` in steps."""
        return ScriptedPrefill(
            lambda: self.session(prompt), self.prompt_rows, self.read, self.layers
        )

    def read(self, share: float) -> None:
        """Spend the time of this share of a prompt."""

    def spend(self, rows: int) -> None:
        """Spend the time of a pass over ``rows`` tokens."""

    def compute(self, rows: int, on_layer: OnLayer | None) -> None:
        """Spend the time of one session's pass, which ``on_layer`` may interrupt."""
        self.spend(rows)

    def run_pass(
        self, rows: int, drafted: Sequence[int], at_exit: Callable[[], None] | None
    ) -> None:
        """Spend the time of a pass over sessions that ``drafted`` so many tokens each.

        at_exit: to be called at an exit's depth; this model has no exits.
        """
        self.spend(rows)

    def forward_together(self, requests: Sequence[Any]) -> list[Logits | Exception]:
        """One pass over several scripted sessions (``Vlm.forward_together``)."""
        results: list[Logits | Exception] = []
        rows, drafted, looking = 0, [], []
        seen: set[int] = set()
        for place, request in enumerate(requests):
            session = request.session
            size = session.rows_due(request.tokens, request.parents)
            try:
                if id(session) in seen:
                    raise ValueError("this session is in this pass already")
                seen.add(id(session))
                results.append(session.score(request.tokens, request.parents))
            except ValueError as error:
                results.append(error)
                continue
            if size:
                rows += size
                drafted.append(len(request.tokens))
                if request.on_layer is not None:
                    looking.append(place)

        def at_exit() -> None:
            for place in looking:
                try:
                    requests[place].on_layer(results[place])
                except Exception as error:
                    requests[place].session.drop_nodes()
                    results[place] = error

        if drafted:
            self.run_pass(rows, drafted, at_exit if looking else None)
        return results


class ScriptedSession:
    """The interface of `session.Session` over a scripted model; it has no cache to lose."""

    cache: Any = ()  # there is none that could be evicted
    waits = False

    def __init__(self, model: FakeVlm, state: State, computed: int = 0) -> None:
        """computed: -1 if the first pass must compute the prompt's last token."""
        self._model = model
        self._states = [state]  # after the prompt and after each token of the prefix
        self._tokens: list[int] = []
        self._computed = computed
        self._scored: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self.nodes = TokenTree()
        self._after: list[State] = []  # the state after each node

    def drop_nodes(self) -> None:
        """Forget the drafted nodes."""
        self.nodes, self._after = TokenTree(), []

    @property
    def state(self) -> State:
        """The model's state after the prefix."""
        return self._states[-1]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the prefix."""
        return tuple(self._tokens)

    @property
    def pending_rows(self) -> int:
        """The number of tokens in the prefix that no pass has computed."""
        return len(self._tokens) - self._computed

    @property
    def known_row(self) -> np.ndarray | None:
        """Logits float32 [V] after the prefix if no pass is needed for them, else None."""
        return None if self.pending_rows else self.logits_after(-1)

    def forward(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        on_layer: OnLayer | None = None,
    ) -> np.ndarray:
        """Logits float32 [1 + n, V]; see `Session.forward`."""
        self._compute(self.rows_due(tokens, parents), on_layer)
        return self.score(tokens, parents)

    def keep_scored(self, tokens: Sequence[int], parents: Sequence[int] | None) -> None:
        """Keep nodes that were scored in a pass over the prompt."""
        self._scored = _tree(tokens, parents)

    @property
    def scored_with_prompt(self) -> bool:
        """Whether a draft was scored with the prompt and nothing has changed since."""
        return self._scored is not None and not self._tokens

    def rows_due(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> int:
        """How many tokens a pass over these nodes computes."""
        if not self._tokens and self._scored == _tree(tokens, parents):
            return 0
        return self.pending_rows + len(tokens)

    def score(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> np.ndarray:
        """The result of ``forward``, without the time of a pass."""
        self.drop_nodes()
        states = self._append(*_tree(tokens, parents))
        self._computed = len(self._tokens)
        return self._model.rows([self._states[-1], *states])

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: OnLayer | None = None
    ) -> np.ndarray:
        """Logits float32 [n, V] of n more nodes; see `Session.grow`."""
        if self.pending_rows > 0:
            return self.forward(tokens, parents, on_layer)[1:]
        self._compute(len(tokens), on_layer)
        return self._model.rows(self._append(tokens, parents))

    def _compute(self, rows: int, on_layer: OnLayer | None) -> None:
        if rows:
            self._model.compute(rows, on_layer)

    def close(self) -> None:
        """The decode is over: nothing is kept of it."""
        self.evict()

    def logits_after(self, node: int, on_layer: OnLayer | None = None) -> np.ndarray:
        """Logits float32 [V] after a node, or after the prefix (-1)."""
        if node < 0 and self.pending_rows > 0:
            self.forward((), None, on_layer)
        return self._model.row(self._after[node] if node >= 0 else self._states[-1])

    def _append(self, tokens: Sequence[int], parents: Sequence[int]) -> list[State]:
        """Add nodes and return their states; ValueError for an invalid parent, and none is
        added."""
        tree, after = (
            self.nodes.extend(list(map(int, tokens)), list(map(int, parents))),
            [*self._after],
        )
        for token, parent in zip(
            tree.tokens[len(after) :], tree.all_parents[len(after) :], strict=True
        ):
            before = self._states[-1] if parent < 0 else after[parent]
            after.append(self._model.after(before, token))
        added = after[len(self.nodes) :]
        self.nodes, self._after = tree, after
        return added

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Append a path of the nodes to the prefix; the nodes of ``keep`` stay."""
        tokens, kept = self.nodes.commit(path, keep)
        self._tokens += tokens
        self._states += [self._after[index] for index in path]
        self._computed += len(path)
        self.nodes, self._after = kept, [self._after[index] for index in keep]

    def evict(self) -> bool:
        """False: there is no cache to free."""
        return False

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the prefix."""
        self.drop_nodes()
        for token in tokens:
            self._tokens.append(int(token))
            self._states.append(self._model.after(self._states[-1], int(token)))

    def truncate(self, length: int) -> None:
        """Shorten the prefix to ``length`` tokens."""
        if not 0 <= length <= len(self._tokens):
            raise ValueError(f"cannot truncate {len(self._tokens)} tokens to {length}")
        self.drop_nodes()
        del self._tokens[length:]
        del self._states[length + 1 :]
        self._computed = min(self._computed, length)


def _tree(
    tokens: Sequence[int], parents: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    chain = range(-1, len(tokens) - 1)
    return tuple(tokens), tuple(chain if parents is None else parents)


_UINT64 = (1 << 64) - 1


def mix(state: int, value: int) -> int:
    """Hash both with splitmix64: equal prefixes give equal states, different ones unrelated
    states."""
    z = (state ^ (value * 0xD1342543DE82EF95)) + 0x9E3779B97F4A7C15 & _UINT64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _UINT64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _UINT64
    return z ^ z >> 31


SCRIPTED_VOCABULARY = 64
_SCALE = 2.0**64
# The end token is outside the vocabulary: an answer has as many tokens as were asked for.
SCRIPTED_SPEC = PromptSpec(
    "scripted",
    ImageSpec(784, 784, 14, 2, 2),
    (SCRIPTED_VOCABULARY,),
    2**20,
    "scripted",
    SCRIPTED_VOCABULARY,
)


@dataclass(frozen=True)
class ScriptedPrompt:
    """A prompt, given by the seed of its answer."""

    seed: int
    digest: bytes
    input_ids: tuple[int, ...] = ()


class CalibratedVlm(FakeVlm):
    """One model of a calibrated pair, for requests by ``request_of``; a state is a hash of the
    prefix.

    The target gives the right token almost all probability. The draft model ranks it first for a
    share ``alpha`` of all prefixes, and second for a share ``runner_up`` of the others; its
    probabilities equal these shares, so they are calibrated.
    """

    identity = "scripted"
    tokenizer_digest = b"scripted"
    vocabulary = SCRIPTED_VOCABULARY

    def __init__(self, alpha: float = 1.0, runner_up: float = 0.0) -> None:
        self._alpha, self._runner_up = alpha, runner_up
        confidence = min(max(alpha, 0.01), 0.99)
        second = (1 - confidence) * max(runner_up, 0.02)
        rest = max(1 - confidence - second, 1e-3) / (SCRIPTED_VOCABULARY - 2)
        self._levels = [math.log(level) for level in (confidence, second, rest)]

    def prompt(self, request: Request, spec: PromptSpec) -> ScriptedPrompt:
        """The prompt with the seed that the request's picture encodes."""
        (picture,) = request.pictures
        return ScriptedPrompt(int.from_bytes(picture.data, "little"), picture.digest)

    def start(self, prompt: ScriptedPrompt) -> int:
        """The state before the answer's first token."""
        return mix(prompt.seed, 0)

    def after(self, state: int, token: int) -> int:
        """The state one token later."""
        return mix(state, token + 3)

    def row(self, state: int) -> np.ndarray:
        """Logits float32 [V] after the prefix with this state."""
        right = mix(state, 1) % SCRIPTED_VOCABULARY
        wrong = (right + 1 + mix(state, 2) % (SCRIPTED_VOCABULARY - 1)) % SCRIPTED_VOCABULARY
        other = (right + 1 + mix(state, 5) % (SCRIPTED_VOCABULARY - 1)) % SCRIPTED_VOCABULARY
        if mix(state, 3) / _SCALE < self._alpha:
            first, second = right, wrong
        elif mix(state, 4) / _SCALE < self._runner_up:
            first, second = wrong, right
        else:
            first, second = wrong, other if other != wrong else (wrong + 1) % SCRIPTED_VOCABULARY
        row = np.full(SCRIPTED_VOCABULARY, self._levels[2], np.float32)
        row[second], row[first] = self._levels[1], self._levels[0]
        return row


def request_of(seed: int) -> Request:
    """The request whose answer has this seed."""
    return SCRIPTED_SPEC.request(Picture.of(seed.to_bytes(8, "little")), f"answer {seed}")


@lru_cache
def own_answer(seed: int, policy: SamplingPolicy, tokens: int) -> tuple[int, ...]:
    """The calibrated target's answer."""
    target = CalibratedVlm()
    return answer_alone(target, target.prompt(request_of(seed), SCRIPTED_SPEC), policy, tokens)


def answer_alone(
    target: FakeVlm,
    prompt: Any,
    policy: SamplingPolicy,
    longest: int,
    *,
    end: int | None = None,
    processors: LogitsProcessors | None = None,
) -> tuple[int, ...]:
    """The target's answer under greedy or coupled, token by token; ``end``: its last token."""
    state, tokens = target.start(prompt), list[int]()
    while len(tokens) < longest and tokens[-1:] != [end]:
        logits = target.row(state)
        if processors is not None:
            logits = processors.after(tokens).of(logits)
        tokens.append(coupled_token(logits, policy, len(tokens)))
        state = target.after(state, tokens[-1])
    return tuple(tokens)


LAYERS = 28  # Qwen2-VL-2B's and Qwen3-0.6B's
PROMPT_ROWS = 256

Sleep = Callable[[float], None]  # seconds


class BusyTime:
    """A sleep that adds up its time in ``total``, s."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self.total = 0.0

    def __call__(self, seconds: float) -> None:
        self.total += seconds
        self._sleep(seconds)


class CostedVlm(FakeVlm):
    """A model with another model's logits and a cost profile's times."""

    prompt_rows, layers = PROMPT_ROWS, LAYERS

    def __init__(
        self, cost_profile: CostProfile, sleep: Sleep, language: FakeVlm, prefill_ms: float
    ) -> None:
        self.cost_profile, self._sleep, self._prefill_ms = cost_profile, sleep, prefill_ms
        self.speak_as(language, "crop", "prompt", "grammar", "start", "after", "row", "rows")

    def read(self, share: float) -> None:
        """Spend the time of this share of a prompt."""
        if self._prefill_ms:
            self.take(share * self._prefill_ms)

    def take(self, ms: float) -> None:
        """Spend the time of a pass, ms."""
        self._sleep(ms / 1e3)


class DraftVlm(CostedVlm):
    """The draft model of a cost profile."""

    def __init__(
        self, cost_profile: CostProfile, sleep: Sleep, language: FakeVlm | None = None
    ) -> None:
        """language: a model to use instead of the calibrated one."""
        calibrated = CalibratedVlm(cost_profile.alpha, cost_profile.runner_up)
        super().__init__(cost_profile, sleep, language or calibrated, cost_profile.draft_prefill_ms)

    def compute(self, rows: int, on_layer: OnLayer | None) -> None:
        """Spend the time of a pass over ``rows`` branches, layer by layer."""
        whole = self.cost_profile.draft_pass_ms(rows)
        for layer in range(LAYERS):
            self.take(whole / LAYERS)
            if on_layer is not None:
                on_layer(layer, None)


@dataclass(frozen=True)
class ModelPass:
    """The target's pass over ``drafted`` tokens; times in s."""

    start: float
    end: float
    drafted: int


class TargetVlm(CostedVlm):
    """The target of a cost profile. ``passes``: those over drafts, by ``clock``."""

    def __init__(
        self,
        cost_profile: CostProfile,
        sleep: Sleep,
        language: FakeVlm | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        passes: list[ModelPass] | None = None,
    ) -> None:
        """language: a model to use instead of the calibrated target."""
        super().__init__(cost_profile, sleep, language or CalibratedVlm(), cost_profile.prefill_ms)
        self._clock, self.passes = clock, [] if passes is None else passes

    def run_pass(
        self, rows: int, drafted: Sequence[int], at_exit: Callable[[], None] | None
    ) -> None:
        """Spend the time of a pass; the exits of all sessions are at the same depth."""
        start = self._clock()
        whole, depth = self.cost_profile.batch_pass_ms(drafted, at_exit is not None), 0.0
        if at_exit is not None:
            depth = self.cost_profile.exit_depth
            self.take(depth * whole)
            at_exit()
        self.take((1 - depth) * whole)
        self.passes.append(ModelPass(start, self._clock(), sum(drafted)))


class ScriptedRunner(LocalModels):
    """A scripted target with an exit that predicts the verdict in a given share of rounds, else
    something else."""

    def __init__(self, target: Any, spec: PromptSpec, drafter: Any) -> None:
        super().__init__(target, spec, drafter, None)
        self._hit = target.cost_profile.exit_hit

    def predictor(self, session: HeldSession, on_predicted: OnPredicted) -> Any:
        """An ``on_layer`` that is called with the pass's logits [1 + n, V]."""
        opening, due, position = session.opening, session.due, len(session.tokens)
        if not (self._hit and opening.predictions and due.exits):
            return None

        def predict(logits: np.ndarray) -> None:
            policy, draft = opening.policy, due.draft
            source = SeededRandomSource(policy.seed)
            rows = LogitRows(logits, adjustments_of(session))
            taken = accept(opening.rule, draft, rows, policy, position, source, open_at=due.open_at)
            token = taken.token
            if token is None:
                return
            drawn = reduce(mix, draft.tokens, position)
            if drawn / _SCALE >= self._hit:
                vocabulary = logits.shape[-1]
                token = (token + 1 + drawn % (vocabulary - 1)) % vocabulary
            on_predicted(session, ExitPrediction(taken.path, token, self._hit))

        return predict


class SpeculatingModels(ScriptedRunner):
    """A target that drafts by a head of its own (MTP, EAGLE) before each pass, from the last hidden
    state: so it reads no prompt, and drafts nothing before the first token.

    Of each chain as many tokens are the target's own as a draw by the prefix says, which has the
    acceptance by position of the cost profile.
    """

    def propose(self, session: HeldSession, prefix: tuple[int, ...], length: int) -> Draft:
        target: Any = self.target
        head, costs = target.cost_profile.head, target.cost_profile
        if not prefix:
            return EMPTY
        count = min(length, len(head.acceptance))
        target.take(count * head.cost * costs.ar_ms)
        drawn = mix(session.digest.hash, 6) / _SCALE
        right = sum(drawn < share for share in head.acceptance[:count])
        state, tokens = session.target.session.state, list(prefix)  # type: ignore[attr-defined]
        for position in range(len(prefix), len(prefix) + count):
            logits = target.row(state)
            if session.processors is not None:
                logits = session.processors.after(tokens).of(logits)
            token = coupled_token(logits, session.opening.policy, position)
            if len(tokens) - len(prefix) >= right:
                token = (token + 1) % self.spec.vocabulary
            tokens.append(token)
            state = target.after(state, token)
        return Draft(tuple(tokens[len(prefix) :]))


@dataclass(frozen=True)
class ScriptedModels:
    """The models of both sides (``Models``), with a cost profile's times and exits.

    cloud_drafts: the cloud has a draft model, too; else the cost profile's head drafts there, if it
    has one. drafter, target: models with other logits than
    the calibrated pair's; then ``spec`` says how they are prompted, and ``instructions`` which ones
    they understand. ``passes``: the target's.
    """

    cost_profile: CostProfile
    cloud_drafts: bool = False
    limits: WorkerLimits | None = None
    drafter: FakeVlm | None = None
    target: FakeVlm | None = None
    spec: PromptSpec = SCRIPTED_SPEC
    instructions: re.Pattern[str] | None = None
    passes: list[ModelPass] = field(default_factory=list)

    def draft_model(self, sleep: Sleep) -> DraftVlm:
        """The draft model."""
        return DraftVlm(self.cost_profile, sleep, self.drafter)

    def worker(self, clock: Callable[[], float], sleep: Sleep, verifier: int = 0) -> Worker:
        """A worker; all verifiers have the same models."""
        target: Any = TargetVlm(self.cost_profile, sleep, self.target, clock, self.passes)
        drafter: Any = None
        if self.cloud_drafts:
            drafter = DraftVlm(self.cost_profile.of_cloud_drafter(), sleep, self.drafter)
        runner = ScriptedRunner(target, self.spec, drafter)
        if drafter is None and self.cost_profile.head is not None:
            runner = SpeculatingModels(target, self.spec, target)
        return Worker(runner, self.spec, None, self.limits, clock, None, self.instructions)
