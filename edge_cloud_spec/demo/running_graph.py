"""The node graph as processes of this machine, on a ROS domain of its own, up and connected."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ..errors import UserError
from ..nodes.graph import LOCAL, GraphSettings, NodeSpec, Value, command, graph
from ..nodes.processes import Processes, Program
from .observer import Observer

DOMAINS = range(1, 101)  # ROS_DOMAIN_ID that every Linux has free ports for
MATCHING = 0.5  # s that nodes need to find each other after we have found them all
STARTUP = 240.0  # s; two cores, both busy with something else, once took 90

Parameters = Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True)
class Cast:
    """Who is on stage: the graph's settings, parameters by node, and who stays away."""

    settings: GraphSettings
    parameters: Parameters = field(default_factory=dict)
    absent: frozenset[str] = frozenset()

    @property
    def specs(self) -> tuple[NodeSpec, ...]:
        """The graph's processes with the parameters of this run."""
        specs = (spec for spec in graph(self.settings) if spec.name not in self.absent)
        return tuple(
            replace(
                spec, parameters=(*spec.parameters, *self.parameters.get(spec.name, {}).items())
            )
            for spec in specs
        )


@dataclass(frozen=True)
class RunningGraph:
    """A graph that is up, and who listens to it."""

    domain: int
    observer: Observer
    processes: Processes


@contextlib.contextmanager
def stage(
    cast: Cast,
    folder: Path,
    bag: Path | None,
    on_ready: Callable[[str, float], None] = lambda name, seconds: None,
    startup: float = STARTUP,
) -> Iterator[RunningGraph]:
    """Start the graph, wait until it is up, and end it on the way out, whatever happened.

    ``on_ready`` hears each part's name and the seconds that it took. Raises UserError when a part
    ends by itself or is not up after ``startup`` seconds.
    """
    domain = free_domain()
    environment = {
        "ROS_DOMAIN_ID": str(domain),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "PYTHONUNBUFFERED": "1",
        # a picture of 256 x 256 is not worth a thread pool beside two models
        "LP_NUM_THREADS": os.environ.get("LP_NUM_THREADS", "1"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    os.environ.update({name: environment[name] for name in list(environment)[:2]})
    specs = cast.specs
    programs = [Program(spec.name, command(spec, cast.settings)) for spec in specs]
    begun = time.monotonic()
    with Processes(programs, environment, folder) as processes, Observer(domain, bag) as observer:
        waiting = {spec.name: spec for spec in specs}
        while waiting:
            for name in [name for name in waiting if is_up(name, observer, cast.settings)]:
                del waiting[name]
                on_ready(name, time.monotonic() - begun)
            processes.check()
            if time.monotonic() - begun > startup:
                name = next(iter(waiting))
                raise UserError(
                    f"{name} is not up after {startup:g} s: {processes.last_words(name)}"
                )
            time.sleep(0.1)
        time.sleep(MATCHING)
        yield RunningGraph(domain, observer, processes)


def is_up(name: str, observer: Observer, settings: GraphSettings) -> bool:
    """Whether this part does what others rely on."""
    if name == "cloud_verifier":
        return is_serving(settings.address)
    if name == "cloud_bridge":
        return {"draft", "decode_request"} <= {
            topic for topic in ("draft", "decode_request") if name in observer.listeners(topic)
        }
    if name in ("drafter", "navigator"):
        said = "instruction_status" if name == "drafter" else "nav_status"
        spoken = observer.heard(lambda story: getattr(story, said))
        return bool(spoken) and name in observer.listeners("instruction")
    if name == "simulator":
        return bool(observer.heard(lambda story: story.outcomes and story.frames))
    return True  # rviz and the like: nobody waits for them


def is_serving(address: str) -> bool:
    """Whether a verifier answers that it serves."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def free_address() -> str:
    """A loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def free_domain() -> int:
    """A ROS domain that nobody on this machine is in, by the port of its first participant."""
    for domain in random.sample(DOMAINS, len(DOMAINS)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("", 7410 + 250 * domain))  # DDSI-RTPS 9.6.1: 7400 + 250 d + 10 + 2 p
            except OSError:
                continue
            return domain
    raise UserError("all ROS domains from 1 to 100 are in use on this machine")


__all__ = ["LOCAL", "Cast", "RunningGraph", "free_address", "stage"]
