"""The pilot: the decision loop (``DecisionLoop``), and the decode of each decision.

Used by the drafter node, by the harness in virtual time, and without ROS by ``Pilot.navigate``.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..decoding.noise import decision_seed
from ..decoding.preset import Preset
from ..edge.decode_options import DecodeSettings
from ..edge.events import Abort, Cut, Emit, Inbox, OnReceive, Transport
from ..edge.runner import DecodeRunner, Outcome, decode_text
from ..errors import TRACEBACKS, UserError
from ..instruction import KnownInstructions, check_instruction, is_stop
from ..nav.answer import CLAUSES, ORDERS, REASON_FIRST, Action, Dialect
from ..nav.budget import COMMAND_PERIOD_S
from ..nav.clock_offset import SourceClock
from ..nav.events import Instruction, Odometry, Report, Tick, Words
from ..nav.history import Turn
from ..nav.navigator import TICK_GAP_S
from ..nav.pose import Pose
from ..nav.settings import NavigatorSettings
from ..nav.status import GOAL_FAILED, INACTIVE, MISSION_ENDS, STOPPED, GoalStatus
from ..throttle import Reports
from ..wire.messages import ABORTED, END
from .decision_loop import (
    EXPLAIN_FULL,
    EXPLAIN_UNTIL_NEXT,
    SAME_PICTURE,
    Decide,
    DecisionLoop,
    Ended,
    Event,
    Frame,
    LoopSettings,
    Paused,
)
from .memory import MissionMemory
from .own_base import OnScan, OnVelocity, OwnBase

if TYPE_CHECKING:
    from ..edge.picture_decoder import PictureDecoder  # with gRPC, which a drafter node never uses

_log = logging.getLogger(__name__)
DUE_POLL_S = 0.2  # longest delay of a decision that is due by time
NO_FREE_SPACE = (
    "the prompt says that free space is not seen: no lidar told of it when the frame was taken; "
    "see the navigator's obstacles.scan and obstacles.points, and the clocks"
)
LINK_LOST_ALONE = "the link is lost; the drafter decides alone"


@dataclass(frozen=True)
class PilotSettings:
    """How a pilot decides; a decision uses the settings of the moment it begins.

    ``decode``: its policy's seed is the base from which each decision's seed is derived. ``alone``:
    the preset while the link is lost; None: decisions wait for the link. ``order``: what an answer
    begins with; ``dialect``: how it is read.
    """

    decode: DecodeSettings
    loop: LoopSettings = field(default_factory=LoopSettings)
    order: str = ORDERS[0]
    alone: Preset | None = None
    dialect: Dialect = CLAUSES

    def decode_settings(self, number: int, *, alone: bool = False) -> DecodeSettings:
        """The decode settings of the ``number``-th decision; ``alone``: without the cloud."""
        policy = self.decode.policy
        policy = replace(policy, seed=decision_seed(policy.seed, number))
        preset = self.alone if alone and self.alone is not None else self.decode.preset
        return replace(self.decode, preset=preset, policy=policy)


@dataclass(frozen=True)
class Decided:
    """A finished decision: its answer and statistics; ``outcome`` is None if it failed.

    ``answer``: all its verified words. ``alone``: it was made without the cloud. ``seed``: of its
    sampling.
    """

    decide: Decide
    ended: Ended
    answer: str = ""
    outcome: Outcome | None = None
    alone: bool = False
    seed: int = 0
    history: tuple[Turn, ...] = ()


Output = Words | Decided | GoalStatus | Report
"""What a pilot publishes: ``Words`` as verdicts settle them (their ``age`` is for who receives
them), each decision's figures, what ``instruction_status`` says, and problems."""


class Pilot:
    """Call ``receive`` and ``see`` for events and frames, from any thread; ``make`` decisions in
    one thread.

    Words and decisions are published from the deciding thread, the rest from any, one at a time.
    """

    def __init__(
        self,
        settings: PilotSettings,
        connect: Callable[[Decide, OnReceive], Transport],
        publish: Callable[[Output], None] = lambda output: None,
        *,
        is_link_lost: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        stamp_clock: Callable[[], int] = time.time_ns,
        requests: Iterator[str] | None = None,
        make_inbox: Callable[[], Inbox] = Inbox,
    ) -> None:
        """connect: makes the transport of a decision. clock: monotonic, s; stamp_clock: of this
        computer's stamps, ns. requests: request ids, hexadecimal; None: random ones."""
        self._connect, self._is_link_lost = connect, is_link_lost
        self._publish: Callable[[Output], object] = _attempting(publish)
        self._clock, self._stamp_clock = clock, stamp_clock
        self._requests = requests or iter(lambda: secrets.token_hex(8), "")
        self._make_inbox = make_inbox
        self._changed = threading.Condition()  # held while events are handled
        self._loop = DecisionLoop(name=secrets.token_hex(4))
        self._memory = MissionMemory()
        self._inbox: Inbox | None = None  # of the decision under way
        self._in_cloud = False  # whether that is made in the cloud
        self._newest_stamp = 0
        self.number = 0  # of the next decision
        self.idle = threading.Event()  # set while no decision is made
        self.camera_clock = SourceClock("the camera's")
        self.runner: DecodeRunner | None = None
        self.settings = settings  # of the next decision

    @classmethod
    def of(cls, decoder: PictureDecoder, camera_lag: float = 0.0) -> Pilot:
        """A pilot that decides with this decoder, for ``navigate``.

        camera_lag: how much older a picture is than its delivery by the camera, s.
        """
        loop, options = LoopSettings(EXPLAIN_UNTIL_NEXT, lag=camera_lag), decoder.options
        settings = PilotSettings(
            decoder.settings, loop, options.order, dialect=options.loaded_dialect
        )
        pilot = cls(settings, lambda _, on_receive: decoder.client.connect(on_receive))
        pilot.use(decoder.runner, decoder.known)
        return pilot

    def use(self, runner: DecodeRunner | None, known: KnownInstructions | None = None) -> None:
        """Decide with this runner from now on; None: stop deciding, and end ``wait``.

        known: the instructions that the models understand; None: all.
        """
        with self._changed:
            self.runner, self._loop.known = runner, known
            self._changed.notify()

    @property
    def instruction(self) -> str:
        """The current instruction; empty: none."""
        return self._loop.instruction

    @property
    def decides_alone(self) -> bool:
        """Whether a decision that begins now would be made without the cloud."""
        return self.settings.alone is not None and self._is_link_lost()

    # Events

    def receive(self, event: Event) -> None:
        """Handle an Instruction, EStop, NavigatorStatus, Frame, FreeSpace or Tick: perform the
        effects."""
        with self._changed:
            self._loop.settings = self.settings.loop
            for effect in self._loop.on(event, self._clock()):
                match effect:
                    case Abort() | Cut():
                        self._send_to_decode(effect)
                    case _:
                        self._publish(effect)
            self._changed.notify()

    def see(self, stamp: int, jpeg: bytes | None) -> None:
        """Handle a camera frame with its driver's ``stamp`` (ns); ``jpeg`` None: it was not
        needed."""
        if stamp not in (0, self._newest_stamp):  # a repeated stamp says nothing
            self._newest_stamp = stamp
            self.camera_clock.receive((stamp - self._stamp_clock()) / 1e9, self._clock())
        if jpeg is not None:
            taken = max(0, stamp - round(self.settings.loop.lag * 1e9))
            self.receive(Frame(jpeg, taken, self.camera_clock.offset or 0.0))

    @property
    def sees_the_same(self) -> bool:
        """Whether no picture is new though the robot is told to move."""
        return self._loop.sees_the_same

    def tick(self, blind: str = "", trouble: str = "") -> None:
        """Call this at least once a second. ``blind``: why there is no picture to decide on;
        ``trouble``: why else nothing is decided."""
        self._loop.blind, self._loop.trouble = blind, trouble
        self.receive(Tick())

    def pause(self, why: str, state: str = INACTIVE) -> None:
        """Start (state ``idle``) or stop the pilot's work; no instruction is followed then."""
        self.camera_clock, self._newest_stamp = SourceClock("the camera's"), 0
        self.receive(Paused(why, state))

    def lose_link(self) -> None:
        """Handle a lost link. If the pilot may decide alone, a current decision in the cloud is
        aborted, and made again alone, on a newer frame."""
        if self._in_cloud and self.settings.alone is not None:
            self._send_to_decode(Abort(LINK_LOST_ALONE))

    def _send_to_decode(self, item: Abort | Cut) -> None:
        inbox = self._inbox
        if inbox is not None:
            inbox.put(item)

    # Decisions

    def take(self) -> Decide | None:
        """Begin and return the decision that is due; None if none is."""
        with self._changed:
            now, loop = self._clock(), self._loop
            loop.settings = self.settings.loop
            if self.runner is None or loop.deciding or not loop.is_due(now):
                return None
            self._inbox = self._make_inbox()
            return loop.take(next(self._requests), now)

    def wait(self) -> Decide | None:
        """Wait until a decision is due and begin it, as ``take``; None once there is no runner."""
        with self._changed:
            self.idle.set()
            while self.runner is not None:
                decide = self.take()
                if decide is not None:
                    self.idle.clear()
                    return decide
                self._changed.wait(DUE_POLL_S)
                self.receive(Tick())  # what is due by time is said in time
            return None

    def make(self, decide: Decide) -> Decided:
        """Decode a decision in the calling thread, and publish its words. A failure is reported,
        and the pilot goes on."""
        try:
            decided = self._decode(decide)
        except Exception as error:
            said = str(error) if isinstance(error, UserError) else f"a decision failed: {error!r}"
            TRACEBACKS.debug("a decision failed", exc_info=True)
            decided = Decided(decide, Ended(problem=said))
        self._publish(decided)
        cautions = decided.outcome.cautions if decided.outcome is not None else ()
        for problem in filter(None, (*cautions, decided.ended.problem)):
            self._publish(Report(problem))
        self.receive(decided.ended)
        return decided

    # On a base of one's own

    def navigate(
        self,
        instruction: str,
        camera: Callable[[], bytes],
        drive: OnVelocity,
        odometry: Callable[[], tuple[float, float, float]] | None = None,
        *,
        scan: OnScan | None = None,
        settings: NavigatorSettings | None = None,
        report: Callable[[str], object] = _log.warning,
    ) -> GoalStatus:
        """Follow an instruction on a user's base; returns how it ended: one of ``MISSION_ENDS``, or
        ``stopped``, if the instruction is a stop, or ``receive`` is given one meanwhile.

        ``camera`` returns the newest picture, a JPEG, at once. ``drive`` commands m/s ahead, m/s to
        the left and rad/s to the left, 20 times a second; if a callback hangs, another thread
        commands zero. ``odometry`` returns x, y (m) and yaw (rad); without it motions are timed.
        ``scan`` returns the newest ranges (m) and angles (rad, to the left) of a level lidar, at
        the least and at most how far it measures (m); inf where nothing is. The robot stops before
        what it shows, and nothing moves without. ``settings``: limits and steps, and the body
        (``obstacles``). ``report`` gets problems of decisions and of the base, as
        sentences, one that is repeated ever more seldom; what it raises is logged.

        However this ends, also by Ctrl-C or an exception in a callback, zero is commanded. Raises
        UserError for an invalid instruction, and for a dialect that tells free space without
        ``scan``.
        """
        settings = _promising(settings or NavigatorSettings(), scan, self.settings.dialect)
        if not is_stop(instruction):
            check_instruction(instruction, self._loop.known)
        outputs, reports = SimpleQueue[Output](), Reports(_attempting(report))
        with (
            self._deciding(outputs.put),
            OwnBase(drive, self.receive, settings, reports) as base,
        ):
            self._loop.longest_gap = TICK_GAP_S  # after which this base's navigator gives up
            base.receive(Instruction(instruction))
            self.receive(Instruction(instruction))
            while True:
                now = time.time_ns()
                if scan is not None:  # first, so that a frame finds what was seen about it
                    self.receive(base.see(now, *scan()))
                self.see(now, camera())
                if odometry is not None:
                    base.receive(Odometry(Pose(*odometry()), now))
                while not outputs.empty():
                    match output := outputs.get():
                        case Words():
                            age = (time.time_ns() - output.stamp) / 1e9
                            base.receive(replace(output, age=age))
                        case Report(problem):
                            reports.add(problem, time.monotonic())
                        case GoalStatus() if output.state in (*MISSION_ENDS, STOPPED, GOAL_FAILED):
                            return output
                        case GoalStatus():
                            base.receive(output)
                base.receive(Tick())
                self.tick()
                if self.sees_the_same:
                    reports.add(SAME_PICTURE, time.monotonic())
                time.sleep(COMMAND_PERIOD_S)

    @contextmanager
    def _deciding(self, publish: Callable[[Output], None]) -> Iterator[None]:
        """A context in which a thread decides, by a loop that has begun anew, as the navigator has
        beside it."""
        runner, known = self.runner, self._loop.known
        self._publish = publish
        self._loop = DecisionLoop(self.settings.loop, known, secrets.token_hex(4))
        model = threading.Thread(target=self._make_all, name="model")
        model.start()
        try:
            yield
        finally:
            self.pause("navigate has ended")
            self.use(None, known)
            model.join()
            self.use(runner, known)

    def _make_all(self) -> None:
        for decide in iter(self.wait, None):
            self.make(decide)

    def _decode(self, decide: Decide) -> Decided:
        assert self.runner is not None and self._inbox is not None
        settings, runner, dialect = self.settings, self.runner, self.settings.dialect
        space = self._memory.tell(decide.goal_id, decide.free_space, tells_path=dialect.tells_path)
        decide = replace(decide, free_space=space)
        said = Words(
            request=decide.request,
            position=0,
            tokens=(),
            text="",
            verified=True,
            finished=False,
            stamp=decide.frame.stamp,
            goal_id=decide.goal_id,
            instruction=decide.instruction,
            stops=decide.stops,
            camera_offset=decide.frame.clock_offset,
        )

        def on_text(emit: Emit, text: str, answer: str, reason: str) -> None:
            nonlocal said
            reading = said.reading
            if not reading.settled:
                reading = dialect.read(answer, ended=reason == END)
            said = replace(
                said,
                position=emit.position,
                tokens=emit.tokens,
                text=text,
                answer=answer,
                reading=reading,
                verified=emit.verified,
                finished=bool(reason),
                finish_reason=reason,
            )
            self._publish(said)
            if not reason:
                self.receive(reading)

        try:
            self._in_cloud = True  # set first, so that a link lost meanwhile ends the decision
            alone = self.decides_alone
            self._in_cloud = not alone
            decode = settings.decode_settings(self.number, alone=alone)
            self.number += 1
            turns = () if alone else self._memory.turns(decide.goal_id, dialect.history)
            told = space.say(dialect.free_space) if dialect.tells_free_space else ""
            if told and not space.at:
                self._publish(Report(NO_FREE_SPACE))
            request = dialect.request(
                decide.instruction, decide.frame.jpeg, settings.order, turns, told
            )
            nonce, connect = int(decide.request, 16), partial(self._connect, decide)
            outcome = decode_text(runner, request, decode, nonce, connect, on_text, self._inbox)
        finally:
            self._inbox, self._in_cloud = None, False
        ended = _ended(decide, outcome, said.reading.action)
        verified = said.verified and not alone
        if ended.action is not None:
            seen = dialect.place(said.answer) if verified else None
            complete = settings.order == REASON_FIRST or said.finish_reason == END
            absent = verified and complete and seen is None
            self._memory.act(decide.goal_id, space, ended.action, seen, absent=absent)
        if ended.action is not None and verified:
            whole = settings.loop.explain == EXPLAIN_FULL
            words = said.answer if whole else said.answer[: said.reading.end]
            self._memory.add(decide.goal_id, dialect.history, decide.frame.jpeg, words, told)
        return Decided(decide, ended, said.answer, outcome, alone, decode.policy.seed, turns)


def _promising(
    settings: NavigatorSettings, scan: OnScan | None, dialect: Dialect
) -> NavigatorSettings:
    """The settings, with a lidar where there is one. UserError: the dialect needs one."""
    if scan is not None:
        return replace(settings, obstacles=replace(settings.obstacles, scan="scan"))
    if dialect.tells_free_space:
        raise UserError(f"{dialect.without_lidar}: give navigate a scan")
    return settings


def _attempting(publish: Callable[[Any], object]) -> Callable[[Any], None]:
    """The same, but what it raises is logged, and ends neither a decision nor the pilot."""

    def attempt(output: Any) -> None:
        try:
            publish(output)
        except Exception as error:
            _log.error("publishing %s failed, going on: %r", type(output).__name__, error)
            TRACEBACKS.debug("publishing failed", exc_info=True)

    return attempt


def _ended(decide: Decide, outcome: Outcome, action: Action | None) -> Ended:
    if outcome.reason == ABORTED:
        return Ended(abandoned=True)
    problem = ""
    if not outcome.completed:
        problem = f"no decision on {decide.instruction!r}: {outcome.text or outcome.reason}"
    return Ended(action, problem, outcome.out_of_reach, outcome.retry_after_s)
