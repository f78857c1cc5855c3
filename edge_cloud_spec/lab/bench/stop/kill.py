"""The verifier or the navigator, killed with SIGKILL while the robot moves on its decisions."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....bringup.graph import GraphSettings
from ....errors import UserError
from ...harness.verifier_process import VerifierProcess
from ...sim.room import make_room
from ..ros_graph import RosGraph, node_command
from .robot_probe import RobotProbe

OBSERVED = 1.5  # s after the standstill in which nothing may move
RECOVERY_TIMEOUT = 60.0  # s in which the robot must move again by itself
MAX_ROOMS = 20  # for one trial: in some the object is near, and nothing moves


@dataclass(frozen=True)
class Kill:
    """One trial: ``ms`` to the standstill, counted from what each measurement names."""

    ms: float
    stayed: bool  # nothing moved until the killed process was started again
    recovered: bool


@dataclass(frozen=True)
class RobotDrive:
    """The whole graph in a simulated room, and the probe that observes it."""

    ros: RosGraph
    probe: RobotProbe
    cloud: VerifierProcess
    settings: GraphSettings


@contextmanager
def driving(target: str, drafter: str) -> Iterator[RobotDrive]:
    """The graph with this pair; each trial enters a room. Raises UserError."""
    options = ["--target", target, "--threads", "1", "--max-tokens", "48"]
    with tempfile.TemporaryDirectory() as name, VerifierProcess(options) as cloud:
        settings = GraphSettings(cloud=cloud.address, drafter=drafter)
        with RosGraph(Path(name) / "logs") as ros:
            for node in ("cloud_bridge", "navigator", "drafter"):
                ros.start(node, node_command(node, settings))
            probe = RobotProbe(ros.node)
            ros.wait_for(lambda: probe.nav_status and probe.instruction_status, "the nodes are up")
            yield RobotDrive(ros, probe, cloud, settings)


def kill_cloud(drive: RobotDrive, rooms: Iterator[int], rng: np.random.Generator) -> Kill:
    """``ms`` counts from the last command that moves, or from its action's expiry before that."""
    _start_motion(drive, rooms, rng)
    drive.cloud.kill()
    probe = drive.probe
    return _measure(drive, lambda: min(probe.last_motion_command, probe.expiry), drive.cloud.start)


def kill_navigator(drive: RobotDrive, rooms: Iterator[int], rng: np.random.Generator) -> Kill:
    """``ms`` counts from the kill: what the base's own timeout takes, and its braking."""
    _start_motion(drive, rooms, rng)
    killed = time.time()
    drive.ros.kill("navigator")
    argv = node_command("navigator", drive.settings)
    return _measure(drive, lambda: killed, lambda: drive.ros.start("navigator", argv))


def _measure(drive: RobotDrive, since: Callable[[], float], restart: Callable[[], object]) -> Kill:
    ros, probe = drive.ros, drive.probe
    ros.wait_for(lambda: probe.standing_since is not None, "the robot stands still")
    assert probe.standing_since is not None
    seconds = probe.standing_since - since()
    ros.spin(OBSERVED)
    stayed = not probe.moving
    restart()
    return Kill(1e3 * seconds, stayed, _recovers(drive))


def _recovers(drive: RobotDrive) -> bool:
    try:
        drive.ros.wait_for(lambda: drive.probe.moving, "the robot moves again", RECOVERY_TIMEOUT)
    except UserError:
        return False
    return True


def _start_motion(drive: RobotDrive, rooms: Iterator[int], rng: np.random.Generator) -> None:
    """Enter new rooms until the robot is moving."""
    ros, probe = drive.ros, drive.probe
    pause = float(rng.uniform(0.0, 0.3))
    for _ in range(MAX_ROOMS):
        _enter_room(drive, next(rooms))
        ros.wait_for(
            lambda: probe.moving or not probe.instruction_status.startswith("following"),
            "a decision that moves, or the end of its mission",
        )
        ros.spin(pause)
        if probe.moving:
            return
    raise UserError(f"the robot moved in none of {MAX_ROOMS} rooms; is the pair trained?")


def _enter_room(drive: RobotDrive, room: int) -> None:
    """Another room: a new simulator, and the room's instruction."""
    ros, probe = drive.ros, drive.probe
    probe.instruct("stop")
    ros.wait_for(lambda: probe.instruction_status.startswith("idle"), "the drafter is idle")
    if "simulator" in ros.running:
        ros.kill("simulator", signal.SIGINT)
    probe.moving, probe.standing_since, probe.odometry_stamp = False, None, 0.0
    settings = GraphSettings(cloud=drive.cloud.address, seed=room)
    ros.start("simulator", node_command("simulator", settings))
    ros.wait_for(lambda: probe.odometry_stamp, "the simulator is up")
    ros.spin(0.5)
    probe.reset()
    probe.instruct(make_room(room).instruction)
    ros.wait_for(lambda: probe.instruction_status.startswith("following"), "the drafter follows")
