"""A fleet on Ray itself: a killed replica costs no word, no stranger is heard, it ends with Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.cloud.grpc_robot import OWN, REQUEST, settings, toy_robot
from helpers.cloud.small_fleet import LoopThread

from edge_cloud_spec.cloud.fleet.scaling import ScalingLimits
from edge_cloud_spec.cloud.fleet.serving import Fleet
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit
from edge_cloud_spec.lab.harness.toy import toy_worker

if importlib.util.find_spec("ray") is None:  # it is imported once its environment is set
    pytest.skip("the extra fleet is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


def test_a_replica_killed_under_its_robot_costs_no_word_and_comes_back(loop: LoopThread) -> None:
    served = ServerSettings("127.0.0.1:0", metrics="127.0.0.1:0")
    fleet = Fleet(lambda: (toy_worker(), lambda: 0.0), served, ScalingLimits(2, 2))
    try:
        address = loop.run(fleet.start(2))
        listening = {where for pid in children(os.getpid()) for where in listens(pid)}
        assert listening and listening <= LOOPBACKS
        before, killed = dict(fleet.controller.pids), []
        link = VerifierClient(ClientSettings(address, retry_s=0.02))

        def on_emit(emit: Emit) -> None:
            if emit.position > 3 and not killed:
                (name,) = fleet.roster.placed
                killed.append(name)
                os.kill(before[name], signal.SIGKILL)

        outcome = toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, link.connect, on_emit)
        assert outcome.tokens == OWN
        assert len(killed) == 1
        while fleet.controller.pids[killed[0]] == before[killed[0]]:
            time.sleep(0.02)  # Ray starts it again
        again = toy_robot().run(REQUEST, settings("dsd", "coupled"), 2, link.connect)
        assert again.tokens == OWN
        link.close()
        assert fleet.metrics is not None
        with urllib.request.urlopen(f"http://{fleet.metrics.address}/metrics") as answer:
            said = answer.read().decode()
        for name in before:
            assert f'fleet_replica_up{{replica="{name}"}} 1.0' in said
            assert f'generation_tokens_total{{replica="{name}"}}' in said
    finally:
        loop.run(fleet.stop())


SERVE = """
import sys
from edge_cloud_spec.cloud import command
from edge_cloud_spec.cli import main
from edge_cloud_spec.lab.harness.toy import toy_worker
command.make_worker = lambda args: (toy_worker(), lambda: 0.0)
sys.exit(main(["serve", "--replicas", "1", "--address", "127.0.0.1:0"]))
"""


def children(pid: int) -> Iterator[int]:
    """All processes below this one."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, parent = path.parent.name, path.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == pid:
            yield int(number)
            yield from children(int(number))


# As /proc/net has them: 127.0.0.1, the same within IPv6, and ::1.
LOOPBACKS = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def listens(pid: int) -> Iterator[str]:
    """The addresses at which this process can be reached."""
    held = set()
    for fd in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            held.add(os.readlink(fd))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            field = line.split()
            if field[3] == "0A" and f"socket:[{field[9]}]" in held:
                yield field[1].partition(":")[0]


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_a_fleet_ends_with_a_status_and_a_sentence_when_ray_has_ended() -> None:
    """What started it starts it again; before, its front sent robots away for ever."""
    command = [sys.executable, "-c", SERVE]
    fleet = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert fleet.stdout is not None
        assert fleet.stdout.readline().startswith("serving on ")
        (raylet,) = (pid for pid in children(fleet.pid) if name(pid) == "raylet")
        os.kill(raylet, signal.SIGKILL)
        _, said = fleet.communicate(timeout=300)
    finally:
        fleet.kill()
    assert fleet.returncode == 1
    assert "error: Ray has ended on this machine" in said and "Traceback" not in said
