"""The emergency stop pressed while a decode is under way and the robot moves."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from ...errors import UserError
from ...harness.random_checkpoint import TINY, make_pair
from ...harness.verifier_process import VerifierProcess
from ...nodes.graph import GraphSettings
from ..ros_graph import RosGraph, node_command
from .robot_probe import RobotProbe

INSTRUCTION = "find the silver bottle"
ANSWERS = ("action: turn left large;", "action: turn right large;")  # there is room for a turn
TOKENS = 1024  # of an answer: nobody decodes to its end in the time of a trial
TRIES = 30  # of one trial: a busy machine may end the decode before the stop comes


def measure(trials: int, seed: int) -> list[float]:
    """Ms from the stop to a zero command at the base, for each trial. Raises UserError.

    The drafter decodes endless answers of a random pair, which the navigator does not hear; what
    moves the robot comes from here. A trial counts when the decode says that the stop ended it.
    """
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target, drafter = make_pair(folder, TINY, TINY, seed=seed)
        options = ["--target", str(target), "--threads", "1", "--max-tokens", str(TOKENS)]
        with VerifierProcess(options) as cloud, RosGraph(folder / "logs") as rig:
            settings = GraphSettings(cloud=cloud.address, drafter=str(drafter), seed=seed)
            for node in ("simulator", "cloud_bridge", "navigator"):
                rig.start(node, node_command(node, settings))
            apart = ["-r", "verified_tokens:=endless_tokens", "-r", "nav_status:=no_status"]
            argv = node_command("drafter", settings, retry=0.1, max_tokens=TOKENS)
            rig.start("drafter", [*argv, *apart])
            witness = RobotProbe(rig.node)
            rig.until(
                lambda: (
                    {"drafter", "navigator"} <= rig.listeners("e_stop")
                    and witness.nav_status
                    and witness.instruction_status
                    and witness.stamp
                ),
                "the nodes are up",
            )
            rig.hear(1.0)
            times = []
            for trial in range(trials):
                times.append(_trial(rig, witness, trial, float(rng.uniform(0.05, 0.35))))
                if (trial + 1) % 20 == 0:
                    print(f"e_stop {trial + 1}/{trials}: {np.median(times):.1f} ms", flush=True)
        return times


def _trial(rig: RosGraph, witness: RobotProbe, trial: int, pause: float) -> float:
    for attempt in range(TRIES):
        witness.press(False)
        rig.until(lambda: not witness.nav_status.startswith("stopped"), "the stop is released")
        witness.forget()
        witness.instruct(INSTRUCTION)
        rig.until(lambda: witness.opened, "a decode begins")
        witness.bidden = 0.0
        witness.say(f"bench-{trial}-{attempt}", ANSWERS[trial % 2])
        rig.until(lambda: witness.bidden and witness.moving, "the robot moves")
        rig.hear(pause)
        moving = witness.moving
        witness.zeros.clear()
        pressed = witness.press(True)
        rig.until(lambda: witness.zeros, "a stop command")
        took = witness.zeros[0] - pressed
        rig.until(lambda: witness.nav_status.startswith("stopped"), "the navigator says so")
        rig.until(lambda: witness.stats, "the decode's end")
        if moving and witness.stats[0].finish_reason == "aborted" and witness.stats[0].rounds:
            return 1e3 * took
    raise UserError("no decode was under way when the stop came; is the machine too busy?")
