"""The emergency stop pressed while a decode is under way and the robot moves."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....bringup.graph import GraphSettings
from ....errors import UserError
from ....nav.mission import STARTED
from ...harness.random_checkpoint import TINY, make_pair
from ...harness.verifier_process import VerifierProcess
from ..ros_graph import RosGraph, node_command
from .bare_echo import BareEcho
from .robot_probe import RobotProbe

INSTRUCTION = "find the silver bottle"
ANSWERS = ("action: turn left large;", "action: turn right large;")  # there is room for a turn
TOKENS = 1024  # of an answer: no decode reaches its end during a trial
TRIES = 30  # of one trial: on a busy machine the decode may end before the stop arrives


@dataclass(frozen=True)
class StopTimes:
    """Ms of each trial: of the stop, and of a bare message and its answer just before it."""

    ours: list[float]
    bare: list[float]


def measure(trials: int, seed: int) -> StopTimes:
    """From the stop to a zero command at the base, for each trial. Raises UserError.

    The drafter decodes long answers of a random pair, on a topic that the navigator does not
    subscribe to; the answers that move the robot are published here. A trial counts when the
    decode ended with ``aborted``.
    """
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target, drafter = make_pair(folder, TINY, TINY, seed=seed)
        options = ["--target", str(target), "--threads", "1", "--max-tokens", str(TOKENS)]
        with VerifierProcess(options) as cloud, RosGraph(folder / "logs") as ros:
            settings = GraphSettings(cloud=cloud.address, drafter=str(drafter), seed=seed)
            for node in ("simulator", "cloud_bridge", "navigator"):
                ros.start(node, node_command(node, settings))
            remapped = ["-r", "verified_tokens:=endless_tokens", "-r", "nav_status:=no_status"]
            endless = {"mission__failed_after": 10_000, "mission__max_decisions": 100_000}
            argv = node_command("drafter", settings, retry=0.1, max_tokens=TOKENS, **endless)
            ros.start("drafter", [*argv, *remapped])
            probe, echo = RobotProbe(ros.node), BareEcho(ros)
            ros.wait_for(
                lambda: (
                    {"drafter", "navigator"} <= ros.subscribers("e_stop")
                    and {"drafter", "navigator"} <= ros.subscribers("instruction")
                    and probe.nav_status
                    and probe.instruction_status == f"idle {STARTED}"
                    and probe.odometry_stamp
                    and echo.ready
                ),
                "the nodes are up",
            )
            ros.spin(1.0)
            times = StopTimes([], [])
            for trial in range(trials):
                pause = float(rng.uniform(0.05, 0.35))
                ours, bare = _trial(ros, probe, echo, trial, pause)
                times.ours.append(1e3 * ours)
                times.bare.append(1e3 * bare)
                if (trial + 1) % 20 == 0:
                    medians = f"{np.median(times.ours):.1f} ms, bare {np.median(times.bare):.1f} ms"
                    print(f"e_stop {trial + 1}/{trials}: {medians}", flush=True)
        return times


def _trial(
    ros: RosGraph, probe: RobotProbe, echo: BareEcho, trial: int, pause: float
) -> tuple[float, float]:
    for attempt in range(TRIES):
        probe.set_e_stop(False)
        ros.wait_for(lambda: "e_stop is on" not in probe.nav_status, "the stop is released")
        probe.reset()
        probe.instruct(INSTRUCTION)
        ros.wait_for(lambda: not probe.nav_status.startswith("stopped"), "the robot may move")
        ros.wait_for(lambda: probe.opened or probe.refused, "a decode begins, or is refused")
        if not probe.opened:
            continue  # the instruction overtook the stop or its release at the drafter
        probe.stats.clear()  # of the decode before
        probe.last_motion_command = 0.0
        if not _moves(ros, probe, f"bench-{trial}-{attempt}", ANSWERS[trial % 2]):
            continue  # as where odometry came late
        ros.spin(pause)
        bare = echo.round_trip()
        moving = probe.moving
        probe.zero_commands.clear()
        pressed = probe.set_e_stop(True)
        ros.wait_for(lambda: probe.zero_commands, "a stop command")
        took = probe.zero_commands[0] - pressed
        ros.wait_for(
            lambda: probe.nav_status.startswith("stopped"), "the navigator reports the stop"
        )
        ros.wait_for(lambda: probe.stats, "the decode's end")
        if moving and probe.stats[0].finish_reason == "aborted" and probe.stats[0].rounds:
            return took, bare
    raise UserError("no decode was under way when the stop came; is the machine too busy?")


def _moves(ros: RosGraph, probe: RobotProbe, request: str, answer: str) -> bool:
    """Whether the robot moves on this answer; the navigator may refuse it."""
    probe.publish_answer(request, answer)
    ros.wait_for(
        lambda: (
            (probe.last_motion_command and probe.moving)
            or probe.nav_status.startswith(f"idle {request} ")
        ),
        "the robot moves, or the answer is refused",
    )
    return probe.moving
