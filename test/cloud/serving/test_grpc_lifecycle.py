"""The verifier's start and end: health, a taken port, signals, and nothing left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from helpers.cloud.grpc_cloud import Cloud, free_port
from helpers.cloud.grpc_robot import Talk, opening

from edge_cloud_spec.cli import main
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.channel import SERVICE
from edge_cloud_spec.wire.messages import Alone, Generate, Verdict


def test_the_health_service_answers_while_it_serves(toy: Any) -> None:
    with grpc.insecure_channel(toy.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_taken_port_is_a_clear_error(toy: Any) -> None:
    with pytest.raises(UserError, match="the port is taken or the host unknown"):
        Cloud(toy_worker(), address=toy.address)


def test_a_taken_port_is_said_before_a_model_is_loaded(
    toy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--address", toy.address, "--target", "/nowhere"]) == 2
    assert "the port is taken" in capsys.readouterr().err


def test_the_end_leaves_no_thread_and_no_port() -> None:
    before = {thread.name for thread in threading.enumerate()}
    cloud = Cloud(toy_worker())
    talk = Talk(cloud.address)
    talk.say(opening())
    talk.say(Generate(talk.hear().base, Alone(speculative=True)))  # at work, its stream open
    unreachable = VerifierClient(ClientSettings(f"127.0.0.1:{free_port()}"))
    unreachable.open(lambda item: None)
    cloud.stop()
    host, _, port = cloud.address.rpartition(":")
    socket.create_server((host, int(port))).close()
    talk.link.close()
    talk.link.close()  # twice is once
    unreachable.close()
    after = {thread.name for thread in threading.enumerate()} - before
    assert not after & {"cloud", "model", "link"}


SERVE = """
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.cloud.serving.server import ServerSettings, serve
serve(toy_worker(), ServerSettings("127.0.0.1:0", grace_s=0.2), lambda a: print(a, flush=True))
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly_in_mid_decode(number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        with Talk(address) as robot:
            robot.say(opening())
            robot.say(Generate(robot.hear().base))
            assert isinstance(robot.hear(), Verdict)
            process.send_signal(number)
            out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0
    assert out == "ended\n"
    assert "Traceback" not in err
