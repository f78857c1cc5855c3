"""Ray runs what it is sent: a fleet takes no Ray that lets strangers in, and ends when Ray has."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.fleet import ray_fleet
from edge_cloud_spec.cloud.fleet.ray_fleet import LOOPBACK

ENVIRONMENT = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", LOOPBACK)
SERVE = ["serve", "--replicas", "1", "--address", "127.0.0.1:0"]


class ControlService(grpc.GenericRpcHandler):
    """Ray's, as far as a stranger sees it: it answers whoever asks, or whoever shows its token."""

    def __init__(self) -> None:
        self.token = ""

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
        super().__init__(__version__="2.60.0", started=0, alive=True, address=address)
        self._service = service

    def init(self, **_: object) -> None:
        self.started += 1
        if ray_fleet.os.environ["RAY_AUTH_MODE"] == "token" and self._service.token != "off":
            self._service.token = ray_fleet.os.environ.get("RAY_AUTH_TOKEN", "of the cluster")
        self._service.token = self._service.token.removeprefix("off")

    def shutdown(self) -> None:
        self.started -= 1

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address=self.address, get_node_id=lambda: "own")

    def nodes(self) -> list[dict[str, object]]:
        return [{"NodeID": "other", "Alive": True}, {"NodeID": "own", "Alive": self.alive}]


@pytest.fixture
def service() -> ControlService:
    return ControlService()


@pytest.fixture
def ray(service: ControlService, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    for variable in ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv(variable, "")  # so that it is as before afterwards
        monkeypatch.delenv(variable)
    server = grpc.server(ThreadPoolExecutor(2), handlers=(service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    fake = FakeRay(f"127.0.0.1:{port}", service)
    monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
    yield fake
    server.stop(None).wait()


def test_ray_is_started_with_a_token_of_its_own_on_this_machine_alone(ray: FakeRay) -> None:
    ray_fleet._started_ray()
    environment = ray_fleet.os.environ
    assert environment["RAY_AUTH_MODE"] == "token" and environment[LOOPBACK] == "0"
    assert len(environment["RAY_AUTH_TOKEN"]) == 64
    assert ray.started == 1


def test_a_cluster_keeps_its_own_token_and_addresses(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray.address)
    ray_fleet._started_ray()
    environment = ray_fleet.os.environ
    assert environment["RAY_AUTH_MODE"] == "token"
    assert LOOPBACK not in environment and "RAY_AUTH_TOKEN" not in environment


@pytest.mark.parametrize("wrong", ["version", "open", "far"])
def test_a_ray_that_lets_strangers_in_is_refused_by_one_sentence(
    wrong: str,
    ray: FakeRay,
    service: ControlService,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if wrong == "version":
        ray.__version__ = "2.51.1"
        said = "error: Ray 2.51.1 is too old to keep strangers out"
    elif wrong == "open":
        service.token = "off"
        said = f"error: Ray at {ray.address} does not ask for a token"
    else:
        ray.address = "192.0.2.7:6379"
        said = "error: Ray listens at 192.0.2.7:6379 and not on this machine alone"
    assert main(SERVE) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1
    assert ray.started == 0


def test_a_fleet_ends_with_a_status_and_a_sentence_once_ray_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while its first replica is still to come."""
    answers = iter(["", "", "Ray has ended on this machine"])

    class Replicas:
        def __init__(self, *_: object) -> None:
            self.names: list[str] = []

        def start(self, name: str) -> None:
            """Nothing comes of it."""

        def lost(self) -> str:
            time.sleep(0.01)
            return next(answers)

        def close(self) -> None:
            """Nothing was started."""

    monkeypatch.setattr("edge_cloud_spec.cloud.fleet.ray_fleet.RayReplicas", Replicas)
    monkeypatch.setattr("edge_cloud_spec.cloud.fleet.ray_fleet.LOST_S", 0.01)
    assert main(SERVE) == 1
    assert capsys.readouterr().err.endswith("error: Ray has ended on this machine\n")


def test_ray_has_ended_when_this_machines_node_has_whatever_others_do(ray: FakeRay) -> None:
    replicas = ray_fleet.RayReplicas.__new__(ray_fleet.RayReplicas)
    replicas._ray = ray
    assert replicas.lost() == ""
    ray.alive = False
    assert "Ray has ended" in replicas.lost()
    ray.nodes = lambda: 1 / 0
    assert "does not answer (ZeroDivisionError)" in replicas.lost()
