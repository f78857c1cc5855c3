"""The verifier, or the navigator, killed with -9 while the robot moves on its own decisions."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import UserError
from ...harness.verifier_process import VerifierProcess
from ...nodes.graph import GraphSettings
from ...sim.room import make_room
from ..ros_graph import RosGraph, node_command
from .robot_probe import RobotProbe

WATCHED = 1.5  # s after the standstill in which nothing may move
BACK = 60.0  # s in which the robot must go on by itself
ROOMS = 20  # tried for one trial: in some the object is near, and nothing moves


@dataclass(frozen=True)
class Kill:
    """One trial: ``ms`` to the standstill; from where is the measurement's to say."""

    ms: float
    stayed: bool  # nothing moved until the killed one was back
    recovered: bool


@dataclass(frozen=True)
class RobotDrive:
    """The whole graph on a simulated room, and who watches it."""

    rig: RosGraph
    witness: RobotProbe
    cloud: VerifierProcess
    settings: GraphSettings


@contextmanager
def driving(target: str, drafter: str) -> Iterator[RobotDrive]:
    """The graph with this pair; the room comes with a trial. Raises UserError."""
    options = ["--target", target, "--threads", "1", "--max-tokens", "48"]
    with tempfile.TemporaryDirectory() as name, VerifierProcess(options) as cloud:
        settings = GraphSettings(cloud=cloud.address, drafter=drafter)
        with RosGraph(Path(name) / "logs") as rig:
            for node in ("cloud_bridge", "navigator", "drafter"):
                rig.start(node, node_command(node, settings))
            witness = RobotProbe(rig.node)
            rig.until(lambda: witness.nav_status and witness.instruction_status, "the nodes are up")
            yield RobotDrive(rig, witness, cloud, settings)


def kill_cloud(drive: RobotDrive, rooms: Iterator[int], rng: np.random.Generator) -> Kill:
    """``ms`` counts from the last command that moves, or from its action's expiry before that."""
    _set_off(drive, rooms, rng)
    drive.cloud.kill()
    witness = drive.witness
    return _watch(drive, lambda: min(witness.bidden, witness.expiry), drive.cloud.start)


def kill_navigator(drive: RobotDrive, rooms: Iterator[int], rng: np.random.Generator) -> Kill:
    """``ms`` counts from the kill: what the base's own timeout takes, and its braking."""
    _set_off(drive, rooms, rng)
    killed = time.time()
    drive.rig.kill("navigator")
    argv = node_command("navigator", drive.settings)
    return _watch(drive, lambda: killed, lambda: drive.rig.start("navigator", argv))


def _watch(drive: RobotDrive, since: Callable[[], float], bring_back: Callable[[], object]) -> Kill:
    rig, witness = drive.rig, drive.witness
    rig.until(lambda: witness.still is not None, "the robot stands still")
    assert witness.still is not None
    took = witness.still - since()
    rig.hear(WATCHED)
    stayed = not witness.moving
    bring_back()
    return Kill(1e3 * took, stayed, _goes_on(drive))


def _goes_on(drive: RobotDrive) -> bool:
    try:
        drive.rig.until(lambda: drive.witness.moving, "the robot goes on", BACK)
    except UserError:
        return False
    return True


def _set_off(drive: RobotDrive, rooms: Iterator[int], rng: np.random.Generator) -> None:
    """In a new room, until the robot is in the midst of a motion."""
    rig, witness = drive.rig, drive.witness
    pause = float(rng.uniform(0.0, 0.3))
    for _ in range(ROOMS):
        _enter(drive, next(rooms))
        rig.until(
            lambda: witness.moving or witness.instruction_status.startswith("done"),
            "a decision that moves",
        )
        rig.hear(pause)
        if witness.moving:
            return
    raise UserError(f"the robot moved in none of {ROOMS} rooms; is the pair trained?")


def _enter(drive: RobotDrive, room: int) -> None:
    """Another room: a new simulator, and the instruction that goes with it."""
    rig, witness = drive.rig, drive.witness
    witness.instruct("stop")
    rig.until(lambda: witness.instruction_status.startswith("idle"), "the drafter rests")
    if "simulator" in rig.names:
        rig.kill("simulator", signal.SIGINT)
    witness.moving, witness.still, witness.stamp = False, None, 0.0
    settings = GraphSettings(cloud=drive.cloud.address, seed=room)
    rig.start("simulator", node_command("simulator", settings))
    rig.until(lambda: witness.stamp, "the simulator is up")
    rig.hear(0.5)
    witness.forget()
    witness.instruct(make_room(room).instruction)
    rig.until(lambda: witness.instruction_status.startswith("following"), "the drafter follows")
