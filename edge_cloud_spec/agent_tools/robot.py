"""The robot as an operator's program reaches it: the action, the topic ``instruction``, statuses.

A thread of ROS notes the newest message of each topic; an asyncio loop looks at them. So a stop
waits for nothing: it is published where it is asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from rclpy.action import ActionClient
from rclpy.exceptions import InvalidTopicNameException
from rclpy.validate_topic_name import validate_topic_name
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from edge_cloud_spec.action import NavigateByInstruction
from edge_cloud_spec.msg import InstructionStatus, LinkState, NavStatus

from ..bringup.graph import camera_renames
from ..edge.link.state import LinkReport
from ..errors import UserError, refuse
from ..nav.status import FOLLOWING, GoalStatus, NavigatorStatus
from ..nodes.drafting.camera import COMPRESSED, RAW, encode_frame
from ..nodes.instruction_server import ACTION_NAME
from ..nodes.runtime.node_thread import NodeThread
from ..nodes.runtime.qos import EACH_STATE, RELIABLE, SENSOR_DATA
from ..nodes.runtime.transport import udp_alone

LOOK_S = 0.02  # between two looks at what has come
GRAPH_S = 0.25  # between two looks for the instruction server, whose goal is followed
FIND_S = 5.0  # within which the graph is discovered
HEAR_S = 0.5  # within which each node that was found says its state
STOP_S, STOP_AGAIN_S = 5.0, 0.25  # within which a stop is confirmed; between two until then
# Within which the instruction server answers a cancel; then "stop" is published, and waited on.
CANCEL_S, GIVE_UP_S = 0.25, 2.0
PICTURE_S = 3.0  # within which a camera sends a picture
NO_ROBOT = (
    "no robot is there: start its launch (ros2 launch edge_cloud_spec go2_nav.launch.py), and give "
    "this program the same ROS_DOMAIN_ID, and --namespace"
)


class ActionGoal:
    """A goal of the action, for these instruction servers. ``feedback`` is its newest; ``result``
    is None until it has ended. ``cancelled``: what a server answers to a cancel; False: it does not
    know the goal, as one that was started again.

    The thread of ROS owns it; others read.
    """

    def __init__(
        self,
        client: ActionClient,
        text: str,
        servers: frozenset[bytes],
        run: Callable[..., object],
    ) -> None:
        """run: has the thread of ROS call a function."""
        self.servers = servers
        self.feedback: Any = None
        self.result: Any = None
        self.cancelled: bool | None = None
        self._run, self._to_cancel = run, False
        self._handle: Any = None
        goal = NavigateByInstruction.Goal(instruction=text)

        def send() -> None:
            client.send_goal_async(goal, self._on_feedback).add_done_callback(self._on_accepted)

        run(send)

    def cancel(self) -> None:
        """Cancel it, once it is accepted."""
        self._run(self._cancel)

    def _cancel(self) -> None:
        self._to_cancel = True
        if self._handle is not None:
            self._handle.cancel_goal_async().add_done_callback(self._on_cancelled)

    def _on_accepted(self, future: Any) -> None:
        self._handle = future.result()
        if not self._handle.accepted:
            said = "the instruction server refuses it: see its log"
            self.result = NavigateByInstruction.Result(outcome="failed", message=said)
            return
        self._handle.get_result_async().add_done_callback(self._on_result)
        if self._to_cancel:
            self._cancel()

    def _on_feedback(self, message: Any) -> None:
        self.feedback = message.feedback

    def _on_cancelled(self, future: Any) -> None:
        self.cancelled = bool(future.result().goals_canceling)

    def _on_result(self, future: Any) -> None:
        self.result = future.result().result


class RobotGraph:
    """The robot's graph; its coroutines are for one asyncio loop.

    ``navigator``, ``goal`` and ``link`` are the newest statuses, None before the first; ``action``
    is the last one that was carried out.
    """

    def __init__(self, namespace: str = "", camera: str = "") -> None:
        """camera: its topic, as the launch's. Raises UserError for names that are none."""
        renames = camera_renames(camera)
        try:
            validate_topic_name(renames.get(RAW, RAW))
        except InvalidTopicNameException:
            raise UserError(f"--camera {camera!r:.80} is no name of a topic") from None
        with udp_alone():  # an agent may kill its tools
            self._thread = NodeThread("agent_tools", namespace, renames=renames)
        self._node = self._thread.node
        self.navigator: NavigatorStatus | None = None
        self.goal: GoalStatus | None = None
        self.link: LinkReport | None = None
        self.action = ""
        self._goals = set[ActionGoal]()
        self._cancelling = set[ActionGoal]()  # of these
        self._stops = 0  # that were asked for
        self._closed = False
        self._kept = set[asyncio.Task[Any]]()  # which go on though who asked for them is gone
        self._instruction = self._node.create_publisher(String, "instruction", RELIABLE)
        self._client = ActionClient(self._node, NavigateByInstruction, ACTION_NAME)
        for kind, topic, hear in (
            (NavStatus, "nav_status", self._on_navigator),
            (InstructionStatus, "instruction_status", self._on_goal),
            (LinkState, "link_state", self._on_link),
        ):
            self._node.create_subscription(kind, topic, hear, EACH_STATE)
        self._thread.start()

    async def close(self) -> None:
        """Cancel the goals that are followed, and end the node."""
        self._closed = True
        for goal in self._goals:
            self._keep(self._cancel(goal))
        while self._kept:
            await asyncio.wait(self._kept)
        self._thread.close()
        self._client.destroy()  # it keeps the participant, which others would see for 20 s more

    async def follow(
        self,
        text: str,
        on_feedback: Callable[[Any], Awaitable[None]],
        is_wanted: Callable[[], bool],
    ) -> Any:
        """The action's result for an instruction; raises UserError where there is no robot.

        It is cancelled where this coroutine is, and where ``is_wanted`` says so.
        """
        stops = self._stops
        is_there = await _until(
            lambda: self._client.server_is_ready() and bool(self._servers()), FIND_S
        )
        refuse(
            (not is_there, NO_ROBOT),
            (
                stops != self._stops,
                "a stop came before the instruction was given: it was not given",
            ),
            (self._closed, "this MCP server ends: the instruction was not given"),
        )
        servers = self._servers()
        goal, told = ActionGoal(self._client, text, servers, self._run), None
        self._goals.add(goal)
        looked = time.monotonic()
        try:
            while goal.result is None:
                if time.monotonic() > looked + GRAPH_S:
                    if not self._servers() <= servers or not await _until(
                        self._client.server_is_ready, GIVE_UP_S
                    ):
                        self._instruction.publish(String(data="stop"))
                        raise UserError(
                            "the instruction server is gone, or was started again; stop was "
                            "published"
                        )
                    looked = time.monotonic()
                if not is_wanted():
                    raise UserError("who asked for it is gone: it was cancelled")
                if told is not goal.feedback:
                    await on_feedback(told := goal.feedback)
                await asyncio.sleep(LOOK_S)
            return goal.result
        finally:
            self._keep(self._cancel(goal))

    async def stop(self) -> NavigatorStatus:
        """Stop the robot; returns what the navigator says once it has stopped it.

        Raises UserError where it does not say so: the robot may move. It is carried out though who
        asked for it is gone.
        """
        self._stops += 1
        return await asyncio.shield(self._keep(self._stop()))

    async def look(self) -> bytes:
        """The camera's next picture, as JPEG or PNG; raises UserError where none comes."""
        found: list[CompressedImage | Image] = []
        names = {topic: self._node.resolve_topic_name(topic) for topic in (COMPRESSED, RAW)}
        count = self._node.count_publishers
        await _until(lambda: any(map(count, names.values())), FIND_S)
        kind, topic = (CompressedImage, COMPRESSED) if count(names[COMPRESSED]) else (Image, RAW)
        heard = self._node.create_subscription(kind, topic, found.append, SENSOR_DATA)
        try:
            if not await _until(lambda: bool(found), PICTURE_S):
                raise UserError(
                    f"no picture came on {names[topic]}: start the camera's driver, or give "
                    "--camera"
                )
        finally:
            # In that thread: if one that it waited for is gone, Humble's executor calls no more.
            self._run(lambda: self._node.destroy_subscription(heard))
        return encode_frame(found[-1])

    async def find(self) -> bool:
        """Whether a navigator is there; waits for what it and the others say."""
        found = await _until(self._has_navigator, FIND_S)
        await _until(lambda: self.goal is not None and self.link is not None, HEAR_S)
        return found

    def _has_navigator(self) -> bool:
        publishers = self._node.count_publishers(self._node.resolve_topic_name("nav_status"))
        return publishers > 0 and self.navigator is not None

    async def _stop(self) -> NavigatorStatus:
        for goal in self._goals:
            goal.cancel()
        before, end = self.navigator, time.monotonic() + STOP_S

        def is_confirmed() -> bool:
            now = self.navigator
            is_new = now is not None and before is not None and now.stops != before.stops
            return is_new and now is not None and now.state == "stopped"

        def is_obeyed() -> bool:  # also by the drafter, which may not have been discovered before
            goal = self.goal
            return is_confirmed() and goal is not None and goal.state != FOLLOWING

        on_its_way = True
        while time.monotonic() < end:
            # What is on its way to the instruction server would end a stop that came before it.
            on_its_way = not all(map(self._is_over, self._goals))
            before = self.navigator
            self._instruction.publish(String(data="stop"))
            if await _until(is_obeyed, STOP_AGAIN_S):
                if not on_its_way:
                    break
                await asyncio.sleep(STOP_AGAIN_S)
        if is_confirmed() and not on_its_way and self.navigator is not None:
            return self.navigator
        if not self._has_navigator():
            raise UserError(f"NOT CONFIRMED: stop was published, but {NO_ROBOT}")
        raise UserError(
            f"NOT CONFIRMED: stop was published, but no navigator said within {STOP_S:g} s that "
            "the robot has stopped. It may move: use e_stop"
        )

    async def _cancel(self, goal: ActionGoal) -> None:
        """Cancel a goal that has not ended; where nobody does that at once, stop the robot."""
        if goal in self._cancelling:  # its agent is gone, and then this program ends
            return
        self._cancelling.add(goal)
        if goal.result is None:
            goal.cancel()
        await _until(lambda: self._is_over(goal), CANCEL_S)
        if not goal.cancelled and goal.result is None:
            self._instruction.publish(String(data="stop"))
            await _until(lambda: self._is_over(goal), GIVE_UP_S)
        self._cancelling.discard(goal)
        if self._is_over(goal):  # else no stop is confirmed: it may still be on its way
            self._goals.discard(goal)

    def _is_over(self, goal: ActionGoal) -> bool:
        """Whether it can make the robot move no more, or not after another stop."""
        answered = goal.cancelled is not None or goal.result is not None
        return answered or not self._servers() & goal.servers

    def _servers(self) -> frozenset[bytes]:
        """The instruction servers, by what only they publish; one that is gone is there for a
        while."""
        topic = self._node.resolve_topic_name(f"{ACTION_NAME}/_action/feedback")
        found = self._node.get_publishers_info_by_topic(topic)
        return frozenset(bytes(info.endpoint_gid) for info in found)

    def _keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task

    def _run(self, job: Callable[[], object]) -> None:
        if self._node.executor is not None:  # before the end
            self._node.executor.create_task(job)

    def _on_navigator(self, message: NavStatus) -> None:
        with suppress(ValueError):  # of another version
            self.navigator = status = NavigatorStatus.read(message)
            self.action = str(status.action or self.action)

    def _on_goal(self, message: InstructionStatus) -> None:
        self.goal = GoalStatus.read(message)

    def _on_link(self, message: LinkState) -> None:
        with suppress(ValueError):
            self.link = LinkReport.read(message)


async def _until(what: Callable[[], bool], seconds: float) -> bool:
    """Whether this holds within so long."""
    end = time.monotonic() + seconds
    while not (holds := what()) and time.monotonic() < end:
        await asyncio.sleep(LOOK_S)
    return holds
