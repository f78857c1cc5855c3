"""Fake models: a row for each prefix, no weights, and no time for a pass unless one is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....models.kv_memory import KvMemory

OnLayer = Callable[[int, Any], None]


class ScriptedPrefill:
    """Spends the prompt's time row by row and layer by layer; then the session is there."""

    def __init__(
        self,
        open_session: Callable[[], ScriptedSession],
        rows: int = 1,
        spend: Callable[[float], None] = lambda share: None,
        layers: int = 1,
    ) -> None:
        """rows: of the prompt. spend: lets the time of this share of it go by."""
        self._open_session, self._spend = open_session, spend
        self.rows_left = self._rows = rows
        self._layers = layers
        self._nodes: tuple[Sequence[int], Sequence[int] | None] = ((), None)
        self._session: ScriptedSession | None = None

    def draft(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """As `Prefill.draft` has it; a node takes the time of a row."""
        self._nodes = (tokens, parents)

    @property
    def session(self) -> ScriptedSession:
        """The session after the prompt; ValueError before the last step."""
        if self._session is None:
            raise ValueError(f"{self.rows_left} rows of this prompt are not computed yet")
        return self._session

    def finish(self) -> ScriptedSession:
        """Compute what is left of the prompt; the session after it."""
        self.step(self.rows_left)
        return self.session

    def step(self, rows: int, on_layer: OnLayer | None = None) -> bool:
        """As `Prefill.step` has it; there is no vision part."""
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


Logits = np.ndarray  # float32 [1 + n, V], of one session
AtExit = Callable[[], None]  # lets the sessions' ``on_layer`` see the pass


@dataclass(frozen=True)
class PassSize:
    """What a pass computes: rows of all sessions, and how many of them each session drafted."""

    rows: int
    drafted: tuple[int, ...]


def scripted_pass(
    requests: Sequence[Any], run_pass: Callable[[PassSize, AtExit | None], None]
) -> list[Logits | Exception]:
    """As ``Vlm.forward_together`` has it; the requests are ``PassRequest`` of scripted sessions.

    ``run_pass`` takes the time of a pass, and calls what it is given where an exit looks on.
    """
    results: list[Logits | Exception] = []
    rows, drafted, due = 0, [], []
    seen: set[int] = set()
    for request in requests:
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
            due.append(len(results) - 1)
    looking = [place for place in due if requests[place].on_layer is not None]

    def at_exit() -> None:
        for place in looking:
            try:
                requests[place].on_layer(results[place])
            except Exception as error:
                requests[place].session.drop_nodes()
                results[place] = error

    if due:
        run_pass(PassSize(rows, tuple(drafted)), at_exit if looking else None)
    return results


_MASK = (1 << 64) - 1


State = Any  # of a prefix, whatever names it to its model


class FakeVlm:
    """In the place of a ``Vlm``: no weights, no keys and values, and no time unless it is taken.

    A state names a prefix; here it is the prefix itself. ``prompt_rows`` and ``layers`` are those
    of a prompt: after each layer a prefill may be interrupted.
    """

    identity = "fake"
    tokenizer: Any = None
    tokenizer_digest = b"fake"
    default_kv_bytes = 1
    prompt_rows = layers = 1

    def use_memory(self, memory: KvMemory) -> None:
        """There are no caches to bound."""

    def start(self, prompt: Any) -> State:
        """The state before the answer's first token."""
        return ()

    def after(self, state: State, token: int) -> State:
        """The state one token later."""
        return (*state, token)

    def row(self, state: State) -> np.ndarray:
        """Logits float32 [V] after the prefix with this state."""
        raise NotImplementedError

    def session(self, prompt: Any) -> ScriptedSession:
        """A session at the beginning of the answer, without the time of a prefill."""
        return ScriptedSession(self, self.start(prompt))

    def open(self, prompt: Any) -> ScriptedSession:
        """The same, after the time of a prefill."""
        return self.prefill(prompt).finish()

    def prefill(self, prompt: Any) -> ScriptedPrefill:
        """`open` in steps."""
        return ScriptedPrefill(
            lambda: self.session(prompt), self.prompt_rows, self.read, self.layers
        )

    def read(self, share: float) -> None:
        """Let the time of this share of a prompt go by."""

    def spend(self, rows: int) -> None:
        """Let the time of a pass over this many rows go by."""

    def forward_together(self, requests: Sequence[Any]) -> list[Logits | Exception]:
        """One pass over several sessions. There are no exits."""
        return scripted_pass(requests, lambda size, _: self.spend(size.rows))


class ScriptedSession:
    """The interface of `session.Session` over a scripted model; it has no cache to lose."""

    resident = True  # there is no cache to be evicted
    waits = False

    def __init__(self, model: FakeVlm, state: State) -> None:
        self._model = model
        self._states = [state]  # after the prompt and after each token of the prefix
        self._tokens: list[int] = []
        self._computed = 0
        self._scored: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self.drop_nodes()

    def drop_nodes(self) -> None:
        """Forget the drafted nodes."""
        self._nodes: list[int] = []
        self._node_states: list[State] = []
        self._parents: list[int] = []

    @property
    def length(self) -> int:
        """Tokens of the prefix."""
        return len(self._tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prefix."""
        return tuple(self._tokens)

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None, on_layer: object = None
    ) -> np.ndarray:
        """Logits float32 [1 + n, V]; see `Session.forward`. There are no exits."""
        self._spend(self.rows_due(tokens, parents), on_layer)
        return self.score(tokens, parents)

    def keep_scored(self, tokens: Sequence[int], parents: Sequence[int] | None) -> None:
        """These nodes were scored in a pass over the prompt."""
        self._scored = _tree(tokens, parents)

    @property
    def scored_with_prompt(self) -> bool:
        """Whether a draft was scored with the prompt, after which nothing came yet."""
        return self._scored is not None and not self._tokens

    def rows_due(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> int:
        """How many rows a pass over these nodes computes."""
        if not self._tokens and self._scored == _tree(tokens, parents):
            return 0
        return len(self._tokens) - self._computed + len(tokens)

    def score(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> np.ndarray:
        """What ``forward`` returns, without the time of a pass."""
        self.drop_nodes()
        try:
            self._append(tokens, range(-1, len(tokens) - 1) if parents is None else parents)
        except ValueError:
            self.drop_nodes()
            raise
        self._computed = len(self._tokens)
        return np.stack([self._model.row(at) for at in (self._states[-1], *self._node_states)])

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], on_layer: object = None
    ) -> np.ndarray:
        """Logits float32 [n, V] of more nodes; see `Session.grow`."""
        if self._computed < len(self._tokens):
            return self.forward(tokens, parents, on_layer)[1:]
        begin = len(self._nodes)
        self._spend(len(tokens), on_layer)
        self._append(tokens, parents)
        return np.stack([self._model.row(at) for at in self._node_states[begin:]])

    def _spend(self, rows: int, on_layer: object) -> None:
        """Let a pass over this many rows take its time."""
        if rows:
            self._model.spend(rows)

    @property
    def pending_rows(self) -> int:
        """Tokens of the prefix that no pass has computed."""
        return len(self._tokens) - self._computed

    def logits_after(self, node: int, on_layer: object = None) -> np.ndarray:
        """Logits float32 [V] after a node, or after the prefix (-1)."""
        if node < 0 and self._computed < len(self._tokens):
            self.forward((), None, on_layer)
        return self._model.row(self._node_states[node] if node >= 0 else self._states[-1])

    def _append(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        for token, parent in zip(tokens, parents, strict=True):
            if not -1 <= parent < len(self._nodes):
                raise ValueError(f"the parent of node {len(self._nodes)} is {parent}")
            before = self._states[-1] if parent < 0 else self._node_states[parent]
            self._nodes.append(int(token))
            self._node_states.append(self._model.after(before, int(token)))
            self._parents.append(int(parent))

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Add a path of the nodes to the prefix; the nodes of ``keep`` stay."""
        parent = -1
        for index in path:
            if not 0 <= index < len(self._nodes) or self._parents[index] != parent:
                raise ValueError(f"{list(path)} is not a path of the nodes {self._parents}")
            parent = index
        place = {parent: -1, **{index: i for i, index in enumerate(keep)}}
        self._tokens += [self._nodes[index] for index in path]
        self._states += [self._node_states[index] for index in path]
        self._computed += len(path)
        kept = [(self._nodes[i], self._node_states[i], place[self._parents[i]]) for i in keep]
        self.drop_nodes()
        for token, state, above in kept:
            self._nodes.append(token)
            self._node_states.append(state)
            self._parents.append(above)

    def evict(self) -> bool:
        """There is no cache to free."""
        return False

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the prefix."""
        self.drop_nodes()
        for token in tokens:
            self._tokens.append(int(token))
            self._states.append(self._model.after(self._states[-1], int(token)))

    def truncate(self, length: int) -> None:
        """Shorten the prefix to so many tokens."""
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


def mix(state: int, value: int) -> int:
    """splitmix64 of both: equal prefixes give equal states, unequal ones unrelated states."""
    z = (state ^ (value * 0xD1342543DE82EF95)) + 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31
