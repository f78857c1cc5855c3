"""One decode in virtual time, over a link with random or given faults.

The runner, the worker, the codec and both state machines are the real ones; the models are seeded
functions of the prefix, or those of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING

from edge_cloud_spec.cloud.session.session import CloudSession
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import Effect, Emit, Event, Finish
from edge_cloud_spec.edge.runner import DecodeRunner, Outcome
from edge_cloud_spec.models.prompt import PromptSpec
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.request import ASSISTANT, SYSTEM, USER, Message, Part, Picture, Request
from edge_cloud_spec.wire.frames import ServerFrame
from edge_cloud_spec.wire.messages import ClientMessage, Close, Open, Verdict

from .toy import ToyModels, spec_of
from .virtual import VirtualHarness
from .virtual_time import Arrival, Impairments, VirtualLink

if TYPE_CHECKING:  # toy models need neither torch nor transformers
    from .checkpoint_models import CheckpointModels

_preset = cache(load_preset)  # read once for thousands of decodes

# What can happen to one message. cut: the link breaks at it, and it is lost with all that is in
# flight. moved: the same, and the robot comes back at the other verifier. lost: it alone never
# arrives. repeated: it arrives again later. late: others overtake it.
MESSAGE_FAULTS = ("cut", "moved", "lost", "repeated", "late")
NEVER_ON_TIME = ("cut", "moved", "lost", "late")
LATE_S = 0.35


@dataclass(frozen=True)
class Conditions:
    """The conditions of a decode: probabilities from 0 to 1, times in seconds."""

    delay: float = 0.05
    jitter: float = 0.2
    duplicated: float = 0.0
    reordered: bool = False  # verdicts overtake one another
    cuts: float = 0.0  # how often the link breaks, 1/s
    max_cuts: int = 12  # after these it does not break
    outage: float = 0.5  # at most, after each
    moves: float = 0.0  # share of the random cuts after which the robot is at the other verifier
    restart: float = 0.0  # of the server at a cut: it forgets every session
    cloud_job: float = 0.02  # of a job in the cloud
    draft_pass: float = 0.03  # of a pass of the draft model
    evictions: float = 0.0  # share of the cloud's jobs after which it evicts a cache


class InjectedFaults(Impairments):
    """The link's impairments under these conditions.

    faults: the fault of a message, by its number over both directions.
    """

    def __init__(self, random: Random, conditions: Conditions, faults: Mapping[int, str]) -> None:
        self.messages = 0  # sent so far, both ways
        self.cuts = 0
        self.left_out = False  # whether one was lost or late though the link was up
        self._random, self._conditions, self._faults = random, conditions, faults
        self._up_free = self._down_free = 0.0  # when the last message that is in order arrives

    def start(self, link: VirtualLink) -> None:
        """Plan the next cut of the link, up to the number of cuts."""
        self._link = link
        if self._conditions.cuts and self.cuts < self._conditions.max_cuts:
            link.timeline.after(self._random.expovariate(self._conditions.cuts), self._cut_anywhere)

    def up(self, message: ClientMessage, size: int, now: float) -> Iterable[Arrival]:
        """Deliver a robot's message in order, unless late."""
        fault = self._fault()
        self.left_out |= fault in ("lost", "late")  # what follows cannot be used without it
        arrivals = self._later(fault, now)
        if fault not in NEVER_ON_TIME:
            for _ in range(1 if isinstance(message, Close) else self._copies()):
                self._up_free = max(self._up_free, now + self._delay())
                arrivals.append(Arrival(self._up_free))
        return arrivals

    def down(self, data: ServerFrame, now: float) -> Iterable[Arrival]:
        """Deliver a cloud's message in order unless late; verdicts survive a change of the
        stream."""
        fault = self._fault()
        self.left_out |= fault == "lost"
        arrivals = self._later(fault, now)
        if fault in NEVER_ON_TIME:
            return arrivals
        is_verdict = data.head.kind == "verdict"
        for _ in range(self._copies() if is_verdict else 1):
            time = now + self._delay()
            if not (is_verdict and self._conditions.reordered):
                time = self._down_free = max(self._down_free, time)
            arrivals.append(Arrival(time, on_any_stream=is_verdict))
        return arrivals

    def closed_at(self, now: float) -> float:
        """After all messages sent before."""
        return max(self._up_free, now + self._delay())

    def lost_at(self, now: float) -> float:
        """The time at which a message sent now would arrive."""
        return now + self._delay()

    def clear(self) -> None:
        """Forget what is in flight."""
        self._up_free = self._down_free = 0.0

    def notice_s(self) -> float:
        """How long the robot sends on a new stream without knowing that it is new, s."""
        return 0.05 * self._random.random()

    def _fault(self) -> str:
        """The fault of the next message."""
        self.messages += 1
        fault = self._faults.get(self.messages - 1, "")
        if fault in ("cut", "moved"):
            self._cut(moved=fault == "moved")
        return fault

    def _later(self, fault: str, now: float) -> list[Arrival]:
        if fault not in ("repeated", "late"):
            return []
        return [Arrival(now + self._delay() + LATE_S, on_any_stream=True)]

    def _delay(self) -> float:
        return self._conditions.delay + self._conditions.jitter * self._random.random()

    def _copies(self) -> int:
        return 2 if self._random.random() < self._conditions.duplicated else 1

    def _cut_anywhere(self) -> None:
        """Cut the link between two messages."""
        moves = self._conditions.moves
        self._cut(moved=moves > 0 and self._random.random() < moves)

    def _cut(self, *, moved: bool) -> None:
        link = self._link
        if not link.is_up or not link.is_used:
            return
        self.cuts += 1
        link.cut()
        if self._random.random() < self._conditions.restart:
            link.cloud.restart()
        outage = self._conditions.outage * self._random.random()
        link.timeline.after(outage, partial(self._restore, moved))

    def _restore(self, moved: bool) -> None:
        self._link.restore(moved=moved)
        self._link.timeline.after(0.1, lambda: self.start(self._link))


MAX_STEPS = 20_000  # of the timeline, for one decode
NONCE = 7


@dataclass(frozen=True)
class Form:
    """The form of a request: the user's messages before its last one, each with an answer; the
    pictures of each, between texts; and whether the robot has a system text of its own."""

    turns: int = 0
    pictures: int = 1
    system: bool = False

    @property
    def request(self) -> Request:
        """The request, of which others may begin with the first messages."""
        messages = [Message(SYSTEM, ("rules",))] if self.system else []
        for turn in range(self.turns + 1):
            shown = (Picture.of(bytes([turn, number])) for number in range(self.pictures))
            parts: list[Part] = ["find"]
            for number, picture in enumerate(shown):
                parts += [picture, f"part {number}"]
            messages += [Message(USER, tuple(parts)), Message(ASSISTANT, (f"answer {turn}",))]
        return Request(tuple(messages[:-1]), continues=True)


Tokens = tuple[int, ...]


class Decode(VirtualHarness):
    """One decode of toy or given models, with two verifiers; ``run`` continues until the robot is
    finished.

    Tests override ``on_event``, ``on_send`` and ``on_emit``.
    """

    def __init__(
        self,
        random: Random,
        preset: Preset | str,
        rule: str = "greedy",
        policy: SamplingPolicy = GREEDY,
        *,
        conditions: Conditions | None = None,
        seed: int = 0,
        draft_noise: float = 0.5,
        known_spec: bytes | None = None,
        reply_timeout: float = 1e6,
        max_tokens: int = 0,
        spec: PromptSpec | None = None,
        faults: Mapping[int, str] | None = None,
        form: Form = Form(),
        known: bool = False,
        models: CheckpointModels | None = None,
    ) -> None:
        """draft_noise: see ``ToyVlm``; it and spec only without ``models``. faults: see
        ``InjectedFaults``. timeout: seconds.

        form: of the request; the robot believes that the cloud keeps its turns but the last. known:
        whether the first verifier does.
        """
        conditions = conditions or Conditions()
        self.preset = _preset(preset) if isinstance(preset, str) else preset
        self.settings = DecodeSettings(self.preset, rule, policy, max_tokens, reply_timeout)
        chosen = models or ToyModels(seed, draft_noise, spec or spec_of(), conditions.draft_pass)
        self.models: ToyModels | CheckpointModels = chosen
        self.spec, self.request = chosen.spec, chosen.request(form.request)
        self.emitted: list[int] = []
        self.sent: list[ClientMessage] = []
        self.verdicts_received = 0
        self.outcome: Outcome | None = None
        self.faults = InjectedFaults(random, conditions, faults or {})
        super().__init__(
            chosen, self.faults, verifiers=2, job_s=conditions.cloud_job, max_steps=MAX_STEPS
        )
        self.draft_model = chosen.draft_model(self.timeline.sleep)
        self.link.on_send = lambda message: self.on_send(message)
        self._sessions: dict[str, CloudSession] = {}  # that the clouds held, by session
        self._random, self._evictions, self.evicted = random, conditions.evictions, 0
        self.brought: list[tuple[Tokens, list[Tokens]]] = []  # by the robot; what clouds held then
        self._runner = _Runner(self)
        self._runner.remember(self.spec.to_bytes() if known_spec is None else known_spec)
        if form.turns:
            before = replace(self.request, messages=self.request.messages[:-2])
            self._runner.at_verifier.add(before)
            if known:
                self.worker.messages.keep(before, "", 0.0)

    @property
    def decoder(self) -> EdgeDecoder:
        """The robot's decoder, once it runs."""
        return self._runner.decoder

    @property
    def sessions(self) -> list[CloudSession]:
        """All sessions that the clouds have had."""
        return list(self._sessions.values())

    def own_answer(self) -> tuple[list[int], str]:
        """The target's answer, and why it ends."""
        longest = min(self.settings.max_tokens or self.spec.max_tokens, self.spec.max_tokens)
        return self.models.own_answer(self.request, self.settings.policy, longest)

    def run(self) -> Outcome:
        """Continue until the robot is finished; raises Hung."""
        self.inbox = self.make_inbox()
        self.outcome = self._runner.run(
            self.request, self.settings, NONCE, self.link.connect, self.on_emit, self.inbox
        )
        return self.outcome

    def settle(self) -> None:
        """After the end: let messages in flight arrive, and the cloud finish its jobs."""
        self.timeline.drain()

    def on_event(self, event: Event) -> Event:
        """Called before the robot's decoder handles an event; returns the event to handle."""
        if not self.decoder.finished:
            self.verdicts_received += isinstance(event, Verdict)
        return event

    def on_send(self, message: ClientMessage) -> None:
        """Called when the robot sends a message."""
        if isinstance(message, Open):
            held = [tuple(session.tokens) for session in self.sessions]
            self.brought.append((message.verified, held))
        self.sent.append(message)

    def on_emit(self, emit: Emit) -> None:
        """Called when the robot emits tokens."""
        assert emit.position == len(self.emitted), "emitted twice, or a gap"
        self.emitted += emit.tokens

    def on_job(self) -> None:
        """Note the sessions that the clouds have now; sometimes a cache is evicted."""
        if self._evictions and self._random.random() < self._evictions:
            self.evicted += self._random.choice(self.clouds).worker.kv_memory.evict_one()
        for stream in (stream for cloud in self.clouds for stream in cloud.streams):
            if stream.session is not None:
                self._sessions[stream.session.name] = stream.session


class _Runner(DecodeRunner):
    """A runner whose decoder reports its events."""

    decoder: EdgeDecoder

    def __init__(self, decode: Decode) -> None:
        super().__init__(decode.draft_model, decode.spec, decode.timeline.clock)  # type: ignore[arg-type]
        self._decode = decode

    def decoder_of(self, opening: Open, settings: DecodeSettings) -> EdgeDecoder:
        self.decoder = decoder = super().decoder_of(opening, settings)
        handle = decoder.handle

        def watched(event: Event, now: float) -> list[Effect]:
            finished = decoder.finished
            effects = handle(self._decode.on_event(event), now)
            assert not (finished and effects), "it goes on after its end"
            assert not any(isinstance(effect, Finish) for effect in effects[:-1]), (
                "an end, and more"
            )
            return effects

        decoder.handle = watched  # type: ignore[method-assign]
        return decoder
