"""``bench stop``: ms from ``e_stop`` to a zero command; all nodes are real processes.

``bare_ms``: the same for a bare rclpy message to another process and its answer, measured just
before; ``load``: the machine's average load over the last minute. ``bench faults`` measures the
robot when the verifier or a node is killed.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
from geometry_msgs.msg import Twist
from std_msgs.msg import Bool

from edge_cloud_spec.bringup.graph import GraphSettings
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.msg import VerifiedTokens
from edge_cloud_spec.nav.status import GOAL_FAILED, IDLE, STOPPED, UNKNOWN, GoalStatus
from edge_cloud_spec.nodes.runtime.qos import DECODE
from edge_cloud_spec.wire.messages import ABORTED

from ..harness.random_checkpoint import TINY, make_pair
from . import bare
from .command import Options, Row
from .live import LiveRig, Watch
from .options import check_counts

TRIAL_INSTRUCTION = "find the silver bottle"
TURN_ANSWERS = ("action: turn left large;", "action: turn right large;")  # there is room for a turn
TRIAL_ANSWER_TOKENS = 1024  # of an answer: no decode reaches its end during a trial
TRIES_PER_TRIAL = 30  # of one trial: on a busy machine the decode may end before the stop arrives


class Reaction:
    """Measures the time from a Bool on one topic to another process's zero Twist."""

    def __init__(self, rig: LiveRig, press: str, command: str) -> None:
        self._rig = rig
        self._zeros: list[float] = []  # when they arrived, s
        self._press = rig.node.create_publisher(Bool, press, 10)
        rig.node.create_subscription(Twist, command, self._on_twist, 100)

    def _on_twist(self, twist: Twist) -> None:
        if twist.linear.x == twist.linear.y == twist.angular.z == 0.0:
            self._zeros.append(time.time())

    def press(self, on: bool) -> float:
        """Publish the Bool; returns the time."""
        self._zeros.clear()
        now = time.time()
        self._press.publish(Bool(data=on))
        return now

    def measure(self) -> float:
        """Seconds from the message to its answer."""
        pressed = self.press(True)
        self._rig.wait_for(lambda: self._zeros, "a stop command")
        return self._zeros[0] - pressed


def measure(trials: int, seed: int) -> tuple[list[float], list[float]]:
    """For each trial, ms from the stop to a zero command at the base, and of a bare message just
    before.

    The drafter decodes long answers of a random pair, on a topic that the navigator does not
    subscribe to; this function publishes the answers that move the robot. A trial counts if the
    decode ended with ``aborted``. Raises UserError.
    """
    rng = np.random.default_rng(seed)
    with closing(LiveRig(GraphSettings(seed=seed))) as rig:
        target, drafter = make_pair(rig.folder, TINY, TINY, seed=seed)
        rig.settings = replace(rig.settings, drafter=str(drafter))
        stop = _EStop(rig)
        rig.start_verifier(target=str(target), max_tokens=str(TRIAL_ANSWER_TOKENS))
        for node in ("simulator", "cloud_bridge", "stop_guard", "navigator"):
            rig.start(node, rig.node_command(node))
        argv = rig.node_command(
            "drafter",
            retry=0.1,
            max_tokens=TRIAL_ANSWER_TOKENS,
            mission__failed_after=10_000,
            mission__max_decisions=100_000,
        )
        remapped = ["-r", "verified_tokens:=endless_tokens", "-r", "nav_status:=no_status"]
        rig.start("drafter", [*argv, *remapped])
        rig.start("bare_echo", [sys.executable, "-m", bare.__name__])
        rig.wait_for(stop.is_ready, "the nodes are up")
        time.sleep(1.0)
        times: list[tuple[float, float]] = []
        for trial in range(trials):
            times.append(stop.trial(trial, float(rng.uniform(0.05, 0.35))))
            if (trial + 1) % 20 == 0:
                ours, theirs = 1e3 * np.median(times, axis=0)
                print(f"e_stop {trial + 1}/{trials}: {ours:.1f} ms, bare {theirs:.1f}", flush=True)
        ours, theirs = (1e3 * np.array(times)).T.tolist()
        return ours, theirs


class _EStop:
    """The emergency stop and the bare echo of one rig."""

    def __init__(self, rig: LiveRig) -> None:
        self._rig = rig
        self._watch = Watch(rig, left_out=("draft", "verdict", "/diagnostics"))
        self._ours = Reaction(rig, "e_stop", "cmd_vel")
        self._bare = Reaction(rig, bare.PRESS_TOPIC, bare.COMMAND_TOPIC)
        self._words = rig.node.create_publisher(VerifiedTokens, "verified_tokens", DECODE)

    def is_ready(self) -> bool:
        """Whether all subscriptions and publishers are connected."""
        rig, lines = self._rig, self._watch.lines
        both = {"drafter", "navigator"}
        return (
            both <= rig.subscribers("e_stop") & rig.subscribers("instruction")
            and bool(
                rig.subscribers(bare.PRESS_TOPIC)
                and rig.publishers(bare.COMMAND_TOPIC, "bare_echo")
            )
            and bool(lines["nav_status"])
            and self._watch.instruction_status.state == IDLE
            and self._watch.stands_since < math.inf
        )

    def trial(self, trial: int, pause: float) -> tuple[float, float]:
        """Seconds of the stop, and of the bare message. Raises UserError."""
        wait_for, watch = self._rig.wait_for, self._watch
        for attempt in range(TRIES_PER_TRIAL):
            self._ours.press(False)
            wait_for(lambda: not watch.nav_status.e_stopped, "the stop is released")
            watch.instruction_status, before = GoalStatus(UNKNOWN), len(watch.begun)
            watch.instruct(TRIAL_INSTRUCTION)
            wait_for(lambda: watch.nav_status.state != "stopped", "the robot may move")
            wait_for(
                lambda: (
                    len(watch.begun) > before  # noqa: B023 (it is called before the next attempt)
                    or watch.instruction_status.state in (GOAL_FAILED, STOPPED)
                ),
                "a decode begins, or is refused",
            )
            if len(watch.begun) == before:
                continue  # the instruction overtook the stop or its release at the drafter
            if not self._moves(f"bench-{trial}-{attempt}", TURN_ANSWERS[trial % 2]):
                continue  # as where odometry came late
            time.sleep(pause)
            echoed = self._bare.measure()
            moving, request = watch.stands_since == math.inf, list(watch.begun)[-1]
            took = self._ours.measure()
            wait_for(lambda: watch.nav_status.state == "stopped", "the navigator reports the stop")
            wait_for(lambda: request in watch.stats, "the decode's end")  # noqa: B023
            stats = watch.stats[request]
            if moving and stats.finish_reason == ABORTED and stats.rounds:
                return took, echoed
        raise UserError("no decode was under way when the stop came; is the machine too busy?")

    def _moves(self, request: str, answer: str) -> bool:
        """Whether the robot moves on this answer; the navigator may refuse it."""
        watch, published = self._watch, time.time()
        self._words.publish(watch.answer(request, answer))
        self._rig.wait_for(
            lambda: (
                (watch.last_motion > published and watch.stands_since == math.inf)
                or (watch.nav_status.state, watch.nav_status.request) == ("idle", request)
            ),
            "the robot moves, or the answer is refused",
        )
        return watch.stands_since == math.inf


OPTIONS: Options = {
    "--trials": {"type": int, "default": 200, "help": "(default %(default)s)"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns one row."""
    check_counts(args, "trials")
    ours, theirs = measure(args.trials, args.seed)
    load = os.getloadavg()[0]
    return [{"trials": len(ours), **_times(ours), **_times(theirs, "bare_"), "load": load}]


def _times(ms: Sequence[float], of: str = "") -> Row:
    return {f"{of}ms_p{p}": float(np.percentile(ms, p)) for p in (50, 99)}
