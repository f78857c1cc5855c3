"""A robot that carries out one mission after another in virtual time, with its own cloud."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ....cloud.model_thread.worker import Worker
from ....decoding.noise import decision_seed
from ....decoding.policy import SamplingPolicy
from ....decoding.preset import Preset
from ....edge.events import Abort, Cut, Emit
from ....edge.runner import DecodeRunner, DecodeSettings
from ....models.prompt import Request
from ....nav.answer import GRAMMARS, action_of, answer_grammar
from ....nav.decision_loop import (
    FULL,
    Abandon,
    Answered,
    Decide,
    DecisionLoop,
    Ended,
    LoopSettings,
    Seen,
    StopAnswering,
)
from ....nav.decision_loop import Event as LoopEvent
from ....nav.events import Instruction
from ....nav.mission import End, MissionSettings
from ....nav.settings import Settings
from ....nav.status import Status
from ...sim.episode import thing_in_front
from ..emulated_link import LinkProfile
from ..regimes import Regime
from ..scripted.pair import BusyTime, DraftVlm
from ..trace import ModelPass
from ..virtual import ProfileImpairments
from ..virtual_link import VirtualCloud, VirtualLink
from ..virtual_time import Timeline, VirtualInbox
from .embedded_pair import EmbeddedPair, embedded_worker
from .record import DecisionRecord, MissionRecord, MissionTrace
from .seen_room import SeenRoom, TakenFrame
from .spoken_words import SpokenWords
from .virtual_base import VirtualBase

REST_S = 1.0  # between two missions


@dataclass(frozen=True)
class MissionConditions:
    """What a robot's missions are carried out with and under."""

    preset: Preset
    regime: Regime
    link: LinkProfile
    rule: str = "greedy"
    temperature: float = 0.0
    order: str = "action first"
    look: float = 1.0  # share of a picture's tokens that the draft model keeps
    explain: str = FULL
    grammar: str = GRAMMARS[0]
    navigator: Settings = field(default_factory=Settings)
    mission: MissionSettings = field(default_factory=lambda: MissionSettings(max_decisions=40))


class VirtualRobot:
    """What is measured and remembered lasts from mission to mission, on both sides of the link."""

    def __init__(
        self, pair: EmbeddedPair, conditions: MissionConditions, trace: MissionTrace | None = None
    ) -> None:
        self.conditions = conditions
        self.timeline = timeline = Timeline()
        regime = conditions.regime
        self._passes, self._trace = 0, trace

        def make_worker(clock: Callable[[], float], sleep: Callable[[float], None]) -> Worker:
            self._cloud_busy = BusyTime(sleep)
            on_pass = partial(self._on_cloud_pass, clock)
            drafts = conditions.preset.drafter == "cloud"
            return embedded_worker(pair, regime, clock, self._cloud_busy, on_pass, drafts)

        cloud = VirtualCloud(timeline, make_worker)
        impairments = ProfileImpairments(conditions.link, 0)
        hops = None if trace is None else trace.link
        self._link = VirtualLink(timeline, cloud, impairments, hops)
        self._robot_busy = BusyTime(timeline.sleep)
        sees = pair.drafter_that_keeps(conditions.look)
        drafter: Any = DraftVlm(regime, self._robot_busy, sees)
        drafter.on_pass = self._on_robot_pass
        self._tokenizer = pair.drafter.vlm.tokenizer
        self._runner = DecodeRunner(
            drafter, pair.spec, lambda: timeline.now, instructions=pair.instructions
        )
        self._runner.remember(pair.spec.to_bytes())  # as after any first decode
        self._decided = 0
        self._inbox: VirtualInbox | None = None

    def carry_out(self, seen: SeenRoom) -> MissionRecord:
        """The mission of one room, until it ends."""
        timeline = self.timeline
        timeline.sleep(REST_S)
        self._record = record = MissionRecord(seen.number, timeline.now)
        conditions = self.conditions
        self._loop: DecisionLoop[TakenFrame] = DecisionLoop(
            LoopSettings(conditions.explain, mission=conditions.mission)
        )
        self._end: End | None = None
        self._request = ""
        spent = self._passes, self._cloud_busy.total, self._robot_busy.total
        self._base = base = VirtualBase(
            timeline, seen.scene, conditions.navigator, self._on_status, self._on_cycle
        )
        instruction = Instruction(seen.room.instruction)
        self._hear(instruction)
        base.on(instruction)
        while self._end is None:
            decide = self._loop.take(f"{seen.number}-{self._decided + 1}", timeline.now)
            if decide is not None:
                self._decide(seen, decide)
            else:
                timeline.step(math.inf)
        while not base.resting:
            timeline.step(math.inf)
        base.close()
        record.ended = max([record.ended, *(end for _, end in base.moves)])
        record.state = self._end.state
        record.stopped_at = thing_in_front(seen.room, base.world.pose)
        record.success = record.state == "done" and record.stopped_at == seen.room.target
        record.first_motion = base.first_motion
        record.moves, record.contacts = base.moves, base.contacts
        record.target_passes = self._passes - spent[0]
        record.target_busy_s = self._cloud_busy.total - spent[1]
        record.draft_busy_s = self._robot_busy.total - spent[2]
        return record

    def _decide(self, seen: SeenRoom, decide: Decide[TakenFrame]) -> None:
        record, conditions = self._record, self.conditions
        self._decided += 1
        self._request = decide.request
        seed = decision_seed(seen.number % 2**32, len(record.decisions))
        grammar = answer_grammar(conditions.grammar, conditions.order)
        policy = SamplingPolicy(conditions.temperature, seed=seed, grammar=grammar)
        decision = DecisionRecord(decide.frame.taken, seen.frame(decide.frame.eye))
        record.decisions.append(decision)
        words = SpokenWords(self._base, self._tokenizer, decide, decision)
        self._inbox = VirtualInbox(self.timeline)
        outcome = self._runner.run(
            Request(decide.instruction, decision.jpeg, conditions.order),
            DecodeSettings(conditions.preset, conditions.rule, policy),
            self._decided,
            self._link.connect,
            partial(self._say, words),
            self._inbox,
        )
        self._inbox = None
        decision.ended, decision.tokens = self.timeline.now, outcome.tokens
        record.up_bytes += outcome.stats.up_bytes
        record.down_bytes += outcome.stats.down_bytes
        words.finish(outcome.reason, self.timeline.now)
        decision.action = str(action_of(words.answer) or "")
        problem = "" if outcome.completed else outcome.text or outcome.reason
        self._hear(Ended(words.answer, problem, outcome.out_of_reach, outcome.retry_after_s))

    def _say(self, words: SpokenWords, emit: Emit) -> None:
        words.emit(emit, self.timeline.now)
        self._hear(Answered(words.answer))

    def _on_cycle(self) -> None:
        """The camera takes a picture; of a robot that is to stand, when it stands."""
        if self._base.resting or self._base.navigator.status.state == "ready":
            self._hear(Seen(TakenFrame(self.timeline.now, self._base.world.eye)))

    def _on_status(self, status: Status) -> None:
        record, now = self._record, self.timeline.now
        current = record.decisions[-1] if record.decisions else None
        if current is not None and status.request == self._request:
            current.settled = current.settled or now
            if status.state == "idle" and status.detail == "stop":
                record.ended = now
        self._hear(status)

    def _hear(self, event: LoopEvent[TakenFrame]) -> None:
        """Tell the loop, and do what it answers."""
        for action in self._loop.on(event, self.timeline.now):
            if isinstance(action, End):
                self._end = action
                self._record.ended = self._record.ended or self.timeline.now
            elif self._inbox is not None and isinstance(action, Abandon):
                self._inbox.put(Abort(action.reason))
            elif self._inbox is not None and isinstance(action, StopAnswering):
                self._inbox.put(Cut())

    def _on_cloud_pass(
        self, clock: Callable[[], float], kind: str, ms: float, drafted: int
    ) -> None:
        self._passes += kind == "verify"
        if self._trace is not None:
            end = clock()
            self._trace.cloud.append(ModelPass(end - ms / 1e3, end, kind, drafted))

    def _on_robot_pass(self, kind: str, ms: float, drafted: int) -> None:
        if self._trace is not None:
            end = self.timeline.now
            self._trace.robot.append(ModelPass(end - ms / 1e3, end, kind))
