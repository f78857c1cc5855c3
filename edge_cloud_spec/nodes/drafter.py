"""The drafter node: camera and instruction in, drafts out, verified tokens to the navigator.

``python -m edge_cloud_spec.nodes.drafter --ros-args ...``; ``pilot.Pilot`` decides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

from rclpy.time import Time
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from edge_cloud_spec.msg import FreeSpace as FreeSpaceMsg
from edge_cloud_spec.msg import NavStatus

from ..edge.decode_options import MAX_ANSWER_TOKENS
from ..edge.runner import DecodeRunner
from ..errors import UserError
from ..health import Health, Level, worst_of
from ..instruction import known_instructions
from ..models.load_drafter import load_drafter
from ..nav.e_stop import EStopMessage
from ..nav.events import EStop, Instruction, Report, Words
from ..nav.free_space import FreeSpace
from ..nav.status import IDLE, GoalStatus, NavigatorStatus
from ..pilot.decision_loop import SAME_PICTURE
from ..pilot.pilot import Decided, Output, Pilot
from ..pilot.settings import DrafterSettings
from ..throttle import Reports
from .drafting.camera import COMPRESSED, RAW, CameraWatch, encode_frame, topics_of
from .drafting.topics import DrafterTopics, RunInfo, to_decode_stats
from .runtime.heartbeat import Pulse
from .runtime.managed_node import ManagedNode
from .runtime.qos import EACH_STATE, EVERY_SENDER, RELIABLE, SENSOR_DATA
from .runtime.run import spin
from .runtime.subscription_thread import SubscriptionThread

STARTED = "the drafter has started; publish an instruction"
NOT_ACTIVE = "the drafter is not active"
HALT_S = 2.0  # s to wait for a decision that was aborted


class DrafterNode(ManagedNode):
    """Connects topics to the pilot; a separate thread makes the decisions."""

    def __init__(self) -> None:
        super().__init__("drafter")
        self._settings = self.parameters(DrafterSettings(), self._on_parameters)
        self._pilot = Pilot(
            self._settings.value.pilot,
            lambda *given: self._topics.connect(*given),
            self._publish,
            is_link_lost=lambda: bool(self._topics.link_problem),
            stamp_clock=lambda: int(self.get_clock().now().nanoseconds),
        )
        self._pilot.number = self._settings.value.first_decision
        self._run_info = RunInfo(self)
        self._reports = Reports(self.get_logger().error)
        self._camera_reports = Reports(self.get_logger().error)  # its health has them, too
        self._last_decision: dict[str, object] = {}
        self.subscribe_e_stop(self._on_e_stop)

    def load(self) -> None:
        """Load the model; raises UserError."""
        settings = self._settings.value
        if self._settings.problems:  # it would decide otherwise than it was asked to
            raise UserError("; ".join(self._settings.problems.values()))
        known = known_instructions(settings.model.source)
        model = load_drafter(settings.model)
        if settings.caution:
            self.get_logger().warning(settings.caution)
        local_spec = model.spec(MAX_ANSWER_TOKENS)
        if grammar := settings.pilot.decode.policy.grammar:  # the first decision should not wait
            model.grammar(grammar, local_spec)
        runner = DecodeRunner(
            model,
            local_spec,
            lookup_suffixes=settings.lookup_suffixes,
            instructions=known.pattern if known else None,
        )
        runner.fitted(settings.loaded_preset)  # refuse a pair that cannot work before it decides
        self._topics = DrafterTopics(self, model.tokenizer)
        self._pulse = Pulse("model", lambda: 2 * self._settings.value.reply_timeout)
        runner.on_alive = self._pulse.beat
        self.pulses.append(self._pulse)
        self._pilot.use(runner, known)
        self._thread = threading.Thread(target=self._decide, name="model", daemon=True)
        self._thread.start()
        self._pilot.pause(NOT_ACTIVE)
        self._run_info.update(settings, drafter=model.identity)
        self.get_logger().info(f"drafting with {model.identity}")

    def begin(self) -> None:
        """Subscribe to instructions, frames and the bridge's topics."""
        self._camera = CameraWatch(time.monotonic())
        self.create_subscription(CompressedImage, COMPRESSED, self._on_picture, SENSOR_DATA)
        self.create_subscription(Image, RAW, self._on_picture, SENSOR_DATA)
        self.create_subscription(NavStatus, "nav_status", self._on_status, EACH_STATE)
        if self._settings.value.loaded_dialect.tells_free_space:
            self.create_subscription(FreeSpaceMsg, "free_space", self._on_free_space, RELIABLE)
        subscriptions = self.started.enter_context(closing(SubscriptionThread(self)))
        self._topics.subscribe(subscriptions, self._pilot.lose_link)
        subscriptions.subscribe(String, "instruction", self._on_instruction, *EVERY_SENDER)
        self._pilot.pause(STARTED, IDLE)
        subscriptions.start()

    def halt(self) -> None:
        """Abort the current decision, and stop following the instruction."""
        self.started.close()
        self._pilot.pause(NOT_ACTIVE)
        self._pilot.idle.wait(HALT_S)

    def unload(self) -> None:
        """End the model's thread and free the model; raises UserError while a decision runs."""
        if not self._pilot.idle.wait(HALT_S):
            raise UserError("a decision has not ended yet; try again")
        self._pilot.use(None)
        self._thread.join(HALT_S)
        self.pulses.remove(self._pulse)
        del self._topics

    def _decide(self) -> None:
        for decide in iter(self._pilot.wait, None):
            self._topics.settings = self._settings.value
            self._pulse.beat()
            self._pilot.make(decide)
            self._pulse.rest()

    # What arrives

    def _on_parameters(self, names: frozenset[str]) -> None:
        settings = self._settings.value
        if "first_decision" in names:
            self._pilot.number = settings.first_decision
        self._pilot.settings = settings.pilot
        self._run_info.update(settings)

    def _on_instruction(self, message: String) -> None:
        self._reports.clear()
        self._pilot.receive(Instruction(message.data))

    def _on_e_stop(self, message: EStopMessage) -> None:
        self._pilot.receive(EStop(message.data))

    def _on_status(self, message: NavStatus) -> None:
        try:
            status = NavigatorStatus.read(message)
        except ValueError as error:
            self._reports.add(f"nav_status: {error}", time.monotonic())
            return
        self._pilot.receive(status)

    def _on_free_space(self, message: FreeSpaceMsg) -> None:
        self._pilot.receive(FreeSpace.read(message))

    def _on_picture(self, message: CompressedImage | Image) -> None:
        taken, jpeg, problem = int(Time.from_msg(message.header.stamp).nanoseconds), None, ""
        self._pilot.see(taken, None)  # its time, before it is encoded
        try:
            # Encoding a raw frame costs time, and without an instruction nobody needs it.
            if self._pilot.instruction or isinstance(message, CompressedImage):
                jpeg = encode_frame(message)
        except UserError as error:
            problem = str(error)
            self._camera_reports.add(problem, time.monotonic())
        self._camera.on_frame(taken, jpeg or b"", time.monotonic(), problem)
        self._pilot.see(taken, jpeg)
        if news := self._pilot.camera_clock.news():
            self.get_logger().warning(news)

    # What the pilot publishes

    def _publish(self, output: Output) -> None:
        match output:
            case Words() if self.active or output.finished:
                self._pulse.beat()
                self._topics.publish_words(output)
            case Decided():
                self._on_decided(output)
            case Report(problem):
                self._reports.add(problem, time.monotonic())
            case GoalStatus():
                self._topics.publish_status(output)

    def _on_decided(self, decided: Decided) -> None:
        stats = to_decode_stats(decided, self._topics.settings)
        self._topics.stats.publish(stats)
        if decided.outcome is None:
            return
        runner = self._pilot.runner
        assert runner is not None
        self._run_info.update(self._topics.settings, target=runner.target)
        if decided.outcome.completed:  # no earlier problem counts any more
            self._reports.clear()
            self._last_decision = {
                "decision_tokens": stats.tokens,
                "decision_acceptance": round(stats.accepted / max(1, stats.drafted), 3),
                "decision_ms": round(stats.total_ms, 1),
            }

    def diagnose(self) -> Health:
        """The instruction, and problems of camera, model or last decision."""
        now = time.monotonic()
        topics = topics_of(self, look=self._camera.missing(now))
        clock = self._pilot.camera_clock
        camera = self._camera.health(topics, now, clock.offset)
        blind = "" if camera.level in (Level.OK, Level.WARN) else str(camera)
        link = "" if self._pilot.decides_alone else self._topics.link_problem
        self._pilot.tick(blind, self.clock_problem or link)
        if not blind and self._pilot.sees_the_same:
            camera = replace(camera, level=Level.ERROR, message=SAME_PICTURE, advice="")
        return drafter_health(
            self._pilot.instruction,
            camera,
            " (the link is lost: deciding alone, unverified)" if self._pilot.decides_alone else "",
            self._thread.is_alive(),
            self._reports.recent(now),
            self._last_decision,
        )


def drafter_health(
    instruction: str,
    camera: Health,
    note: str = "",
    alive: bool = True,
    problem: str = "",
    last: Mapping[str, object] | None = None,
) -> Health:
    """The worst health of model thread, camera and last decision, with the instruction.

    ``note``: how the instruction is followed. ``alive``: whether the model's thread runs.
    ``problem``: a recent problem. ``last``: figures of the last decision.
    """
    what = f"following {instruction!r}" if instruction else "no instruction"
    found = [Health(Level.OK, what + note, values=last or {}), replace(camera, check="camera")]
    if not alive:
        advice = "see the drafter's log and restart it"
        found.append(Health(Level.ERROR, "the model's thread has ended", advice, check="model"))
    if problem:
        found.append(Health(Level.ERROR, problem, values={"last problem": problem}))
    return worst_of(found)


main = partial(spin, DrafterNode)  # runs it until a signal

if __name__ == "__main__":
    main()
