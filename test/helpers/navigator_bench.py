"""The other side of the navigator's topics."""

from __future__ import annotations

from geometry_msgs.msg import Twist
from helpers.graph.peer import Peer
from nav_msgs.msg import Odometry
from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from std_msgs.msg import Bool, Empty, String

from edge_cloud_spec.msg import InstructionStatus, NavCommand, NavStatus, VerifiedTokens
from edge_cloud_spec.nav.answer import CLAUSES, Dialect
from edge_cloud_spec.nav.status import FOLLOWING, GoalStatus, NavigatorStatus
from edge_cloud_spec.nodes.nav_messages import to_reading


class Bench(Peer):
    """The other side of the navigator's topics, and what it has heard."""

    def __init__(self) -> None:
        super().__init__("bench")
        self.twists: list[Twist] = []
        self.commands: list[NavCommand] = []
        self.states: list[NavigatorStatus] = []
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.create_subscription(Twist, "cmd_vel", self.twists.append, 100)
        self.create_subscription(NavCommand, "nav_command", self.commands.append, 10)
        self.create_subscription(
            NavStatus, "nav_status", lambda m: self.states.append(NavigatorStatus.read(m)), latched
        )
        self.words = self.create_publisher(VerifiedTokens, "verified_tokens", 10)
        self.e_stop = self.create_publisher(Bool, "e_stop", 10)
        self.instruction = self.create_publisher(String, "instruction", 10)
        self.goal = self.create_publisher(InstructionStatus, "instruction_status", latched)
        self.odom = self.create_publisher(Odometry, "odom", qos_profile_sensor_data)
        self.hang = self.create_publisher(Empty, "hang", 10)

    def known(self) -> object:
        return self.states, len(self.twists)

    @property
    def state(self) -> NavigatorStatus:
        return self.states[-1]

    def said(self, state: str, request: str, detail: str = "") -> bool:
        now = self.state
        return (now.state, now.request) == (state, request) and now.detail.startswith(detail)

    def say(
        self,
        text: str,
        request: str,
        verified: bool = True,
        instruction: str = "",
        stops: int | None = None,
        ahead: float = 0.0,
        measured: float = 0.0,
        finish: str = "",
        dialect: Dialect = CLAUSES,
    ) -> None:
        """``instruction``: whose goal they are for (``publish``). ``stops``: None for the count
        that was heard; ``ahead``: s of the camera's clock.

        ``measured``: what the drafter took that to be.
        """
        stamp = self.get_clock().now() + Duration(seconds=ahead)
        message = VerifiedTokens(
            request_id=request,
            goal_id=instruction,
            text=text,
            answer=text,
            tokens=[1, 2],
            verified=verified,
            stops=self.state.stops if stops is None else stops,
            camera_clock_offset=measured,
            finished=True,
            finish_reason=finish,
            **to_reading(dialect.read(text, finish == "end")),
        )
        message.header.stamp = stamp.to_msg()
        self.words.publish(message)

    def publish(self, text: str) -> None:
        """Publish an instruction; the drafter, which is here as well, names its goal after it."""
        named = GoalStatus(FOLLOWING, text.strip(), goal_id=text.strip())
        self.goal.publish(InstructionStatus(**named.fields))
        self.instruction.publish(String(data=text))

    def instruct(self, text: str) -> None:
        """Publish an instruction, and wait until the robot may move for it."""
        self.publish(text)
        self.until(lambda: self.state.state == "idle")

    @property
    def turning(self) -> bool:
        return bool(self.twists) and abs(self.twists[-1].angular.z) > 0.1

    @property
    def halted(self) -> bool:
        """Stopped, and no command that was under way is still to come."""
        return len(self.twists) > 3 and not any(t.angular.z for t in self.twists[-4:])

    @property
    def still(self) -> bool:
        last = self.twists[-1]
        return last.linear.x == last.linear.y == last.angular.z == 0.0
