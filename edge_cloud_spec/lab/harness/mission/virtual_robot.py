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
from ....edge.events import Cut, Emit
from ....edge.runner import DecodeRunner, DecodeSettings, Outcome
from ....models.prompt import Request
from ....nav.answer import GRAMMARS, answer_grammar
from ....nav.decision_schedule import DecisionSchedule, DueDecision
from ....nav.events import Instruction
from ....nav.explain import FULL, has_action, is_enough
from ....nav.mission import Began, Decided, End, Event, Mission, MissionSettings, concluded
from ....nav.settings import Settings
from ....nav.status import Status
from ...sim.episode import thing_in_front
from ..emulated_link import LinkProfile
from ..regimes import Regime
from ..scripted.pair import BusyTime, DraftVlm
from ..trace import ModelPass
from ..virtual import ProfileImpairments
from ..virtual_cloud import VirtualCloud
from ..virtual_link import VirtualLink
from ..virtual_time import Timeline, VirtualInbox
from .embedded_pair import EmbeddedPair, embedded_worker
from .record import DecisionRecord, MissionRecord, MissionTrace
from .seen_room import SeenRoom, TakenFrame
from .spoken_words import SpokenWords
from .virtual_base import VirtualBase

RETRY_S = 1.0  # after a decision that failed, or said no action
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
        self._mission = Mission(self.conditions.mission)
        self._end: End | None = None
        self._request = ""
        spent = self._passes, self._cloud_busy.total, self._robot_busy.total
        self._schedule: DecisionSchedule[TakenFrame] = DecisionSchedule()
        self._base = base = VirtualBase(
            timeline, seen.scene, self.conditions.navigator, self._on_status, self._on_cycle
        )
        self._instruct(seen.room.instruction)
        while self._end is None:
            due = self._schedule.take(timeline.now)
            if due is not None:
                self._decide(seen, due)
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

    def _instruct(self, instruction: str) -> None:
        self._schedule.instruct(instruction, self.timeline.now)
        self._tell(Instruction(instruction))
        self._base.on(Instruction(instruction))

    def _decide(self, seen: SeenRoom, due: DueDecision[TakenFrame]) -> None:
        record, conditions = self._record, self.conditions
        self._decided += 1
        self._request = f"{seen.number}-{self._decided}"
        seed = decision_seed(seen.number % 2**32, len(record.decisions))
        grammar = answer_grammar(conditions.grammar, conditions.order)
        policy = SamplingPolicy(conditions.temperature, seed=seed, grammar=grammar)
        decision = DecisionRecord(due.frame.taken, seen.frame(due.frame.eye))
        record.decisions.append(decision)
        words = SpokenWords(self._base, self._tokenizer, self._request, due, decision)
        self._schedule.begin(self._request)
        self._acted = False
        self._tell(Began(self._request, seen.room.instruction))
        self._inbox = VirtualInbox(self.timeline)
        outcome = self._runner.run(
            Request(seen.room.instruction, decision.jpeg, conditions.order),
            DecodeSettings(conditions.preset, conditions.rule, policy),
            self._decided,
            self._link.connect,
            partial(self._say, words),
            self._inbox,
        )
        self._inbox = None
        self._schedule.end(self.timeline.now)
        decision.ended, decision.tokens = self.timeline.now, outcome.tokens
        record.up_bytes += outcome.stats.up_bytes
        record.down_bytes += outcome.stats.down_bytes
        words.finish(outcome.reason, self.timeline.now)
        self._conclude(outcome, decision, words.answer)

    def _conclude(self, outcome: Outcome, decision: DecisionRecord, answer: str) -> None:
        """The mission hears what was decided."""
        problem = "" if outcome.completed else outcome.text or outcome.reason
        event = concluded(self._request, answer, problem, outcome.out_of_reach)
        action = event.action if isinstance(event, Decided) else None
        decision.action = str(action or "")
        self._tell(event)
        if problem or action is None:
            self._schedule.pause(max(RETRY_S, outcome.retry_after_s), self.timeline.now)

    def _say(self, words: SpokenWords, emit: Emit) -> None:
        words.emit(emit, self.timeline.now)
        self._acted = self._acted or has_action(words.answer)
        self._cut_off()

    def _cut_off(self) -> None:
        """End an answer of which enough is said."""
        next_is_due = self._schedule.due(self.timeline.now)
        if self._inbox is not None and is_enough(self.conditions.explain, self._acted, next_is_due):
            self._inbox.put(Cut())

    def _on_cycle(self) -> None:
        """The camera takes a picture; of a robot that is to stand, when it stands."""
        if self._base.resting or self._base.navigator.status.state == "ready":
            now = self.timeline.now
            self._schedule.show(TakenFrame(now, self._base.world.eye), now)
            if self._schedule.deciding:
                self._cut_off()

    def _on_status(self, status: Status) -> None:
        record, now = self._record, self.timeline.now
        current = record.decisions[-1] if record.decisions else None
        if current is not None and status.request == self._request:
            current.settled = current.settled or now
            if status.state == "idle" and status.detail == "stop":
                record.ended = now
        self._schedule.on_status(status, now)
        self._tell(status)

    def _tell(self, event: Event) -> None:
        end = self._mission.on(event, self.timeline.now)
        if end is not None:
            self._end = end
            self._record.ended = self._record.ended or self.timeline.now

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
