"""A ROS domain for each module, and a navigator in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from helpers.graph.ros_domain import ros_domain

if TYPE_CHECKING:
    from helpers.navigator_bench import Bench

MODULE = ["-m", "edge_cloud_spec.nodes.navigator"]


@pytest.fixture(scope="module", autouse=True)
def domain() -> Iterator[int]:
    """The ROS domain of a module's nodes, here and in the processes that it starts."""
    with ros_domain() as domain, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(domain))
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        yield domain


@pytest.fixture
def bench() -> Iterator[Bench]:
    from helpers.graph.peer import closed_after
    from helpers.navigator_bench import Bench

    with closed_after(Bench()) as bench:
        yield bench


@pytest.fixture
def start(bench: Bench) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def begin(
        *arguments: str, program: list[str] = MODULE, ready: bool = True
    ) -> subprocess.Popen[str]:
        ros = ["--ros-args", *arguments] if arguments else []
        process = subprocess.Popen(
            [sys.executable, *program, *ros], stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        bench.until(lambda: bench.states and bench.words.get_subscription_count())
        bench.until(lambda: bench.e_stop.get_subscription_count())
        bench.until(lambda: bench.instruction.get_subscription_count())
        bench.until(lambda: bench.count_publishers("cmd_vel"))
        if ready:
            bench.until(lambda: bench.state.detail != "the navigator is not active")
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()
