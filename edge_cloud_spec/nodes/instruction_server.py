"""The instruction server node: an instruction as a ROS action, with feedback, result and cancel.

``python -m edge_cloud_spec.nodes.instruction_server --ros-args ...``. It publishes ``instruction``
as an operator would, and reads the same topics as everybody. An instruction that comes while the
drafter still loads its models is published again once the drafter is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from rclpy.action import ActionServer, CancelResponse
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import Bool, String

from edge_cloud_spec.action import NavigateByInstruction
from edge_cloud_spec.msg import InstructionStatus, VerifiedTokens

from ..edge.events import ANSWERED
from ..health import Health, Level
from ..instruction import is_stop, normalized
from ..nav.mission import FollowedGoal, GoalEnd
from ..nav.status import IDLE, INACTIVE, GoalStatus
from ..options import Bounded, bounded
from .runtime.diagnostics import Diagnostics
from .runtime.parameters import Parameters
from .runtime.qos import DECODE, EVERY_PUBLISHER, EVERY_SENDER, RELIABLE
from .runtime.run import spin
from .runtime.subscription_thread import SubscriptionThread

ACTION_NAME = "navigate_by_instruction"
STATUSES = QoSProfile(depth=20, durability=DurabilityPolicy.TRANSIENT_LOCAL)


@dataclass(frozen=True)
class InstructionServerSettings(Bounded):
    """How long the server waits for the drafter. Raises ValueError for a field out of its range."""

    answer_timeout: float = bounded(
        5.0, 0.5, 60.0, "the drafter takes an instruction, or a stop, within so long, s"
    )
    start_timeout: float = bounded(
        240.0, 0.5, 3600.0, "an instruction waits so long for the drafter to start, s"
    )


class _Goal(FollowedGoal):
    """A goal and its client's handle."""

    def __init__(self, handle: Any, now: float, waits: str) -> None:
        super().__init__(handle.request.instruction, waits)
        self.handle = handle
        self.asked_at = now  # when the instruction, or the stop, was published


class InstructionServer(Node):
    """Serves one goal at a time; the next goal replaces it, as the next instruction does.

    A goal continues if its client disappears, as an instruction does without its operator: the
    mission's limits end it. One thread serves all callbacks; another takes what is heard ``Once``,
    with when it was sent, which Humble's executors pass to no callback.
    """

    def __init__(self) -> None:
        super().__init__("instruction_server")
        self._settings = Parameters(self, InstructionServerSettings())
        self._goal: _Goal | None = None
        self._drafter = INACTIVE  # its last state
        self._e_stop = False
        self._kept: tuple[str, float] | None = None  # instruction, and when it was received
        self._instruction = self.create_publisher(String, "instruction", RELIABLE)
        # Not one status may be missed, however fast they follow each other.
        self.create_subscription(InstructionStatus, "instruction_status", self._on_status, STATUSES)
        self.create_subscription(VerifiedTokens, "verified_tokens", self._on_words, DECODE)
        self._heard = SimpleQueue[Callable[[], None]]()
        self._wake = self.create_guard_condition(self._take_heard)
        self._subscriptions_once = SubscriptionThread(self)
        for kind, topic, callback, profiles in (
            (String, "instruction", self._on_instruction, EVERY_SENDER),
            (Bool, "e_stop", self._on_e_stop, EVERY_PUBLISHER),
        ):
            hear = partial(self._hear, callback)
            self._subscriptions_once.subscribe(kind, topic, hear, *profiles)
        Diagnostics(self).report(self._check)
        self._server = ActionServer(
            self,
            NavigateByInstruction,
            ACTION_NAME,
            lambda handle: None,  # never called: each goal is executed with a callback of its own
            handle_accepted_callback=self._on_accepted,
            cancel_callback=self._on_cancel,
        )
        self._subscriptions_once.start()

    def close(self) -> None:
        """Hear no more instructions and stops; before the node is destroyed."""
        self._subscriptions_once.close()

    def destroy_node(self) -> None:
        """With what rclpy leaves: it keeps the participant, which others would see for 20 s."""
        super().destroy_node()  # type: ignore[no-untyped-call]  # rclpy's
        self._server.destroy()

    def _hear(self, callback: Callable[[Any], None], message: Any) -> None:
        self._heard.put(partial(callback, message))
        self._wake.trigger()

    def _take_heard(self) -> None:
        while not self._heard.empty():
            self._heard.get()()

    # Goals

    def _on_accepted(self, handle: Any) -> None:
        text = handle.request.instruction
        if is_stop(text):  # never to be followed, always to be obeyed; a rejection would say no why
            self._publish(text)
            why = GoalEnd("cancelled", f"{text[:80]!r} was published: it stops the robot")
            handle.execute(lambda handle: self._result(handle, why, 0))
            return
        self._end(GoalEnd("cancelled", "another goal came"))
        waits = "" if self._is_up else "the drafter has not started yet"
        goal = self._goal = _Goal(handle, time.monotonic(), waits)
        self._publish(goal.instruction)
        self._feed(goal)

    def _on_cancel(self, handle: Any) -> CancelResponse:
        goal = self._goal
        if goal is not None and goal.handle.goal_id == handle.goal_id:
            goal.asked_at = time.monotonic()
            self._publish("stop")
        return CancelResponse.ACCEPT

    def _end(self, end: GoalEnd) -> None:
        # rclpy polls a coroutine that waits without a pause, so a goal is executed when it is over.
        goal, self._goal = self._goal, None
        if goal is not None:
            goal.handle.execute(lambda handle: self._result(handle, end, goal.decisions))

    def _result(self, handle: Any, end: GoalEnd, decisions: int) -> Any:
        if handle.is_cancel_requested:
            handle.canceled()
        elif end.outcome == "found":
            handle.succeed()
        else:
            handle.abort()
        return NavigateByInstruction.Result(
            outcome=end.outcome, message=end.message, decisions=decisions
        )

    # Before the drafter is up

    def _on_instruction(self, message: String) -> None:
        text, self._kept = normalized(message.data), None
        if self._is_up or is_stop(text):
            return
        if self._e_stop:
            self.get_logger().error(f"{text[:80]!r} is not followed: e_stop is on")
            return
        self._kept = text, time.monotonic()
        self.get_logger().info(f"{text[:80]!r} is kept until the drafter is up")

    def _on_e_stop(self, message: Bool) -> None:
        self._e_stop = message.data
        if self._e_stop and self._kept is not None:  # after a stop only a newer one counts
            self.get_logger().error(f"{self._kept[0][:80]!r} is not followed: e_stop came")
            self._kept = None

    def _on_started(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._publish(kept[0])
        if self._goal is not None:
            self._goal.asked_at = time.monotonic()

    @property
    def _is_up(self) -> bool:
        """Whether a drafter subscribes to instructions."""
        return self._finds_drafter and self._drafter != INACTIVE

    @property
    def _finds_drafter(self) -> bool:
        return bool(self.count_publishers(self.resolve_topic_name("instruction_status")))

    # What the drafter publishes

    def _on_status(self, message: InstructionStatus) -> None:
        status = GoalStatus.read(message)
        self._drafter = status.state
        if status.state == IDLE:
            self._on_started()
        if self._goal is not None:
            end = self._goal.on_status(status)
            self._feed(self._goal)
            if end is not None:
                self._end(end)

    def _on_words(self, message: VerifiedTokens) -> None:
        goal = self._goal
        answered = message.finish_reason in ANSWERED  # not one that failed
        about = (message.request_id, message.goal_id, message.answer, answered)
        if goal is not None and goal.on_words(*about):
            self._feed(goal)

    def _feed(self, goal: _Goal) -> None:
        goal.handle.publish_feedback(
            NavigateByInstruction.Feedback(
                state=goal.state, words=goal.words, decisions=goal.decisions
            )
        )

    def _check(self) -> Health:
        goal = self._goal
        if goal is not None:
            self._check_goal(goal)
        if self._kept is not None and self._waited_in_vain(self._kept[1]):
            self.get_logger().error(f"{self._kept[0][:80]!r} is not followed: no drafter is up")
            self._kept = None
        return Health(Level.OK, "no goal" if goal is None else goal.instruction)

    def _check_goal(self, goal: _Goal) -> None:
        overdue = time.monotonic() - goal.asked_at > self._settings.value.answer_timeout
        if goal.handle.is_cancel_requested and overdue:
            self._end(GoalEnd("cancelled", "stop was published, but no drafter confirmed it"))
        elif goal.state == "waiting" and self._waited_in_vain(goal.asked_at):
            self._publish("stop")  # whoever takes it now would move a robot that nobody expects to
            self._end(GoalEnd("failed", "no drafter took the instruction; does the graph run?"))
        elif goal.state == "following" and not self._finds_drafter:
            self._publish("stop")
            self._end(GoalEnd("failed", "the drafter is gone"))

    def _waited_in_vain(self, since: float) -> bool:
        settings = self._settings.value
        return time.monotonic() - since > (
            settings.answer_timeout if self._is_up else settings.start_timeout
        )

    def _publish(self, text: str) -> None:
        self._instruction.publish(String(data=text))


main = partial(spin, InstructionServer)  # runs it until a signal

if __name__ == "__main__":
    main()
