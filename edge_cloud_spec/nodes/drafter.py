"""The drafter node: camera and instruction in, drafts out, verified tokens to the navigator.

``python -m edge_cloud_spec.nodes.drafter --ros-args ...``; ``nav.DecisionLoop`` says when to decide
and on what, ``edge.DecodeRunner`` decodes.
"""

from __future__ import annotations

import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count

from builtin_interfaces.msg import Time as TimeMsg
from rclpy.node import Node
from rclpy.time import Time
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Bool, String

from edge_cloud_spec.msg import DecodeStats, NavStatus, VerifiedTokens

from ..edge.events import Abort, Cut, Emit, Inbox
from ..edge.runner import DecodeRunner, Outcome
from ..errors import UserError
from ..instruction import known_instructions
from ..models import EMBEDDED
from ..models.load_drafter import load_drafter
from ..models.prompt import Request
from ..models.tokenizer import TokenTexts
from ..nav.clock_offset import SourceClock
from ..nav.decision_loop import (
    Abandon,
    Action,
    Answered,
    Decide,
    DecisionLoop,
    Ended,
    Event,
    Paused,
    Seen,
    StopAnswering,
)
from ..nav.events import ENDED, EStop, Instruction, Report, Tick
from ..nav.mission import INACTIVE, STARTED
from ..nav.status import Status
from ..throttle import LONGEST_S, Throttle, with_more
from .drafting.camera import COMPRESSED, RAW, CameraFrame, CameraWatch, encode_frame, topics_of
from .drafting.settings import CREEP, DrafterSettings
from .drafting.topics import BridgeTopics, RunInfo, VerifiedWords, to_decode_stats
from .health import Health, Level, RecentProblem, worst_of
from .runtime.heartbeat import Pulse
from .runtime.managed_node import ManagedNode
from .runtime.qos import DECODE, EACH_STATE, LATCHED, RELIABLE, SENSOR_DATA
from .runtime.run import spin
from .runtime.subscription_thread import SubscriptionThread

PROBLEM_S = 30.0  # that a problem is told, unless a decision works before
HALT_S = 2.0  # s to wait for a decision that was aborted
POLL_S = 0.2  # s at most until a decision begins that is due because time went on
LINK_STATE = "link_state"
_FIGURES = re.compile("[0-9]+")  # by which two lines of one problem may differ
LINK_LOST = "the link is lost; the drafter decides alone"


class DrafterNode(ManagedNode):
    """The loop hears under one lock whatever arrives, and is obeyed under it.

    Decisions are decoded in a thread of their own, one after another, each with the settings of the
    moment it starts.
    """

    def __init__(self) -> None:
        super().__init__("drafter")
        self._changed = threading.Condition()  # held while the loop hears, and is obeyed
        self._loop: DecisionLoop[CameraFrame] = DecisionLoop()
        self._inbox: Inbox | None = None  # of the decision under way
        self._said = ""
        self._run_info = RunInfo(self)
        self._settings = self.parameters(DrafterSettings(), self._on_parameters)
        self._numbers = count(self._settings.value.first_decision)
        self._problem, self._throttle = RecentProblem(PROBLEM_S), Throttle(longest_s=LONGEST_S)
        self._last_decision: dict[str, object] = {}
        self._moving = False
        self.hear_e_stop(self._on_e_stop)

    def load(self) -> None:
        """Load the model; raises UserError."""
        settings = self._settings.value
        if self._settings.problems:  # it would decide otherwise than it was asked to
            raise UserError("; ".join(self._settings.problems.values()))
        model = settings.model
        path = model.path or str(EMBEDDED / "drafter")
        known = known_instructions(path)
        self._model = load_drafter(
            path,
            device=model.device,
            dtype=model.dtype,
            quantize=model.quantize,
            threads=model.threads,
            max_pixels=model.max_pixels,
            max_image_tokens=model.max_image_tokens,
            tokenizer=model.tokenizer,
            server_model=model.name,
            key_file=model.key_file,
        )
        dialect = settings.loaded_dialect
        local_spec = self._model.spec(
            dialect.system_text, settings.max_tokens, dialect.user_text, dialect.identity
        )
        if settings.grammar_text:  # the first decision should not wait
            self._model.grammar(settings.grammar_text, local_spec)
        self._runner = DecodeRunner(
            self._model,
            local_spec,
            lookup_suffixes=settings.lookup_suffixes,
            instructions=known.pattern if known else None,
        )
        self._verified_tokens = self.create_publisher(VerifiedTokens, "verified_tokens", DECODE)
        self._stats = self.create_publisher(DecodeStats, "decode_stats", RELIABLE)
        self._instruction_status = self.create_publisher(String, "instruction_status", LATCHED)
        self._bridge = BridgeTopics(self, TokenTexts(self._model.tokenizer))
        self._link = LinkPolicy(
            self, lambda: self._settings.value.when_lost, self._abort, self._report_problem
        )
        self._pulse = Pulse("model", lambda: 2 * self._settings.value.patience)
        self._runner.on_alive = self._pulse.beat
        self.pulses.append(self._pulse)
        self._loop.settings, self._loop.known = settings.loop, known
        self._unloading, self._idle = False, threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._decide_until_unloaded, name="model")
        self._thread.daemon = True
        self._thread.start()
        self._hear(Paused(INACTIVE))
        self._run_info.update(settings, drafter=self._model.identity)
        self.get_logger().info(f"drafting with {self._model.identity}")

    def begin(self) -> None:
        """Hear instructions, frames and the cloud from now on."""
        self._camera = CameraWatch(time.monotonic())
        self._camera_clock, self._newest_stamp = SourceClock("the camera's"), 0
        self.create_subscription(CompressedImage, COMPRESSED, self._on_compressed, SENSOR_DATA)
        self.create_subscription(Image, RAW, self._on_image, SENSOR_DATA)
        self.create_subscription(NavStatus, "nav_status", self._on_status, EACH_STATE)
        subscriptions = self._subscription_thread = SubscriptionThread(self)
        self._bridge.subscribe(subscriptions)
        subscriptions.subscribe(String, "instruction", self._on_instruction, RELIABLE)
        subscriptions.subscribe(String, LINK_STATE, self._link.on_link_state, LATCHED)
        self._hear(Paused(STARTED))
        subscriptions.start()

    def halt(self) -> None:
        """Abort the running decision, and follow no instruction."""
        self._abort(INACTIVE)
        self._subscription_thread.close()
        self._hear(Paused(INACTIVE))
        self._idle.wait(HALT_S)

    def unload(self) -> None:
        """End the model's thread and free the model; raises UserError while a decision runs."""
        if not self._idle.wait(HALT_S):
            raise UserError("a decision has not ended yet; try again")
        with self._changed:
            self._unloading = True
            self._changed.notify()
        self._thread.join(HALT_S)
        self.pulses.remove(self._pulse)
        del self._runner, self._model, self._bridge

    # The loop

    def _hear(self, event: Event[CameraFrame]) -> None:
        with self._changed:
            for action in self._loop.on(event, time.monotonic()):
                self._carry_out(action)
            self._changed.notify()

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Abandon):
            self._abort(action.reason)
        elif isinstance(action, StopAnswering):
            if self._inbox is not None:
                self._inbox.put(Cut())
        elif isinstance(action, Report):
            self._report_problem(action.problem)
        else:
            self._say(str(action))

    def _abort(self, reason: str) -> None:
        inbox = self._inbox
        if inbox is not None:
            inbox.put(Abort(reason))

    def _say(self, line: str) -> None:
        if line.partition(": ")[0] != self._said.partition(": ")[0]:  # else only the trouble is new
            self.get_logger().info(f"instruction_status: {line}")
        self._said = line
        self._instruction_status.publish(String(data=line))

    # Callbacks

    def _on_parameters(self, names: frozenset[str]) -> None:
        settings = self._settings.value
        if "first_decision" in names:
            self._numbers = count(settings.first_decision)
        with self._changed:
            self._loop.settings = settings.loop
        self._run_info.update(settings)

    def _on_instruction(self, message: String) -> None:
        self._problem.clear()
        self._hear(Instruction(message.data))

    def _on_e_stop(self, message: Bool) -> None:
        self._hear(EStop(message.data))

    def _on_status(self, message: NavStatus) -> None:
        try:
            status = Status.read(message)
        except ValueError as error:
            self._report_problem(f"nav_status: {error}")
            return
        self._link.on_status(status)
        self._moving = status.state in ("moving", "ready")
        self._hear(status)

    def _on_compressed(self, message: CompressedImage) -> None:
        self._hand_over(message.data.tobytes(), self._hear_stamp(message.header.stamp))

    def _on_image(self, message: Image) -> None:
        stamp, jpeg = self._hear_stamp(message.header.stamp), None
        try:
            if self._loop.instruction:  # encoding costs time, and nobody else needs the frame
                jpeg = encode_frame(message)
        except UserError as error:
            self._report_problem(str(error))
        self._hand_over(jpeg, stamp)

    def _hear_stamp(self, stamp: TimeMsg) -> int:
        taken = Time.from_msg(stamp).nanoseconds
        if taken not in (0, self._newest_stamp):  # a stamp that stands still tells nothing
            self._newest_stamp = taken
            ahead = (taken - self.get_clock().now().nanoseconds) / 1e9
            self._camera_clock.hear(ahead, time.monotonic())
        news = self._camera_clock.news()
        if news:
            self.get_logger().warning(news)
        return int(taken)

    def _hand_over(self, jpeg: bytes | None, stamp: int) -> None:
        """A frame came, by its driver's ``stamp`` (ns); None: nobody needs it."""
        self._camera.on_frame(stamp, jpeg or b"", time.monotonic())
        if jpeg is not None:
            lag = round(self._settings.value.camera_lag * 1e9)
            taken = Time(nanoseconds=max(0, stamp - lag)).to_msg()
            self._hear(Seen(CameraFrame(jpeg, taken, self._camera_clock.offset or 0.0)))

    # Decisions, in the model's thread

    def _decide_until_unloaded(self) -> None:
        while (decide := self._next_decision()) is not None:
            try:
                ended = self._decide(decide)
            except UserError as error:
                ended = self._failed(decide, str(error))
            except Exception as error:  # a decision may fail; the node continues
                ended = self._failed(decide, f"a decision failed: {error!r}")
            self._hear(ended)
            self._idle.set()

    def _next_decision(self) -> Decide[CameraFrame] | None:
        """Wait until a decision is due; None once the model is to be freed."""
        with self._changed:
            while not self._unloading:
                decide = self._loop.take(secrets.token_hex(8), time.monotonic())
                if decide is not None:
                    self._inbox = Inbox()
                    self._idle.clear()
                    return decide
                self._changed.wait(POLL_S)
            return None

    def _decide(self, decide: Decide[CameraFrame]) -> Ended:
        settings, frame, inbox = self._settings.value, decide.frame, self._inbox
        words = VerifiedWords(self._verified_tokens, self._model.tokenizer, decide)
        connect = partial(self._bridge.connect, decide.request, frame.stamp, settings)

        def on_emit(emit: Emit) -> None:
            if not self.active:
                return
            self._pulse.beat()
            words.emit(emit)
            self._bridge.restart_draft_time()
            self._hear(Answered(words.answer))

        self._pulse.beat()
        reason = "failed"
        try:
            without_cloud = self._link.begin()
            decode = settings.decode_settings(next(self._numbers), without_cloud=without_cloud)
            request = Request(decide.instruction, frame.jpeg, settings.order)
            nonce = int(decide.request, 16)
            outcome = self._runner.run(request, decode, nonce, connect, on_emit, inbox)
            reason = outcome.reason
        finally:
            self._inbox = None
            self._link.end()
            words.finish(reason)
            self._pulse.rest()
        stats = to_decode_stats(decide, settings, decode, outcome)
        self._stats.publish(stats)
        self._run_info.update(settings, target=self._runner.target)
        if outcome.completed:  # no earlier problem counts any more
            self._problem.clear()
            self._last_decision = {
                "decision_tokens": stats.tokens,
                "decision_acceptance": round(stats.accepted / max(1, stats.drafted), 3),
                "decision_ms": round(stats.total_ms, 1),
            }
        return self._ended(decide.instruction, outcome, words.answer)

    def _ended(self, instruction: str, outcome: Outcome, words: str) -> Ended:
        if outcome.reason == "aborted":
            return Ended(abandoned=True)
        problem = ""
        if outcome.stats.failure:
            self._report_problem(f"the cloud went on alone: {outcome.stats.failure}")
        if not outcome.completed:
            problem = f"no decision on {instruction!r}: {outcome.text or outcome.reason}"
            self._report_problem(problem)
        whole = outcome.reason == ENDED
        return Ended(words, problem, outcome.out_of_reach, outcome.retry_after_s, whole=whole)

    def _failed(self, decide: Decide[CameraFrame], problem: str) -> Ended:
        self._stats.publish(DecodeStats(request_id=decide.request, finish_reason="failed"))
        self._report_problem(problem)
        return Ended(problem=problem)

    # Reports

    def _report_problem(self, problem: str) -> None:
        now = time.monotonic()
        self._problem.report(problem, now)
        left_out = self._throttle.admit(_FIGURES.sub("", problem), now)
        if left_out is not None:
            self.get_logger().error(with_more(problem, left_out))

    def diagnose(self) -> Health:
        """What is followed, and what is wrong with camera, model or last decision."""
        now = time.monotonic()
        topics = topics_of(self, look=self._camera.missing(now))
        camera = self._camera.health(topics, self._moving, now, self._camera_clock.offset)
        self._loop.blind = "" if camera.level in (Level.OK, Level.WARN) else str(camera)
        self._hear(Tick())
        return drafter_health(
            self._loop.instruction,
            camera,
            self._link.note,
            self._thread.is_alive(),
            self._problem.text(now),
            self._last_decision,
        )


class LinkPolicy:
    """What the drafter does while the link to the cloud is lost: wait, or decide alone (``creep``).

    It follows the topic ``link_state``. ``abort`` is called with the reason when a decision in the
    cloud is under way and the link is lost: its session waits in the cloud for a robot that
    resumes, but this one decides anew, on a newer frame. ``report`` is called with a sentence when
    creeping cannot move the robot.
    """

    def __init__(
        self,
        node: Node,
        when_lost: Callable[[], str],
        abort: Callable[[str], None],
        report: Callable[[str], None],
    ) -> None:
        self._node, self._when_lost = node, when_lost
        self._topic = node.resolve_topic_name(LINK_STATE)
        self._abort, self._report = abort, report
        self._heard = self._lost = False
        self._in_cloud = False  # a decision is under way there

    def on_link_state(self, message: String) -> None:
        """The bridge says how good the link is."""
        self._heard = True
        self._lost = message.data.split(" ")[0] == "lost"
        if self._lost and self._in_cloud and self._when_lost() == CREEP:
            self._abort(LINK_LOST)

    def on_status(self, status: Status) -> None:
        """The navigator's status: whether it takes what is not verified."""
        if self.without_cloud and "allow_unverified" in status.detail:
            self._report(
                "when_lost is creep, but the navigator does not move on unverified words; set its "
                "parameter allow_unverified too, or when_lost to stop"
            )

    @property
    def without_cloud(self) -> bool:
        """Whether a decision that begins now is made without the cloud."""
        if self._when_lost() != CREEP:
            return False
        gone = self._heard and not self._node.count_publishers(self._topic)  # the bridge itself
        return self._lost or gone

    @property
    def note(self) -> str:
        """A note for ``/diagnostics``, after the instruction."""
        return " (the link is lost: deciding alone, unverified)" if self.without_cloud else ""

    def begin(self) -> bool:
        """A decision begins; whether it is made without the cloud."""
        self._in_cloud = True  # first: a link that is lost meanwhile ends it
        without_cloud = self.without_cloud
        self._in_cloud = not without_cloud
        return without_cloud

    def end(self) -> None:
        """The decision is over."""
        self._in_cloud = False


def drafter_health(
    instruction: str,
    camera: Health,
    note: str = "",
    alive: bool = True,
    problem: str = "",
    last: Mapping[str, object] | None = None,
) -> Health:
    """The worst of the model's thread, the camera and the last decision; else what is followed.

    ``note``: how the instruction is followed. ``alive``: whether the model's thread is.
    ``problem``: the last one, while it is recent. ``last``: figures of the last decision.
    """
    what = f"following {instruction!r}" if instruction else "no instruction"
    found = [Health(Level.OK, what + note, values=last or {}), replace(camera, check="camera")]
    if not alive:
        said, advice = "the model's thread has ended", "see the drafter's log and restart it"
        found.append(Health(Level.ERROR, said, advice, check="model"))
    if problem:
        found.append(Health(Level.ERROR, problem, values={"last problem": problem}))
    return worst_of(found)


def main() -> int:
    """Run the node until a signal."""
    return spin(DrafterNode)


if __name__ == "__main__":
    sys.exit(main())
