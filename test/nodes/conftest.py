"""A ROS domain for each module, and nodes in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from helpers.graph.ros_domain import ros_domain

if TYPE_CHECKING:
    from helpers.navigator_bench import Bench

collect_ignore_glob = [] if find_spec("rclpy") else ["test_*"]
MODULE = ["-m", "edge_cloud_spec.nodes.navigator"]


@pytest.fixture(scope="module", autouse=True)
def domain() -> Iterator[int]:
    """The ROS domain of a module's nodes, here and in the processes that it starts."""
    with ros_domain() as domain:
        yield domain


@pytest.fixture
def launch() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python's ``program`` with ROS arguments; what still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(program: list[str], *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, *program, "--ros-args", *arguments]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def bench(launch: object) -> Iterator[Bench]:
    """It ends before ``launch`` kills: Fast DDS 2.14 crashes where a participant ends beside a
    process that was killed as it wrote to its shared memory (``Listener::regenerate_port``)."""
    from helpers.navigator_bench import Bench

    with Bench() as bench:
        yield bench


@pytest.fixture
def start(
    bench: Bench, launch: Callable[..., subprocess.Popen[str]]
) -> Callable[..., subprocess.Popen[str]]:
    """Starts the navigator, or a program that is one, and waits until it is there."""

    def begin(
        *arguments: str, program: list[str] = MODULE, ready: bool = True
    ) -> subprocess.Popen[str]:
        listens = any(argument.startswith("listen:=") for argument in arguments)
        process = launch(program, *arguments, *([] if listens else ["-p", "listen:=0.2"]))
        bench.until(lambda: bench.states and bench.words.get_subscription_count())
        bench.until(lambda: bench.e_stop.get_subscription_count())
        bench.until(lambda: bench.instruction.get_subscription_count())
        bench.until(lambda: bench.count_publishers("cmd_vel"))
        if ready:
            bench.until(lambda: bench.state.detail != "the navigator is not active")
        return process

    return begin
