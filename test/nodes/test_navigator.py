"""The navigator node in a process of its own, over real topics."""

from __future__ import annotations

import signal
import threading
import time
from itertools import count
from typing import Any

import pytest

pytest.importorskip("rclpy")
import rclpy
from helpers.navigator_bench import PATIENCE, Bench
from nav_msgs.msg import Odometry
from std_msgs.msg import Bool, Empty, String

from edge_cloud_spec.msg import NavCommand, VerifiedTokens
from edge_cloud_spec.nodes.navigator import NavigatorNode

# All that the executor can do is taken, and the lock with it: only the watchdog is left.
HANGING = """
import sys, time
from std_msgs.msg import Empty
from edge_cloud_spec.nodes.navigator import NavigatorNode
from edge_cloud_spec.nodes.runtime.run import spin

class Hanging(NavigatorNode):
    def __init__(self):
        super().__init__()
        self.create_subscription(Empty, "hang", self.hang, 10)

    def hang(self, message):
        with self._lock:
            time.sleep(60)

sys.exit(spin(Hanging))
"""


def test_verified_words_move_and_e_stop_and_stop_end_it(bench: Bench, start: Any) -> None:
    process = start()
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.turning and bench.commands)
    assert bench.commands[0].text == "turn left large" and bench.commands[0].verified
    assert bench.commands[0].action == NavCommand.TURN

    bench.e_stop.publish(Bool(data=True))
    bench.until(lambda: bench.halted and bench.said("stopped", "r1"))
    moved = len(bench.twists)
    bench.say("action: turn left large;", "r2")
    bench.until(lambda: bench.said("stopped", "r2"))
    assert not any(abs(twist.angular.z) > 0 for twist in bench.twists[moved:])

    bench.e_stop.publish(Bool(data=False))
    bench.until(lambda: bench.said("stopped", "r2", "released; publish an instruction"))
    bench.instruction.publish(String(data="find it"))
    bench.until(lambda: bench.said("idle", "r2", "released"))
    bench.say("action: search;", "r3", instruction="find it")
    bench.until(lambda: bench.turning)
    bench.instruction.publish(String(data="stop"))
    bench.until(lambda: bench.halted and bench.said("stopped", "r3", "told to stop"))

    bench.instruction.publish(String(data="find it"))
    bench.until(lambda: bench.states[-1].startswith("idle"))
    bench.say("exception: cannot move forward small;", "r4", instruction="find it")
    bench.until(lambda: bench.said("idle", "r4", "refused: 'exception:"))
    bench.say("action: move forward small;", "r5", verified=False, instruction="find it")
    bench.until(lambda: bench.said("idle", "r5", "refused: its words are not verified"))
    bench.until(lambda: len(bench.commands) >= 2)
    assert [command.request_id for command in bench.commands] == ["r1", "r3"]

    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "Traceback" not in errors


def test_old_decisions_move_nothing_whatever_the_clocks_say(bench: Bench, start: Any) -> None:
    start()
    probes = count()

    def instructed() -> bool:
        """Words that move nothing, as their count is no one's, and are refused for what they say
        they are for once an instruction was heard."""
        probe = f"probe{next(probes)}"
        bench.say("action: turn left large;", probe, instruction="find the door", stops=0)
        bench.until(lambda: bench.said("idle", probe, "refused: "))
        return bench.said("idle", probe, "refused: it was decided for another")

    bench.instruction.publish(String(data="find the cup "))
    bench.until(instructed)  # topics have no common order: the release below must not overtake it
    before, last = bench.state.stops, bench.state.request
    bench.e_stop.publish(Bool(data=True))
    bench.until(lambda: bench.said("stopped", last))
    during = bench.state.stops
    bench.e_stop.publish(Bool(data=False))
    bench.until(lambda: bench.said("stopped", last, "released"))
    released = bench.state.stops
    bench.instruction.publish(String(data="find the cup"))
    bench.until(lambda: bench.said("idle", last, "released"))
    assert len({before, during, released, bench.state.stops}) == 4

    turn, cup = "action: turn left large;", "find the cup"
    for number, stops in enumerate((before, during, released, 0, bench.state.stops + 1)):
        bench.say(turn, f"old{number}", instruction=cup, stops=stops, ahead=0.4)
        bench.until(lambda n=number: bench.said("idle", f"old{n}", "refused: its frame is from"))
    bench.instruction.publish(String(data="stop"))
    bench.until(lambda: bench.state.state == "stopped")
    bench.instruction.publish(String(data="find the door"))
    bench.until(lambda: bench.state.state == "idle")
    bench.say(turn, "now", instruction="find the door", ahead=0.4)
    bench.until(lambda: bench.turning and bench.commands)
    bench.until(lambda: bench.said("idle", "now"))
    bench.say(turn, "another", instruction=cup, ahead=0.4)
    bench.until(lambda: bench.said("idle", "another", "refused: it was decided for another"))
    assert [command.request_id for command in bench.commands] == ["now"]


def test_refusals_without_end_do_not_fill_the_log_nor_block_whom_nobody_reads(
    bench: Bench, start: Any
) -> None:
    process = start()  # its standard error is a pipe, and unread it takes 64 KB
    for number in range(600):
        bench.say(f"{'x' * 100};", f"bad{number}")
        if number % 8 == 7:  # more of them than lines a second, however slow the machine is
            bench.until(lambda n=number: bench.said("idle", f"bad{n}", "refused"))
    time.sleep(1.1)  # a second in which others are written has begun
    bench.say("no;", "last")
    bench.until(lambda: bench.said("idle", "last", "refused"))
    bench.say("action: turn left large;", "good")
    bench.until(lambda: bench.turning)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert 0 < errors.count("moves nothing") < 600 and "more of these" in errors


def test_a_navigator_that_was_started_again_counts_from_elsewhere(bench: Bench, start: Any) -> None:
    process = start()
    before = bench.state.stops
    process.kill()
    process.wait()
    bench.states.clear()
    start()
    assert bench.state.stops != before
    bench.say("action: turn left large;", "r1", stops=before, ahead=0.4)
    bench.until(lambda: bench.said("idle", "r1", "refused: its frame is from before"))
    assert not bench.commands


def test_a_navigator_that_ends_in_motion_says_zero_last(bench: Bench, start: Any) -> None:
    process = start()
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.turning)
    process.send_signal(signal.SIGTERM)
    bench.until(lambda: process.poll() is not None and bench.still)
    assert process.returncode == 0


def test_the_watchdog_stops_the_robot_when_the_executor_hangs(bench: Bench, start: Any) -> None:
    process = start(program=["-c", HANGING])
    bench.until(lambda: bench.hang.get_subscription_count())
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.turning)
    bench.hang.publish(Empty())
    bench.until(lambda: bench.still)
    process.kill()
    assert bench.states[-1].startswith("moving"), "not the navigator's own doing"


def test_odometry_closes_the_loop(bench: Bench, start: Any) -> None:
    start("-p", "odometry:=required", "-p", "odometry_timeout:=5.0")
    stand = Odometry()
    stand.pose.pose.orientation.w = 1.0

    def blocked() -> bool:
        stand.header.stamp = bench.get_clock().now().to_msg()
        bench.odom.publish(stand)
        if not bench.states[-1].startswith("moving"):
            bench.say("action: move forward small;", f"r{time.monotonic()}")
        return any("did not get where it should" in state for state in bench.states)

    bench.until(blocked)


@pytest.mark.parametrize("kind", [VerifiedTokens, Odometry])
def test_what_waits_for_the_lock_grows_older_meanwhile(
    kind: type[Any], domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a frame from before an instruction would pass for one from after it."""
    rclpy.init()
    node, heard, asked, age = NavigatorNode(), list[Any](), threading.Event(), 1.0
    message = kind()
    message.header.stamp.sec = 1

    def age_now(stamp: int) -> float:
        asked.set()
        return age

    monkeypatch.setattr(node, "_age", age_now)
    monkeypatch.setattr(node._navigator, "on", lambda event, now: heard.append(event) or [])
    callback = node._on_words if kind is VerifiedTokens else node._on_odometry
    thread = threading.Thread(target=callback, args=(message,))
    with node._lock:
        thread.start()
        asked.wait(0.5)
        age = 5.0
    thread.join()
    assert [event.age for event in heard] == [5.0]
    node.close()
    node.destroy_node()
    rclpy.shutdown()
