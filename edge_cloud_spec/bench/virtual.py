"""One decode in virtual time: both state machines and the codec, model costs as numbers, a link.

What takes a second here takes microseconds; nothing is left out but the waiting.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from ..cloud.verification import (
    Extend,
    Guessed,
    Keep,
    Say,
    Score,
    Scored,
    Verification,
)
from ..decoding.draft import Draft
from ..decoding.policy import GREEDY, SamplingPolicy
from ..decoding.preset import Preset
from ..decoding.propose import coupled_token
from ..edge.decoder import EdgeDecoder
from ..edge.events import Action, Drafted, Emit, Event, Finish, PromptReady, Received, Send, Work
from ..edge.measures import Measures
from ..models.drafter import Drafter
from ..wire.codec import decode_client, decode_server, encode_client, encode_server
from ..wire.messages import ClientMessage, Open, Opened, ServerMessage, base_digest, spec_digest
from .guessing import VOCABULARY, GuessingModel
from .regimes import Regime

SPEC = b"virtual"


@dataclass
class Line:
    """One direction of a link: a delay with jitter in ms, a rate in bytes per ms; in order."""

    delay: float
    jitter: float = 0.0
    rate: float = 0.0
    free: float = 0.0
    sent: int = 0

    def arrival(self, now: float, size: int, random: Random) -> float:
        """When a message of this size arrives."""
        self.sent += size
        begun = max(self.free, now)
        self.free = begun + (size / self.rate if self.rate else 0.0)
        return self.free + self.delay + self.jitter * random.random()


@dataclass
class Busy:
    """How long something worked, and on what: (start, end, what) in ms."""

    spans: list[tuple[float, float, str]] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(end - start for start, end, _ in self.spans)


class VirtualDecode:
    """A decode of ``tokens`` tokens under a regime; times in ms."""

    def __init__(
        self,
        regime: Regime,
        preset: Preset,
        tokens: int,
        seed: int = 0,
        policy: SamplingPolicy = GREEDY,
        jitter: float = 0.0,
    ) -> None:
        self.regime, self.preset, self.now = regime, preset, 0.0
        self._random = Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.target = GuessingModel(seed)
        draft_model = GuessingModel(seed, regime.alpha, regime.runner_up)
        rule = "coupled" if policy.temperature else "greedy"
        self.opening = Open(
            1,
            "find",
            b"",
            "action first",
            policy,
            rule,
            draft_identity="drafter" if preset.drafts_on_robot else "",
            spec_digest=spec_digest(SPEC),
            max_tokens=tokens,
            draft_length=preset.draft_length,
        )
        base = base_digest(self.opening, b"prompt", self.opening.spec_digest)
        self.measures = Measures()
        self.robot = EdgeDecoder(self.opening, preset, 1e12, measures=self.measures)
        self.cloud = Verification(
            "virtual", self.opening, base, end_tokens=(), max_tokens=tokens, vocabulary=VOCABULARY
        )
        self._session = self.target.open()
        self._drafter = Drafter(
            draft_model.open(),  # type: ignore[arg-type]
            preset.recipe(rule, policy),
            guesses=preset.speculation.guesses,
        )
        self._drafting = False
        self.up = Line(regime.one_way_ms, jitter)
        self.down = Line(regime.one_way_ms, jitter)
        self.robot_busy, self.cloud_busy = Busy(), Busy()
        self.emitted: list[int] = []
        self.finish: Finish | None = None
        self._act(self.robot.start(0.0, SPEC))
        self.happen(Received(Opened("virtual", b"", base)))
        self.happen(PromptReady(b"prompt", self.opening.spec_digest, (), tokens))

    def run(self) -> VirtualDecode:
        """Go on until the answer is whole."""
        while self.finish is None:
            self.now, _, job = heapq.heappop(self._events)
            job()
        return self

    def own_answer(self) -> list[int]:
        """The target's own tokens, as many as were emitted."""
        session, own = self.target.open(), []
        for position in range(len(self.emitted)):
            logits = session.forward(())[0]
            own.append(coupled_token(logits, self.opening.policy, position))
            session.extend(own[-1:])
        return own

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * len(self.emitted) / self.now

    def happen(self, event: Event) -> None:
        """An event at the robot."""
        self._act(self.robot.handle(event, self.now / 1e3))

    def _at(self, time: float, job: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), job))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(message):
                    self._send_up(message)
                case Work(verified, branches):
                    self._drafter.follow(verified)
                    self._drafter.want(branches)
                    self._draft()
                case Emit(_, tokens):
                    self.emitted += tokens
                case Finish():
                    self.finish = action

    def _draft(self) -> None:
        """A pass takes its time; what is wanted when it ends is what it worked on."""
        if self._drafting or self._drafter.idle or self.finish is not None:
            return
        self._drafting = True
        width = self.robot.width
        rows = self._drafter.cost(width)
        cost = self.regime.draft_pass_ms(rows)
        self.robot_busy.spans.append((self.now, self.now + cost, f"{rows}"))
        self._at(self.now + cost, lambda: self._drafted(width, rows, cost / 1e3))

    def _drafted(self, width: int, rows: int, seconds: float) -> None:
        self._drafting = False
        if not self._drafter.idle:
            for one in self._drafter.step(width):
                self.happen(Drafted(one.branch, one.level.tokens, one.whole, seconds, rows))
                seconds = 0.0
        self._draft()

    def _send_up(self, message: ClientMessage) -> None:
        if isinstance(message, Open):
            return  # its session stands already
        data = encode_client(message)
        arrival = self.up.arrival(self.now, len(data), self._random)
        self._at(arrival, lambda: self._hear(decode_client(data)))

    def _send_down(self, message: ServerMessage) -> None:
        data = encode_server(message)
        arrival = self.down.arrival(self.now, len(data), self._random)
        self._at(arrival, lambda: self.happen(Received(decode_server(data))))

    def _hear(self, message: ClientMessage) -> None:
        assert not isinstance(message, Open)
        self._perform(self.cloud.handle(message))

    def _perform(self, actions: list) -> None:
        for action in actions:
            match action:
                case Say(message):
                    self._send_down(message)
                case Keep(path, tokens):
                    self._session.commit(path)
                    self._session.extend(tokens)
                case Extend(tokens):
                    self._session.extend(tokens)
                case Score(draft):
                    self._score(draft)

    def _score(self, draft: Draft) -> None:
        regime = self.regime
        cost = regime.verify_pass_ms(len(draft)) if len(draft) else regime.ar_ms
        self.cloud_busy.spans.append((self.now, self.now + cost, f"{len(draft)}"))
        logits = self._session.forward(draft.tokens, draft.parents)
        if regime.exit_hit and len(draft) and self.preset.speculation.exits:
            guess = self._exit_guess(draft, logits.argmax(-1))
            self._at(
                self.now + regime.exit_depth * cost, lambda: self._perform(self.cloud.handle(guess))
            )
        done = Scored(logits, cost / 1e3)
        self._at(self.now + cost, lambda: self._perform(self.cloud.handle(done)))

    def _exit_guess(self, draft: Draft, own: list[int]) -> Guessed:
        """The verdict itself at a share of the rounds, else another one."""
        path: list[int] = []
        node = -1
        while True:
            token = int(own[node + 1])
            child = next((c for c in draft.children(node) if draft.tokens[c] == token), None)
            if child is None:
                break
            path.append(child)
            node = child
        right = self._random.random() < self.regime.exit_hit
        if not right:
            token = (token + 1 + self._random.randrange(VOCABULARY - 1)) % VOCABULARY
        layer = round(100 * self.regime.exit_depth)
        return Guessed(tuple(path), token, self.regime.exit_hit, layer)
