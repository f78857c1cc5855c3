"""``python -m helpers.killed_node navigator``: s from a node's end to the zero at the base.

The base is this process. It publishes odometry and takes ``cmd_vel`` in one thread, and its
transport is Fast DDS' own; ``FASTDDS_BUILTIN_TRANSPORTS=DEFAULT`` gives it to the nodes, too. When
the guard ends, the robot is stopped by e_stop.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import subprocess
import sys
import time

from geometry_msgs.msg import Twist
from helpers.graph.ros_domain import ros_domain
from helpers.navigator_bench import Bench
from nav_msgs.msg import Odometry
from std_msgs.msg import Bool

PERIOD = 0.02  # s, of odometry
NODES = {"navigator": ["-p", "guarded:=true", "-p", "listen:=0.2"], "stop_guard": []}


class Base(Bench):
    """Turns as it is told, and knows when it was told to stand."""

    def __init__(self) -> None:
        super().__init__()
        self.yaw, self.stood_since, self.longest_pause = 0.0, 0.0, 0.0
        self._turned_at = time.monotonic()
        self.create_subscription(Twist, "cmd_vel", self._on_twist, 100)
        self.create_timer(PERIOD, self._turn)

    def _on_twist(self, twist: Twist) -> None:
        if not twist.angular.z:
            self.stood_since = self.stood_since or time.monotonic()
        else:
            self.stood_since = 0.0

    def _turn(self) -> None:
        now = time.monotonic()
        pause, self._turned_at = now - self._turned_at, now
        self.longest_pause = max(self.longest_pause, pause)
        self.yaw += self.twists[-1].angular.z * pause if self.twists else 0.0
        odometry = Odometry()
        odometry.header.stamp = self.get_clock().now().to_msg()
        odometry.pose.pose.orientation.z = math.sin(self.yaw / 2)
        odometry.pose.pose.orientation.w = math.cos(self.yaw / 2)
        self.odom.publish(odometry)

    def begin_to_turn(self, goal: str) -> None:
        def say() -> None:
            if self.states and self.state.state == "stopped":
                self.publish(goal)
            elif self.states and self.state.state == "idle":
                self.say("action: turn left large;", str(time.monotonic()), instruction=goal)

        self.stood_since = time.monotonic()
        self.publish(goal)
        self.until(lambda: self.twists and not self.stood_since and self.turning, meanwhile=say)


def start(node: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"edge_cloud_spec.nodes.{node}", "--ros-args", *NODES[node]]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("node", choices=NODES)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--suspend", action="store_true", help="SIGSTOP, and on after 2 s")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, zeros, pauses = random.Random(args.seed), [], []
    with ros_domain(), Base() as base:
        running = {node: start(node) for node in NODES}
        try:
            for trial in range(args.trials):
                base.begin_to_turn(f"go {trial}")
                base.spin(rng.uniform(0.05, 0.4))
                if not base.turning:
                    continue
                base.longest_pause = 0.0
                ended = time.monotonic()
                running[args.node].send_signal(signal.SIGSTOP if args.suspend else signal.SIGKILL)
                if args.node == "stop_guard":
                    base.e_stop.publish(Bool(data=True))
                base.until(lambda: base.stood_since)
                zeros.append(base.stood_since - ended)
                base.spin(2.0 if args.suspend else 1.3)
                pauses.append(base.longest_pause)
                base.e_stop.publish(Bool(data=False))
                if args.suspend:
                    running[args.node].send_signal(signal.SIGCONT)
                    base.spin(0.7)
                else:
                    running[args.node].wait()
                    base.states.clear()
                    running[args.node] = start(args.node)
        finally:
            for process in running.values():
                process.kill()
    late = sum(max(pair) > 0.4 for pair in zip(zeros, pauses, strict=True))
    zeros.sort()
    print(
        f"{len(zeros)} trials, {late} with a zero, or a message of the base, later than 0.4 s; "
        f"zero after {zeros[len(zeros) // 2]:.3f} s (median), at most {zeros[-1]:.3f} s; "
        f"longest pause of the base {max(pauses):.3f} s"
    )


if __name__ == "__main__":
    main()
