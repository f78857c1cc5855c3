"""Runs the node graph as processes on this machine, in a free ROS domain."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from edge_cloud_spec.bringup.graph import GraphSettings, NodeSpec, Value, graph
from edge_cloud_spec.edge.link.state import LinkQuality
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nodes.runtime import transport
from edge_cloud_spec.nodes.runtime.parent import ENDS_WITH_LAUNCH
from edge_cloud_spec.nodes.runtime.transport import LOCALHOST_ONLY, RANGE
from edge_cloud_spec.wire.channel import HEALTH_METHOD, HEALTH_SERVING, NO_PROXY, health_request

from .observer import Observer
from .processes import Processes

DOMAINS = range(1, 101)  # values of ROS_DOMAIN_ID whose ports every Linux leaves free
DISCOVERY = 0.5  # s that nodes need to discover each other after the observer has them all
GRAPH_STARTUP_S = 240.0  # s; on two busy cores 90 were measured

Parameters = Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True)
class LaunchConfig:
    """The nodes to start: the graph's settings, extra parameters by node, nodes left out."""

    settings: GraphSettings
    parameters: Parameters = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    @property
    def specs(self) -> tuple[NodeSpec, ...]:
        """The graph's processes with the parameters of this run."""
        specs = (spec for spec in graph(self.settings) if spec.name not in self.left_out)
        return tuple(
            replace(
                spec, parameters=(*spec.parameters, *self.parameters.get(spec.name, {}).items())
            )
            for spec in specs
        )


def command(spec: NodeSpec, settings: GraphSettings) -> list[str]:
    """The command line that starts a process of ours without ROS's launch."""
    argv = [sys.executable, "-m", f"{spec.folder}.{spec.name}", *spec.arguments]
    if not spec.is_node:
        return argv
    argv += ["--ros-args"]
    if not spec.nodes:
        argv += ["-r", f"__node:={spec.name}"]
    if spec.namespace:
        argv += ["-r", f"__ns:=/{spec.namespace.strip('/')}"]
    for topic, other in spec.remappings:
        argv += ["-r", f"{topic}:={other}"]
    for file in settings.parameter_files:
        argv += ["--params-file", file]
    for name, value in spec.parameters:
        argv += ["-p", f"{name}:={json.dumps(value)}"]
    return argv


@dataclass(frozen=True)
class RunningGraph:
    """A running graph, and the node that observes its topics."""

    domain: int
    observer: Observer
    processes: Processes


@contextlib.contextmanager
def launch_graph(
    config: LaunchConfig,
    folder: Path,
    bag: Path | None,
    on_ready: Callable[[str, float], None] = lambda name, seconds: None,
) -> Iterator[RunningGraph]:
    """A context in which the graph runs: starts it, waits until it is ready, and ends it in any
    case.

    ``on_ready`` gets each process's name and its start-up time, s. Raises UserError if one ends by
    itself or is not ready after ``GRAPH_STARTUP_S`` seconds.
    """
    domain = free_domain()
    here = {"ROS_DOMAIN_ID": str(domain), **this_machine()}  # for this process's nodes, too
    environment = {
        **here,
        "PYTHONUNBUFFERED": "1",
        ENDS_WITH_LAUNCH: str(os.getpid()),  # a node looks whether this one ended before it
        # rendering 256 x 256 pixels is not worth a thread pool beside two models
        "LP_NUM_THREADS": os.environ.get("LP_NUM_THREADS", "1"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    os.environ.update(here)
    specs = config.specs
    programs = {spec.name: command(spec, config.settings) for spec in specs}
    begun = time.monotonic()
    with (
        Processes(programs, environment, folder) as processes,
        Observer(domain, bag, config.settings.namespace) as observer,
    ):
        waiting = {spec.name: spec for spec in specs}
        while waiting:
            for name in [name for name in waiting if is_ready(name, observer, config.settings)]:
                del waiting[name]
                on_ready(name, time.monotonic() - begun)
            processes.check()
            if time.monotonic() - begun > GRAPH_STARTUP_S:
                name = next(iter(waiting))
                raise UserError(
                    f"{name} is not up after {GRAPH_STARTUP_S:g} s: {processes.last_error(name)}"
                )
            time.sleep(0.1)
        time.sleep(DISCOVERY)
        yield RunningGraph(domain, observer, processes)


def is_ready(name: str, observer: Observer, settings: GraphSettings) -> bool:
    """Whether this process is ready for the others."""
    if name == "cloud_verifier":
        return is_serving(settings.address)
    if name == "cloud_bridge":
        subscribes = all(name in observer.subscribers(t) for t in ("draft", "decode_request"))
        # one that serves may not have been found yet, which a first decision would complain of
        link = observer.read(lambda run_log: run_log.link_state)
        found = link is not None and link.quality == LinkQuality.CLOUD
        return subscribes and (found or not settings.starts_verifier)
    if name in ("drafter", "navigator"):
        topic = "instruction_status" if name == "drafter" else "nav_status"
        status = observer.read(lambda run_log: getattr(run_log, topic))
        return status is not None and name in observer.subscribers("instruction")
    if name == "simulator":
        return bool(observer.read(lambda run_log: run_log.outcomes and run_log.frames))
    return True  # rviz and the like: no node depends on them


def is_serving(address: str) -> bool:
    """Whether a verifier reports SERVING."""
    with grpc.insecure_channel(address, NO_PROXY) as channel:
        try:
            reply = channel.unary_unary(HEALTH_METHOD)(health_request(), timeout=1.0)
        except grpc.RpcError:
            return False
    return bool(reply == HEALTH_SERVING)


def free_address() -> str:
    """A loopback address with a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def this_machine() -> dict[str, str]:
    """What keeps ROS nodes on this machine, as environment."""
    return {RANGE: "LOCALHOST"} if transport.HAS_RANGE else {LOCALHOST_ONLY: "1"}


def free_domain() -> int:
    """A ROS domain without a participant on this machine, by the port of its first one."""
    for domain in random.sample(DOMAINS, len(DOMAINS)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("", 7410 + 250 * domain))  # DDSI-RTPS 9.6.1: 7400 + 250 d + 10 + 2 p
            except OSError:
                continue
            return domain
    raise UserError("all ROS domains from 1 to 100 are in use on this machine")
