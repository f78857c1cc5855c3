"""The drafter node: camera and instruction in, drafts out, verified tokens to the navigator.

``python -m edge_cloud_spec.nodes.drafter --ros-args ...``; the decoding is ``edge.DecodeRunner``.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from itertools import count

from rclpy.clock import Clock, ClockType
from std_msgs.msg import Bool, String

from edge_cloud_spec.msg import DecodeStats, VerifiedTokens

from ..edge.runner import DecodeRunner, Outcome
from ..errors import UserError
from ..instruction import check_instruction, is_stop
from ..models import EMBEDDED
from ..models.image import PictureLimits
from ..models.instruction_pattern import instruction_pattern, known_instructions
from ..models.load import load
from ..models.text import TokenTexts
from ..nav.events import Instruction, Tick
from ..nav.mission import INACTIVE, STARTED, Began, Decided, End, Failed, concluded
from ..nav.status import TOLD, Status
from ..share import rules_text
from .drafting.camera_input import CameraInput
from .drafting.decision_gate import DecisionGate
from .drafting.decision_thread import DecisionMade, DecisionThread
from .drafting.decode_stats import to_decode_stats
from .drafting.drafter_health import DrafterHealth, blindness
from .drafting.drafter_settings import DrafterSettings
from .drafting.link_policy import LINK_STATE, LinkPolicy
from .drafting.mission_status import MissionStatus
from .drafting.run_info import RunInfo
from .drafting.topic_transport import BridgeTopics
from .drafting.verified_words import VerifiedWords
from .runtime.managed_node import ManagedNode
from .runtime.qos import DECODE, EVERY_PUBLISHER, LATCHED, RELIABLE
from .runtime.run import spin
from .runtime.subscription_thread import SubscriptionThread

HALT_S = 2.0  # s to wait for a decision that was aborted
RELEASE_S = 0.5  # s at least by which an instruction may overtake the release before it
E_STOP_IS_ON = "e_stop is on; publish the instruction again after its release"


class DrafterNode(ManagedNode):
    """Callbacks only hand over what arrived; decisions are decoded in a thread of their own."""

    def __init__(self) -> None:
        super().__init__("drafter")
        self._run_info = RunInfo(self)
        self._settings = self.parameters(DrafterSettings(), self._on_parameters)
        self._numbers = count(self._settings.value.first_decision)
        self._health = DrafterHealth(self)
        self._orders = threading.Lock()  # held for one order, so that gate and mission agree
        self._e_stop = False
        self._early: tuple[str, float] | None = None  # instruction under e_stop, and since when
        self._stops = SubscriptionThread(self)
        self._stops.subscribe(Bool, "e_stop", self._on_e_stop, *EVERY_PUBLISHER)
        self._stops.start()

    def load(self) -> None:
        """Load the model; raises UserError."""
        if self._settings.problems:  # it would decide otherwise than it was asked to
            raise UserError("; ".join(self._settings.problems.values()))
        model = self._settings.value.model
        path = model.path or str(EMBEDDED / "drafter")
        self._known_instructions = known_instructions(path)
        self._model = load(
            path,
            device=model.device,
            dtype=model.dtype,
            quantize=model.quantize,
            threads=model.threads,
        )
        self._model.limit_picture(PictureLimits(model.max_pixels, model.max_image_tokens))
        local_spec = self._model.spec(rules_text(), self._settings.value.max_tokens)
        if grammar := self._settings.value.grammar_text:  # the first decision should not wait
            self._model.grammar(grammar, local_spec)
        self._runner = DecodeRunner(
            self._model,
            local_spec,
            lookup_suffixes=self._settings.value.lookup_suffixes,
            instructions=instruction_pattern(path),
        )
        self._gate = DecisionGate(
            lambda: self._settings.value.camera_lag, lambda: self._decisions.on_next()
        )
        self._verified_tokens = self.create_publisher(VerifiedTokens, "verified_tokens", DECODE)
        self._stats = self.create_publisher(DecodeStats, "decode_stats", RELIABLE)
        self._mission = MissionStatus(self, lambda: self._settings.value.mission, self._on_end)
        self._bridge = BridgeTopics(self, TokenTexts(self._model.tokenizer))
        self._link = LinkPolicy(
            self, lambda: self._settings.value.when_lost, self._abort, self._report_problem
        )
        self._decisions = DecisionThread(
            self._runner,
            self._gate,
            self._bridge,
            self._link,
            settings=lambda: self._settings.value,
            number=lambda: next(self._numbers),
            speaks=lambda: self.active,
            words=partial(VerifiedWords, self._verified_tokens, self._model.tokenizer),
            on_begin=lambda request, task: self._mission.on(Began(request, task.instruction)),
            on_end=self._on_decision,
            on_problem=self._on_failure,
        )
        self.pulses.append(self._decisions.pulse)
        self._decisions.start()
        self._mission.say("idle", INACTIVE)
        self._run_info.update(self._settings.value, drafter=self._model.identity)
        self.get_logger().info(f"drafting with {self._model.identity}")

    def begin(self) -> None:
        """Hear instructions, frames and the cloud from now on."""
        self._health.begin()
        self._camera = CameraInput(self, self._gate, self._report_problem, self._health.on_frame)
        self.create_subscription(String, "nav_status", self._on_status, LATCHED)
        subscriptions = self._subscription_thread = SubscriptionThread(self)
        self._bridge.subscribe(subscriptions)
        subscriptions.subscribe(String, "instruction", self._on_instruction, RELIABLE)
        subscriptions.subscribe(String, LINK_STATE, self._link.on_link_state, LATCHED)
        self._mission.say("idle", STARTED)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0, lambda: self._mission.on(Tick()), clock=steady)
        subscriptions.start()

    def halt(self) -> None:
        """Abort the running decision, and follow no instruction."""
        self._drop(INACTIVE)
        self._subscription_thread.close()
        with self._orders:
            self._early = None
            self._drop(INACTIVE)  # one that came in between
            self._mission.say("idle", INACTIVE)
        self._decisions.wait_idle(HALT_S)

    def unload(self) -> None:
        """End the model's thread and free the model; raises UserError while a decision runs."""
        if not self._decisions.wait_idle(HALT_S):
            raise UserError("a decision has not ended yet; try again")
        self._gate.close()
        self._decisions.join(HALT_S)
        self.pulses.remove(self._decisions.pulse)
        del self._decisions, self._runner, self._model, self._bridge

    def close(self) -> None:
        """Halt and unload for good."""
        super().close()
        self._stops.close()

    # Callbacks

    def _on_parameters(self, names: frozenset[str]) -> None:
        if "first_decision" in names:
            self._numbers = count(self._settings.value.first_decision)
        self._run_info.update(self._settings.value)

    def _on_instruction(self, message: String) -> None:
        self._health.forget_problem()
        with self._orders:
            self._early = None
            self._drop("another instruction came")
            if is_stop(message.data):
                self._mission.say("idle", TOLD)
            elif self._e_stop:  # topics arrive in no order among each other
                self._early = message.data, time.monotonic()
            else:
                self._follow(message.data)

    def _on_e_stop(self, message: Bool) -> None:
        with self._orders:
            self._e_stop = message.data
            if self._e_stop and self.configured and self._drop("e_stop"):
                self._mission.say("idle", "e_stop; publish the instruction again to go on")
            elif self._early and not self._e_stop:
                text, _ = self._early
                self._early = None
                self._follow(text)

    def _drop(self, reason: str) -> bool:
        """Follow nothing; whether something was followed. First the gate: nothing begins again."""
        followed = self._gate.clear_instruction()
        self._abort(reason)
        return followed

    def _follow(self, text: str) -> None:
        try:
            instruction = check_instruction(text, self._known_instructions)
        except UserError as error:
            self._report_problem(str(error))
            self._mission.say("failed", str(error))
            return
        self._mission.on(Instruction(instruction))
        self._gate.set_instruction(instruction)

    def _refuse_what_waits_in_vain(self) -> None:
        with self._orders:
            if self._early and time.monotonic() - self._early[1] > RELEASE_S:
                self._early = None
                self._mission.say("failed", E_STOP_IS_ON)
            if self._gate.waits_in_vain and self._drop("the robot was stopped"):
                self._mission.say("failed", "the robot was stopped; publish the instruction again")

    def _on_status(self, message: String) -> None:
        try:
            status = Status.parse(message.data)
        except ValueError as error:
            self._report_problem(f"nav_status: {error}")
            return
        self._link.on_status(status)
        self._health.on_status(status)
        self._mission.on(status)  # first: after an end no decision is due
        if self._gate.update_status(status):
            self._abort("the robot was stopped or released")

    def _on_end(self, end: End) -> None:
        self._gate.clear_instruction(end.instruction)
        self._abort("the mission is over")

    def _abort(self, reason: str) -> None:
        self._decisions.abort(reason)

    # Decisions, as the model's thread reports them

    def _on_failure(self, request_id: str, problem: str) -> None:
        self._stats.publish(DecodeStats(request_id=request_id, finish_reason="failed"))
        self._report_problem(problem)
        self._mission.on(Failed(request_id, problem))
        self._retry()

    def _retry(self, after_s: float = 0.0) -> None:
        self._gate.pause(max(self._settings.value.retry, after_s))

    def _on_decision(self, made: DecisionMade) -> None:
        outcome, settings = made.outcome, made.settings
        stamp = made.task.frame.stamp
        stats = to_decode_stats(made.request_id, stamp, settings, made.decode, outcome)
        self._stats.publish(stats)
        self._run_info.update(settings, target=self._runner.target)
        self._health.decided(stats, outcome.completed)
        self._conclude(made.request_id, made.task.instruction, outcome, made.answer)

    def _conclude(self, request_id: str, instruction: str, outcome: Outcome, answer: str) -> None:
        """The mission hears what was decided; without an action it is tried again later."""
        if outcome.reason == "aborted":
            return
        problem = ""
        if not outcome.completed:
            problem = f"no decision on {instruction!r}: {outcome.text or outcome.reason}"
            self._report_problem(problem)
        event = concluded(request_id, answer, problem, outcome.out_of_reach)
        self._mission.on(event)
        if problem or event == Decided(request_id, None):
            self._retry(outcome.retry_after_s)

    # Reports

    def _report_problem(self, problem: str) -> None:
        self._health.on_problem(problem)
        self.get_logger().error(problem)

    def diagnose(self) -> None:
        """Publish what is followed, and what is wrong with camera, model or last decision."""
        self._refuse_what_waits_in_vain()
        camera = self._health.camera(self._camera.clock_offset)
        self._mission.blind = blindness(camera)
        followed, alive = self._gate.instruction, self._decisions.alive
        self.diagnostics.show(self._health.health(followed, self._link.note, camera, alive))


def main() -> int:
    """Run the node until a signal."""
    return spin(DrafterNode)


if __name__ == "__main__":
    sys.exit(main())
