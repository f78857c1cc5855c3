"""A fleet on Ray: it serves, restarts what died, and lets no stranger run code."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import grpc
import psutil
import pytest
from helpers.cloud.grpc_robot import OWN, REQUEST, settings, toy_robot

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.fleet import ray_fleet
from edge_cloud_spec.cloud.fleet.ray_fleet import LOOPBACK, Fleet
from edge_cloud_spec.cloud.fleet.registry import ScalingLimits
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.edge.client import VerifierClient
from edge_cloud_spec.edge.events import Emit
from edge_cloud_spec.edge.link.route import ClientSettings
from edge_cloud_spec.loop_thread import LoopThread
from edge_cloud_spec_lab.harness.toy import toy_worker

# It is imported once its environment is set.
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the extra fleet is not installed")
ENVIRONMENT = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", LOOPBACK)
SERVE_ONE = ["serve", "--replicas", "1", "--address", "127.0.0.1:0"]


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("fleet")
    yield thread
    thread.close()


@needs_ray
def test_a_replica_killed_under_its_robot_costs_no_word_and_comes_back(loop: LoopThread) -> None:
    served = ServerSettings("127.0.0.1:0", metrics="127.0.0.1:0")
    fleet = Fleet(toy_worker, served, ScalingLimits(2, 2))
    try:
        address = loop.run(fleet.start(2))
        below = psutil.Process().children(recursive=True)
        listening = set().union(*map(listens, below))
        assert listening and listening <= LOOPBACKS
        before, killed = dict(fleet.controller.pids), []
        link = VerifierClient(ClientSettings(address, retry_s=0.02))

        def on_emit(emit: Emit) -> None:
            if emit.position > 3 and not killed:
                (name,) = fleet.registry.placed
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
from edge_cloud_spec_lab.harness.toy import toy_worker
command.make_worker = lambda args: toy_worker()
sys.exit(main(["serve", "--replicas", "1", "--address", "127.0.0.1:0"]))
"""


LOOPBACKS = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def listens(process: psutil.Process) -> set[str]:
    """The addresses at which this process can be reached."""
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        return {at.laddr.ip for at in process.net_connections() if at.status == psutil.CONN_LISTEN}
    return set()


@needs_ray
def test_a_fleet_ends_with_a_status_and_a_sentence_when_ray_has_ended() -> None:
    """What started it starts it again; before, its router sent robots away for ever."""
    command = [sys.executable, "-c", SERVE]
    fleet = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert fleet.stdout.readline().startswith("serving on ")
        below = psutil.Process(fleet.pid).children(recursive=True)
        (raylet,) = (process for process in below if process.name() == "raylet")
        raylet.kill()
        _, said = fleet.communicate(timeout=300)
    finally:
        fleet.kill()
    assert fleet.returncode == 1
    assert "error: Ray has ended on this machine" in said and "Traceback" not in said


class ControlService(grpc.GenericRpcHandler):
    """Ray's, as far as a stranger sees it: it answers whoever asks, or whoever shows its token."""

    token = ""

    def service(self, details: Any) -> Any:
        metadata = dict(details.invocation_metadata)

        def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
            if self.token and metadata.get("authorization") != f"Bearer {self.token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


class FakeRay(SimpleNamespace):
    """What the fleet calls of Ray; ``init`` notes the environment that Ray's processes get."""

    def __init__(self, address: str, service: ControlService) -> None:
        super().__init__(__version__="2.60.0", __spec__=self, started=0, alive=True)
        self.address, self.guarded, self._service = address, True, service

    def init(self, **_: object) -> None:
        self.started += 1
        if self.guarded and os.environ["RAY_AUTH_MODE"] == "token":
            self._service.token = os.environ.get("RAY_AUTH_TOKEN", "of the cluster")

    def shutdown(self) -> None:
        self.started -= 1

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address=self.address, get_node_id=lambda: "own")

    def nodes(self) -> list[dict[str, object]]:
        return [{"NodeID": "other", "Alive": True}, {"NodeID": "own", "Alive": self.alive}]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    environment = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    monkeypatch.setattr(os, "environ", environment)
    service = ControlService()
    server = grpc.server(ThreadPoolExecutor(2), handlers=(service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    fake = FakeRay(f"127.0.0.1:{port}", service)
    monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
    yield fake
    server.stop(None).wait()


def test_a_cluster_keeps_its_own_token_and_addresses(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray.address)
    ray_fleet._started_ray()
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert LOOPBACK not in os.environ and "RAY_AUTH_TOKEN" not in os.environ


@pytest.mark.parametrize("wrong", ["version", "open", "far"])
def test_a_ray_that_lets_strangers_in_is_refused_by_one_sentence(
    wrong: str, ray: FakeRay, capsys: pytest.CaptureFixture[str]
) -> None:
    if wrong == "version":
        ray.__version__ = "2.51.1"
        said = "error: Ray 2.51.1 is too old to keep strangers out"
    elif wrong == "open":
        ray.guarded = False
        said = f"error: Ray at {ray.address} does not ask for a token"
    else:
        ray.address = "192.0.2.7:6379"
        said = "error: Ray listens at 192.0.2.7:6379 and not on this machine alone"
    assert main(SERVE_ONE) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1
    assert ray.started == 0


def test_ray_has_ended_when_this_machines_node_has_whatever_others_do(ray: FakeRay) -> None:
    replicas = ray_fleet.RayReplicas.__new__(ray_fleet.RayReplicas)
    replicas._ray = ray
    assert replicas.lost() == ""
    ray.alive = False
    assert "Ray has ended" in replicas.lost()
    ray.nodes = lambda: 1 / 0
    assert "does not answer (ZeroDivisionError)" in replicas.lost()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replicas", "-1"], "--replicas must be a whole number from 0 up, not -1"),
        (["--replicas", "3", "--max-replicas", "2"], "--max-replicas not below it"),
        (["--max-replicas", "2"], "--max-replicas needs --replicas"),
        (["--replicas", "2", "--metrics", "nowhere"], "--metrics is HOST:PORT"),
        (["--replicas", "2"], "pip install 'ray>=2.60'"),
    ],
)
def test_what_a_fleet_cannot_start_with_is_said(
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # it is not installed
    assert main(["serve", *options]) != 0
    assert said in capsys.readouterr().err
