"""The launch file under ROS's own launch, where that is installed."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("launch_ros", reason="ROS's launch is not on the package index")
from ament_index_python.packages import PackageNotFoundError, get_package_prefix
from helpers.cloud.grpc_cloud import until
from helpers.graph.ros_domain import ros_domain
from helpers.processes import processes_with

from edge_cloud_spec.bringup.graph import LOCAL_ADDRESS
from edge_cloud_spec.wire.channel import host_of

LAUNCH = ["ros2", "launch", "edge_cloud_spec", "go2_nav.launch.py"]
REPLY_TIMEOUT = 120.0  # s; only a hung launch takes that long
BAD_CLOUD = ["cloud:=127.0.0.1:9", "sim:=false", "authority:=/no/authority.pem"]


@pytest.fixture(autouse=True)
def installed() -> None:
    try:
        prefix = Path(get_package_prefix("edge_cloud_spec"))
    except PackageNotFoundError:
        pytest.skip("the package is not installed in a sourced workspace")
    if not (prefix / "lib/edge_cloud_spec/navigator").exists():
        pytest.skip("its executables are not installed")


@pytest.fixture
def domain() -> Iterator[int]:
    with ros_domain() as domain:
        yield domain


def left(domain: int) -> list[str]:
    """The command lines of processes of this domain, except this one's."""
    there = processes_with(f"ROS_DOMAIN_ID={domain}")
    return [command for command in there if "/lib/edge_cloud_spec/" in command]


def launched(*arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [*LAUNCH, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=REPLY_TIMEOUT,
        check=False,
    )
    return done.returncode, done.stdout.strip().splitlines()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["seed:=99999999999"], "seed must be a whole number"),
        (["preset:=none_such"], "none_such"),
        (["presett:=dsd"], "did you mean preset?"),
        (["parameters:=/no/file.yaml"], "there is no parameter file"),
    ],
)
def test_what_cannot_be_started_is_said_before_anything_starts(
    arguments: list[str], why: str, domain: int
) -> None:
    status, lines = launched(*arguments)
    assert status != 0 and why in lines[-1] and not left(domain)
    assert not any("process started" in line for line in lines)


def test_a_taken_port_is_said_in_one_sentence_and_nothing_starts(domain: int) -> None:
    with socket.create_server((host_of(LOCAL_ADDRESS), int(LOCAL_ADDRESS.rpartition(":")[2]))):
        status, lines = launched()
    assert status != 0 and f"cannot listen on {LOCAL_ADDRESS}: the port is taken" in lines[-1]
    assert not left(domain) and not any("process started" in line for line in lines)


def test_a_needed_node_that_cannot_be_configured_ends_the_launch_with_its_sentence_last(
    domain: int,
) -> None:
    status, lines = launched(*BAD_CLOUD)
    assert status != 0 and not left(domain)
    assert lines[-1].startswith("error: cloud_bridge ended (exit status 2): ")
    assert "the certificate authority /no/authority.pem cannot be read: No such" in lines[-1]


def test_sigint_ends_everything_and_nothing_outlives_a_launch_that_was_killed(domain: int) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        launch = subprocess.Popen(
            [*LAUNCH, "cloud:=127.0.0.1:9", "sim:=false"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in launch.stdout:
            if "drafting with" in line:
                break
        launch.send_signal(number)
        until(lambda: not left(domain))
        launch.stdout.close()
        assert launch.wait(REPLY_TIMEOUT) == (0 if number == signal.SIGINT else -number)
