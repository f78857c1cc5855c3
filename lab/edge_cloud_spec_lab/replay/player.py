"""Plays a recording's tasks to running nodes, in place of camera, operator and navigator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from builtin_interfaces.msg import Time
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from edge_cloud_spec.bringup.graph import Value
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.instruction import normalized
from edge_cloud_spec.msg import FreeSpace, NavStatus
from edge_cloud_spec.nav.status import (
    FOLLOWING,
    GOAL_FAILED,
    NOBODY,
    STOPPED,
    UNKNOWN,
    GoalStatus,
    NavCode,
    NavigatorStatus,
)
from edge_cloud_spec.nodes.drafting.camera import COMPRESSED
from edge_cloud_spec.nodes.nav_messages import to_free_space, to_status
from edge_cloud_spec.nodes.runtime.qos import LATCHED, RELIABLE, SENSOR_DATA
from edge_cloud_spec.request import picture_digest

from ..running.observer import Observer
from ..running.run_log import Decision
from .recording import ReplayTask, opening_of

IDLE_BEFORE_PICTURE_S = 0.15  # s from "idle" to the picture
PICTURE_AGAIN_S = 1.5  # s after which a lost picture (best-effort QoS) is played again
PICTURE_TRIES = 6
ANSWER_TIMEOUT = 30.0  # s
DISCOVERY_TIMEOUT = 20.0  # s
NAMESPACE = "replay"  # no robot's: what is played here reaches no navigator
LISTEN = 1.0  # s after the drafter was found, in which whoever could move a robot is found, too
RETRACT_TIMEOUT = 3.0  # s
PUBLISHERS = {"nav_status": 1, "verified_tokens": 1, "cmd_vel": 0}
"""How many a topic has where nothing can move: the player, and the drafter."""


class NotPlayed(Exception):
    """There are no nodes to play to, or something could move; the text says what to do."""


class Player:
    """Asks for one decision after another; a context manager, used once.

    As the navigator it publishes ``moving`` between two tasks and ``idle`` before a picture, so
    that each decision is made on its own picture. Nothing moves: the topics are those of
    ``NAMESPACE``; its methods raise NotPlayed as soon as something could move there, and the
    instruction is withdrawn at the end in any case.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._instructed = False
        node = observer.node
        self._camera = node.create_publisher(CompressedImage, COMPRESSED, SENSOR_DATA)
        self._free_space = node.create_publisher(FreeSpace, "free_space", RELIABLE)
        self._status = node.create_publisher(NavStatus, "nav_status", LATCHED)
        self._instruction = node.create_publisher(String, "instruction", 10)
        self._parameters = node.create_client(SetParameters, "drafter/set_parameters")
        self._request = NOBODY
        self._set: dict[str, Value] = {}  # parameters as they were set last

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        if self._instructed:
            self._retract()

    def _retract(self) -> None:
        """Let the drafter follow nothing."""
        self._instruction.publish(String(data="stop"))
        end = time.monotonic() + RETRACT_TIMEOUT
        while self._goal.state != STOPPED and time.monotonic() < end:
            time.sleep(0.005)

    def wait_for_drafter(self) -> None:
        """Wait until the drafter can receive the topics; raises NotPlayed."""
        subscribers = self._observer.subscribers
        needed = (COMPRESSED, "instruction", "nav_status")
        heard = ("decode_request", "verdict", "verified_tokens", "decode_stats")
        count = self._observer.node.count_publishers
        if not self._wait_for(
            lambda: (
                all("drafter" in subscribers(topic) for topic in needed)
                and all(count(topic) for topic in heard)
            ),
            DISCOVERY_TIMEOUT,
        ):
            raise NotPlayed(
                f"no drafter and cloud_bridge run in /{NAMESPACE} of this ROS domain; "
                f"start them there (--ros-args -r __ns:=/{NAMESPACE}), or leave out --attach"
            )
        self._wait_for(lambda: False, LISTEN)
        self._publish_status("moving")

    def play(self, task: ReplayTask) -> Decision | str:
        """The nodes' decision on this task's picture, or why there is none. Raises UserError.

        On a busy machine the drafter may receive an earlier picture late and decide on that; then
        the picture is played again.
        """
        try:
            return self._decision_on(task)
        finally:
            self._publish_status("moving")

    def _decision_on(self, task: ReplayTask) -> Decision | str:
        for _ in range(PICTURE_TRIES):
            count = self._count()
            self._set_parameters(task.parameters)
            if task.begins and self._goal.state == FOLLOWING:
                self._retract()  # what follows must remember nothing of before
            self._instruct(task.instruction)
            self._free_space.publish(to_free_space(task.free_space))
            self._publish_status("idle")
            time.sleep(IDLE_BEFORE_PICTURE_S)
            self._publish_picture(task)
            if not self._wait_for(partial(self._has_more_than, count), PICTURE_AGAIN_S):
                continue
            self._wait_for(lambda: self._latest().finish, ANSWER_TIMEOUT)
            answer = self._latest()
            self._request = answer.request
            opening = opening_of(answer)  # its stamp is earlier by the drafter's camera_lag
            shown = [each.digest for each in opening.request.pictures][-1:] if opening else []
            if shown == [picture_digest(task.jpeg)] if opening else answer.stamp == task.stamp:
                return answer if answer.tokens else f"it ended with: {self._problem(answer)}"
        return f"no decision was made: {self._problem(None)}"

    def _problem(self, answer: Decision | None) -> str:
        known = self._observer.read(lambda log: (log.problem, log.instruction_status))
        finish = answer.finish if answer is not None else ""
        return finish or known[0] or f"the drafter says {str(known[1])!r}"

    def _publish_picture(self, task: ReplayTask) -> None:
        message = CompressedImage(format="jpeg", data=task.jpeg)
        message.header.stamp = Time(sec=task.stamp // 10**9, nanosec=task.stamp % 10**9)
        message.header.frame_id = "camera"
        self._camera.publish(message)

    def _set_parameters(self, values: Mapping[str, Value]) -> None:
        """Set the parameters that changed, and in any case the decision's number."""
        changed = {
            name: value
            for name, value in values.items()
            if name == "first_decision" or self._set.get(name) != value
        }
        parameters = [Parameter(n, value=v).to_parameter_msg() for n, v in changed.items()]
        response = self._parameters.call_async(SetParameters.Request(parameters=parameters))
        if not self._wait_for(response.done, DISCOVERY_TIMEOUT):
            raise UserError("the drafter does not answer to ros2 param set; is it ours?")
        refused = [result.reason for result in response.result().results if not result.successful]
        if refused:
            raise UserError(f"the drafter does not take the bag's parameters: {refused[0]}")
        self._set.update(changed)

    def _instruct(self, text: str) -> None:
        """Let the drafter follow the instruction again, if a decision to stop or the mission's end
        ended it."""

        def is_followed() -> bool:
            goal = self._goal
            return (goal.state, goal.instruction) == (FOLLOWING, normalized(text))

        if is_followed():
            return
        before, self._instructed = self._goal, True
        self._instruction.publish(String(data=text))

        def is_refused() -> bool:
            return self._goal.state == GOAL_FAILED and self._goal is not before

        if not self._wait_for(lambda: is_followed() or is_refused(), DISCOVERY_TIMEOUT):
            raise UserError(f"the drafter does not follow {text!r}: it says {str(self._goal)!r}")
        if is_refused():
            raise UserError(f"the drafter refuses {text!r}: {self._goal.detail}")

    @property
    def _goal(self) -> GoalStatus:
        return self._observer.read(lambda log: log.instruction_status) or GoalStatus(UNKNOWN)

    def _count(self) -> int:
        return self._observer.read(lambda run_log: len(run_log.decisions))

    def _has_more_than(self, count: int) -> bool:
        return self._count() > count

    def _latest(self) -> Decision:
        return self._observer.read(lambda run_log: next(reversed(run_log.decisions.values())))

    def _publish_status(self, state: str) -> None:
        status = NavigatorStatus(state, self._request, "replay", code=NavCode.REPLAY)
        self._status.publish(to_status(status))

    def _wait_for(self, condition: Callable[[], object], timeout: float) -> bool:
        end = time.monotonic() + timeout
        while not condition():
            self._check_that_nothing_moves()
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def _check_that_nothing_moves(self) -> None:
        node = self._observer.node
        there = [
            topic for topic, known in PUBLISHERS.items() if node.count_publishers(topic) > known
        ]
        if there or ("navigator", node.get_namespace()) in node.get_node_names_and_namespaces():
            who = f"somebody else publishes {' and '.join(there)}" if there else "a navigator runs"
            raise NotPlayed(
                f"a replay moves nothing, and in /{NAMESPACE} something could move: {who}. End it, "
                "or replay in another ROS_DOMAIN_ID"
            )
