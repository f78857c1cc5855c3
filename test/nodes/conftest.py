"""A ROS domain for each module, nodes in processes of their own, and a navigator in this one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from helpers.graph.launching import launching
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


launch = pytest.fixture(launching, name="launch")
launch_once = pytest.fixture(launching, name="launch_once", scope="module")


@pytest.fixture
def bench(launch: object) -> Iterator[Bench]:
    """It ends before ``launch`` kills: Fast DDS 2.14 crashes where a participant ends beside a
    process that was killed as it wrote to its shared memory (``Listener::regenerate_port``)."""
    from helpers.navigator_bench import Bench

    with Bench() as bench:
        yield bench


def find_navigator(bench: Bench, ready: bool) -> None:
    """Wait until the navigator is there, and both hear all that the other says."""
    heard = (bench.words, bench.e_stop, bench.instruction)
    bench.until(lambda: bench.states and bench.count_publishers("cmd_vel"))
    bench.until(lambda: all(publisher.get_subscription_count() for publisher in heard))
    bench.match("navigator")
    if ready:
        bench.until(lambda: bench.state.detail != "the navigator is not active")


@pytest.fixture
def start(
    bench: Bench, launch: Callable[..., subprocess.Popen[str]]
) -> Callable[..., subprocess.Popen[str]]:
    """Starts the navigator, or a program that is one, and waits until it is there."""

    def begin(
        *arguments: str, program: list[str] = MODULE, ready: bool = True
    ) -> subprocess.Popen[str]:
        # Last: what stands before a parameter file is overridden by it.
        process = launch(program, *arguments, "-p", "listen:=0.2")
        find_navigator(bench, ready)
        return process

    return begin


@pytest.fixture
def start_here(bench: Bench) -> Iterator[Callable[..., None]]:
    """As ``start``, with the navigator in this process."""
    from helpers.graph.nodes_here import running

    from edge_cloud_spec.nodes.navigator import NavigatorNode

    with ExitStack() as nodes:

        def begin(parameters: Mapping[str, object], ready: bool = True) -> None:
            nodes.enter_context(running(NavigatorNode, **{"listen": 0.2, **parameters}))
            find_navigator(bench, ready)

        yield begin
