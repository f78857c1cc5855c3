"""A thread that hangs ends its program; one that waits or loads, or was stopped, does not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

pytest.importorskip("rclpy")
from helpers.navigator_bench import PATIENCE, Bench
from std_msgs.msg import Empty

from edge_cloud_spec.nodes.runtime.heartbeat import CHECK_S, HANG_S, HUNG, Pulse

# A watch that looks often and waits short. {0} is the time that counts as a hang, {1} the node.
PROGRAM = """
import sys, threading, time
from std_msgs.msg import Empty
from edge_cloud_spec.nodes.runtime import heartbeat
heartbeat.HANG_S, heartbeat.CHECK_S = {0}, 0.05
from edge_cloud_spec.nodes.navigator import NavigatorNode
from edge_cloud_spec.nodes.runtime.run import spin

class Hanging(NavigatorNode):
    {1}

sys.exit(spin(Hanging))
"""
EXECUTOR = """
    def begin(self):
        super().begin()
        self.create_subscription(Empty, "hang", self.hang, 10)

    def hang(self, message):
        time.sleep(600)
"""
STOPS = """
    def _on_e_stop(self, message):
        time.sleep(600)
"""
LOADING = """
    def load(self):
        time.sleep(4.0)
        super().load()
"""
LOOKS = round(HANG_S / CHECK_S)


def test_a_thread_that_gives_no_sign_hangs_and_one_that_rests_does_not() -> None:
    pulse = Pulse("model", slack=lambda: 2.0)
    assert not any(pulse.look(CHECK_S) for _ in range(10 * LOOKS)), "it has not begun"
    pulse.beat()
    hung = [pulse.look(CHECK_S) for _ in range(LOOKS + 10)]
    assert not any(hung[: LOOKS + 3]) and hung[-1] >= HANG_S + 2.0
    pulse.beat()
    assert not pulse.look(CHECK_S)
    pulse.rest()
    assert not any(pulse.look(CHECK_S) for _ in range(10 * LOOKS))


def test_a_beat_between_looks_is_enough_and_a_long_pause_of_the_watch_counts_once() -> None:
    pulse = Pulse("executor")
    for _ in range(10 * LOOKS):
        pulse.beat()
        assert not pulse.look(CHECK_S)
    assert not pulse.look(CHECK_S), "one look, however late"


@pytest.mark.parametrize(("body", "what"), [(EXECUTOR, "executor"), (STOPS, "subscriptions")])
def test_a_callback_that_hangs_ends_the_program_with_its_place(
    body: str, what: str, bench: Bench, start: Any
) -> None:
    process = start(program=["-c", PROGRAM.format(1.5, body)])
    if what == "executor":
        bench.until(bench.hang.get_subscription_count)
        bench.hang.publish(Empty())
    else:
        bench.e_stop.publish(bench.e_stop.msg_type(data=True))
    _, errors = process.communicate(timeout=PATIENCE)
    said = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert process.returncode == HUNG
    assert len(said) == 1 and f"the thread {what} hangs for" in said[0]


def test_a_node_that_loads_for_long_or_was_stopped_from_outside_goes_on(
    bench: Bench, start: Any
) -> None:
    process = start(program=["-c", PROGRAM.format(2.0, LOADING)])
    bench.until(lambda: bench.states and bench.state.state == "idle")
    process.send_signal(signal.SIGSTOP)
    time.sleep(3.0)
    process.send_signal(signal.SIGCONT)
    moved = len(bench.twists)
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: len(bench.twists) > moved and bench.turning)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0


def test_sigint_while_a_model_loads_ends_the_program(bench: Bench) -> None:
    program = PROGRAM.format(2.0, LOADING.replace("4.0", "600"))
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    bench.until(lambda: bench.e_stop.get_subscription_count())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "error" not in errors
