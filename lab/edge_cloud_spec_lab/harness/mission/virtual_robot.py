"""A robot that does one mission after another in virtual time, with its own cloud."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from itertools import count

from edge_cloud_spec.decoding.policy import RULES, SamplingPolicy, temperature_of
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.nav.answer import CLAUSES, GRAMMARS, ORDERS, answer_grammar
from edge_cloud_spec.nav.events import Instruction, Words
from edge_cloud_spec.nav.footprint import ObstacleSettings
from edge_cloud_spec.nav.mission import MissionSettings
from edge_cloud_spec.nav.pose import wrap
from edge_cloud_spec.nav.settings import DRIVE_CHOICES, STOP_AND_GO, NavigatorSettings
from edge_cloud_spec.nav.status import MISSION_ENDS, GoalStatus, NavCode, NavigatorStatus
from edge_cloud_spec.options import Bounded, bounded, chosen
from edge_cloud_spec.pilot.decision_loop import (
    EXPLAIN,
    EXPLAIN_UNTIL_NEXT,
    Decide,
    Frame,
    LoopSettings,
)
from edge_cloud_spec.pilot.pilot import Decided, Output, Pilot, PilotSettings
from edge_cloud_spec.request import Request, picture_digest

from ...sim.bases import BASES, IDEAL_BASE, make_base
from ...sim.camera import Camera, Eye, encode_jpeg, posture_of
from ...sim.obstacles import FREE, HALF_WAY, OBSTACLES, PERSON, PILLAR, with_pillar
from ...sim.reach import thing_in_front
from ...sim.room import Pose, Room, make_room
from ...sim.scene import Scene
from ..cost_profiles import CostProfile
from ..emulated_link import LinkProfile
from ..scripted.model import ScriptedModels
from ..scripted_robot import ScriptedHarness, draft_model_in_cloud, lab_preset
from .embedded_pair import EmbeddedPair
from .virtual_base import VirtualBase, stamp_of

MISSION_PAUSE_S = 1.0  # between two missions
MISSION_MAX_DECISIONS = 400  # of a mission


@dataclass(frozen=True)
class Variant(Bounded):
    """A preset with its options, in the syntax of ``--presets``: NAME[:OPTION=VALUE]...

    A draft model that keeps a share of a picture needs that share of the prefill time. Raises
    UserError for an unknown preset, ValueError for an invalid option.
    """

    preset: str
    link: LinkProfile = field(default_factory=LinkProfile)
    rule: str = chosen("greedy", RULES, "acceptance rule")
    explain: str = chosen(EXPLAIN_UNTIL_NEXT, EXPLAIN, "what is decoded after an action")
    drive: str = chosen(
        NavigatorSettings().drive, DRIVE_CHOICES, "whether it decides while it drives"
    )
    lookup: str = chosen("", ("", "on", "off"), "empty: what the preset says")
    grammar: str = chosen("none", GRAMMARS, "what an answer may be")
    look: float = bounded(1.0, 0.01, 1.0, "share of a picture's tokens that the draft model keeps")
    base: str = chosen(IDEAL_BASE, BASES, "that drives")
    way: str = chosen(FREE, OBSTACLES, "what is in it")
    seen: str = chosen("off", ("off", "on"), "whether pictures show that")
    scan: str = chosen("off", ("off", "on"), "whether a lidar does")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.loaded_preset

    @property
    def loaded_preset(self) -> Preset:
        """The preset, its ``lookup`` overridden if asked for; raises UserError."""
        preset = lab_preset(self.preset)
        return replace(preset, lookup=self.lookup == "on") if self.lookup else preset

    def pilot(self, seed: int) -> PilotSettings:
        """The pilot's settings of this variant."""
        grammar = answer_grammar(self.grammar, ORDERS[0])
        policy = SamplingPolicy(temperature_of(self.rule, 0.8), seed=seed, grammar=grammar)
        return PilotSettings(
            DecodeSettings(self.loaded_preset, self.rule, policy),
            LoopSettings(
                self.explain, mission=MissionSettings(max_decisions=MISSION_MAX_DECISIONS)
            ),
        )

    @property
    def label(self) -> str:
        """The preset's name, with the options that differ from the defaults."""
        usual = Variant(self.preset, self.link)
        changed = (f.name for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name))
        return " ".join([self.preset, *(f"{name}={getattr(self, name)}" for name in changed)])

    def repeats(self, other: Variant) -> bool:
        """Whether its decisions must equal those of the other variant, on the same frames."""
        exact = self.loaded_preset.exact and other.loaded_preset.exact
        same = (self.rule, self.grammar) == (other.rule, other.grammar)
        alike = self.base == other.base == IDEAL_BASE  # no step of legs is like another
        alike = alike and (self.way, self.scan) == (other.way, other.scan)
        alike = alike and self.shown == other.shown
        return exact and same and alike and self.rule != "rejection" and self.stops and other.stops

    @property
    def shown(self) -> str:
        """The obstacle that pictures show."""
        return self.way if self.seen == "on" else FREE

    @property
    def stops(self) -> bool:
        """Whether it stands for each decision, so that its frames do not depend on times."""
        return self.drive == STOP_AND_GO


@dataclass(eq=False)
class DecisionRecord:
    """One decision: when its frame was taken, its words, and the robot's motion.

    ``picture``: the digest of its frame. ``words``: each emitted text with its time. ``settled``:
    when the navigator took or refused its action. ``own``: whether its tokens equal the target's;
    None: the rule samples them. ``since``: when its motion began, the age of its frame (s), and the
    way (m) and turn (rad) made since.
    """

    begun: float
    picture: bytes = b""
    words: list[tuple[float, str]] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    action: str = ""
    settled: float = 0.0
    ended: float = 0.0
    own: bool | None = None
    since: tuple[float, float, float] | None = None

    @property
    def first_word(self) -> float:
        """When the first words came or, without any, when the decision ended; s."""
        return self.words[0][0] if self.words else self.ended


@dataclass(eq=False)
class MissionRecord:
    """One room: how its mission ended, and what the models on both sides spent.

    ``success``: the robot stopped at what it was sent to. Bytes are those of messages. ``gpu_s``,
    ``drafter_s``: how long the cloud's models and the robot's draft model were busy. ``speeds``:
    the base's in each cycle: time, m/s over ground, rad/s.
    """

    begun: float
    ended: float = 0.0
    success: bool = False
    first_motion: float | None = None
    moves: list[tuple[float, float]] = field(default_factory=list)
    speeds: list[tuple[float, float, float]] = field(default_factory=list)
    contacts: int = 0
    not_arrived: int = 0  # motions
    decisions: list[DecisionRecord] = field(default_factory=list)
    target_passes: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    gpu_s: float = 0.0
    drafter_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds from the instruction until the robot stands where it decided to stop."""
        return self.ended - self.begun

    @property
    def moving_s(self) -> float:
        """How long the base moved, s."""
        return sum(max(0.0, min(end, self.ended) - begin) for begin, end in self.moves)

    @property
    def longest_standing_s(self) -> float:
        """The longest time the base stood: before, between or after motions, s."""
        begins = [*(begin for begin, _ in self.moves), self.ended]
        ends = [self.begun, *(end for _, end in self.moves)]
        return max(begin - end for begin, end in zip(begins, ends, strict=True))


@dataclass(frozen=True, kw_only=True)
class TakenFrame(Frame):
    """A frame rendered when it is needed: when it was taken, s, from where, and the base's pose.

    ``posture``: ``posture_of`` the room at that time, if pictures show people in it.
    """

    taken: float
    eye: Eye
    pose: Pose
    posture: tuple[float, ...] = ()


class SeenRoom(ExitStack):
    """The room of this number with its renderers; for one thread, close when done."""

    def __init__(self, number: int, renderer: str = "auto") -> None:
        super().__init__()
        self.number, self.room = number, make_room(number)
        self._renderer = renderer
        self._cameras: dict[str, Camera] = {}
        self._frames: dict[tuple[Eye, str, tuple[float, ...]], bytes] = {}

    def with_way(self, way: str) -> Room:
        """The room, with the pillar if ``way`` says so."""
        return with_pillar(self.room, HALF_WAY) if way == PILLAR else self.room

    def frame(self, eye: Eye, way: str = FREE, posture: tuple[float, ...] = ()) -> bytes:
        """The camera's picture from ``eye``, as JPEG, with the obstacles of ``way``."""
        key = eye, way, posture
        if key not in self._frames:
            if way not in self._cameras:
                scene = Scene(self.with_way(way), int(way == PERSON))
                self._cameras[way] = self.enter_context(Camera(scene, self._renderer))
            if posture:
                self._cameras[way].place(posture)
            self._frames[key] = encode_jpeg(self._cameras[way].render(eye))
        return self._frames[key]


class VirtualRobot:
    """A robot and its cloud, whose measurements and lookups last from mission to mission."""

    def __init__(
        self,
        pair: EmbeddedPair,
        variant: Variant,
        cost_profile: CostProfile,
        others: Iterable[Variant] = (),
    ) -> None:
        """others: of the same run, who meet the same cloud (``draft_model_in_cloud``)."""
        self.variant, self._preset, self._pair = variant, variant.loaded_preset, pair
        read_ms = variant.look * cost_profile.draft_prefill_ms
        cost_profile = replace(cost_profile, draft_prefill_ms=read_ms).with_rtt(variant.link.rtt_ms)
        self._models = ScriptedModels(
            cost_profile,
            draft_model_in_cloud(
                cost_profile, self._preset, (other.loaded_preset for other in others)
            ),
            None,
            pair.drafter_that_keeps(variant.look),
            pair.target,
            pair.spec,
            pair.instructions,
        )
        self._harness = ScriptedHarness(self._models, variant.link)
        self.timeline = self._harness.timeline
        self._requests = map("{:x}".format, count(1))

    def carry_out(self, seen: SeenRoom) -> MissionRecord:
        """Run the mission of one room to its end."""
        timeline = self.timeline
        timeline.sleep(MISSION_PAUSE_S)
        self._record = record = MissionRecord(timeline.now)
        self._pilot = pilot = Pilot(
            self.variant.pilot(seen.number % 2**32),
            lambda _, on_receive: self._harness.robot.connect(on_receive),
            self._on_output,
            clock=timeline.clock,
            stamp_clock=lambda: stamp_of(self.timeline.now),
            requests=self._requests,
            make_inbox=self._harness.make_inbox,
        )
        pilot.use(self._harness.robot.runner)
        self._end: GoalStatus | None = None
        self._request = ""
        begun, (gpu, drafter) = len(self._models.passes), self._busy
        lidar = ObstacleSettings(scan="scan" if self.variant.scan == "on" else "")
        self._base = base = VirtualBase(
            timeline,
            make_base(
                self.variant.base,
                seen.with_way(self.variant.way),
                people=int(self.variant.way == PERSON),
            ),
            NavigatorSettings(
                drive=self.variant.drive,
                obstacles=lidar,
                allow_unverified=not self._preset.verified,
            ),
            self._on_status,
            self._on_cycle,
        )
        instruction = Instruction(seen.room.instruction)
        pilot.receive(instruction)
        base.on(instruction)
        while self._end is None:
            decide = pilot.take()
            if decide is not None:
                self._decide(seen, decide)
            else:
                timeline.step(math.inf)
        while not base.world.resting:
            timeline.step(math.inf)
        base.close()
        record.ended = max([record.ended, *(end for _, end in base.moves)])
        stopped_at = thing_in_front(seen.room, base.world.pose)
        record.success = self._end.state == "done" and stopped_at == seen.room.target
        record.first_motion = base.first_motion
        record.moves, record.contacts = base.moves, base.contacts
        record.not_arrived = base.navigator.counts["not_arrived"]
        record.target_passes = len(self._models.passes) - begun
        record.gpu_s, record.drafter_s = self._busy[0] - gpu, self._busy[1] - drafter
        return record

    @property
    def _busy(self) -> tuple[float, float]:
        """How long the cloud's models and the draft model have been busy so far, s."""
        return self._harness.link.cloud.busy.total, self._harness.robot.busy.total

    def _decide(self, seen: SeenRoom, decide: Decide) -> None:
        record, frame = self._record, decide.frame
        assert isinstance(frame, TakenFrame)
        self._request, self._frame = decide.request, frame
        jpeg = seen.frame(frame.eye, self.variant.shown, frame.posture)
        record.decisions.append(DecisionRecord(frame.taken, picture_digest(jpeg)))
        self._pilot.make(replace(decide, frame=replace(frame, jpeg=jpeg)))

    def _on_output(self, output: Output) -> None:
        match output:
            case Words():
                if not output.finished:
                    self._record.decisions[-1].words.append((self.timeline.now, output.text))
                self._base.on(replace(output, age=self.timeline.now - self._frame.taken))
            case Decided():
                self._on_decided(output)
            case GoalStatus(state) if state in MISSION_ENDS:
                self._end = output
                self._record.ended = self._record.ended or self.timeline.now
            case GoalStatus():
                self._base.on(output)

    def _on_decided(self, decided: Decided) -> None:
        record, decision, outcome = self._record, self._record.decisions[-1], decided.outcome
        assert outcome is not None, "the decision failed"
        decision.ended, decision.tokens = self.timeline.now, outcome.tokens
        if self.variant.rule == "greedy" and self.variant.grammar == "none":
            decide = decided.decide
            request = CLAUSES.request(decide.instruction, decide.frame.jpeg)
            decision.own = self._is_own(request, outcome.tokens)
        record.up_bytes += outcome.stats.up_bytes
        record.down_bytes += outcome.stats.down_bytes
        decision.action = str(decided.ended.action or "")

    def _is_own(self, request: Request, tokens: Sequence[int]) -> bool:
        """Whether these tokens are what the target alone generates."""
        target = self._pair.target
        prompt = target.prompt(request, self._pair.spec)
        prefixes = [(prompt, *tokens[:end]) for end in range(len(tokens))]
        return not tokens or bool((target.rows(prefixes).argmax(axis=1) == tokens).all())

    def _on_cycle(self) -> None:
        """Take a camera picture each cycle; a robot that must stand takes it when it stands."""
        now, world = self.timeline.now, self._base.world
        vx, vy, wz = world.velocity
        self._record.speeds.append((now, math.hypot(vx, vy), wz))
        if world.resting or self._base.navigator.status.state == "ready":
            walks = self.variant.shown == PERSON
            posture = tuple(posture_of(world.data)) if walks else ()
            frame = TakenFrame(
                b"", stamp_of(now), taken=now, eye=world.eye, pose=world.pose, posture=posture
            )
            self._pilot.receive(frame)

    def _on_status(self, status: NavigatorStatus) -> None:
        record, now = self._record, self.timeline.now
        current = record.decisions[-1] if record.decisions else None
        if current is not None and status.request == self._request:
            if not current.settled:
                current.settled = now
                if status.state == "moving":
                    current.since = self._since_frame(now)
            if status.state == "idle" and status.code is NavCode.STOP:
                record.ended = now
        self._pilot.receive(status)

    def _since_frame(self, now: float) -> tuple[float, float, float]:
        """The age of the decision's frame, and the base's distance from where it was taken."""
        then, here = self._frame.pose, self._base.world.pose
        way = math.hypot(here.x - then.x, here.y - then.y)
        return now - self._frame.taken, way, abs(wrap(here.yaw - then.yaw))
