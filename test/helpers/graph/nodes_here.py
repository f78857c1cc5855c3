"""Nodes of ours in this process: any one, as it is or spun, those of a graph, and who plays a
bridge's drafter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import pytest
import rclpy
from helpers.graph.peer import Peer
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor

from edge_cloud_spec.bringup.graph import GraphSettings
from edge_cloud_spec.edge.link.state import LinkReport
from edge_cloud_spec.msg import DecodeRequest, Draft, LinkState, Verdict
from edge_cloud_spec.nodes.cloud_bridge import CloudBridge
from edge_cloud_spec.nodes.runtime.qos import DECODE, EACH_STATE
from edge_cloud_spec_lab.replay.player import NAMESPACE
from edge_cloud_spec_lab.running.running_graph import LaunchConfig, command


class Hearer(Peer):
    """The drafter's and the operator's ear, and the drafter's mouth."""

    def __init__(self, bridge: CloudBridge) -> None:
        super().__init__("hearer")
        self.bridge = bridge
        self.hear_diagnostics()
        self.verdicts = self.collect(Verdict, "verdict", DECODE)
        self.states: list[str] = []
        self.create_subscription(
            LinkState,
            "link_state",
            lambda message: self.states.append(str(LinkReport.read(message))),
            EACH_STATE,
        )
        self.requests = self.create_publisher(DecodeRequest, "decode_request", DECODE)
        self.drafts = self.create_publisher(Draft, "draft", DECODE)
        topics = (self.requests, self.drafts)
        self.until(lambda: all(topic.get_subscription_count() for topic in topics))
        self.until(lambda: self.count_publishers("verdict") and self.states)

    def known(self) -> object:
        return self.states, [verdict.text for verdict in self.verdicts]

    def now(self, state: str) -> bool:
        """Whether the link is in this state."""
        return bool(self.states) and self.states[-1].split()[0] == state


@contextmanager
def context(*arguments: str) -> Iterator[None]:
    """The default context of nodes that are made in it, with these arguments for them.

    rclpy has one default for a process: of several, that which was made last. Nodes of ours ask for
    it only while they are made.
    """
    own = Context()
    rclpy.init(args=["--ros-args", *arguments], context=own)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rclpy.utilities, "g_default_context", own)
            yield
    finally:
        rclpy.shutdown(context=own)


@contextmanager
def made(kind: Callable[[], Any]) -> Iterator[Any]:
    """A node that nothing spins, in a context that is there."""
    node = kind()
    try:
        yield node
    finally:
        node.close()
        node.destroy_node()


@contextmanager
def served(kind: Callable[[], Any]) -> Iterator[Any]:
    """The same, brought up and spun."""
    with made(kind) as node:
        executor = SingleThreadedExecutor(context=node.context)
        executor.add_node(node)
        thread = threading.Thread(target=executor.spin, daemon=True)
        node.bring_up()
        thread.start()
        try:
            yield node
        finally:
            executor.shutdown(timeout_sec=5.0)
            thread.join(5.0)


def given(parameters: Mapping[str, object]) -> list[str]:
    """These parameters as arguments."""
    return [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]


@contextmanager
def node_here(kind: Callable[[], Any], **parameters: object) -> Iterator[Any]:
    """A node with these parameters; nothing spins it."""
    with context(*given(parameters)), made(kind) as node:
        yield node


@contextmanager
def running(kind: Callable[[], Any], **parameters: object) -> Iterator[Any]:
    """A node with these parameters, brought up and spun."""
    with context(*given(parameters)), served(kind) as node:
        yield node


@contextmanager
def program_here(argv: Sequence[str]) -> Iterator[None]:
    """The nodes of a command line of ours, with its arguments: as a process of its own a drafter
    would import torch and transformers."""
    _, _, module, ros, *arguments = argv
    assert ros == "--ros-args"
    with context(*arguments), ExitStack() as nodes:
        for kind in import_module(module).main.args:  # of ``spin``
            nodes.enter_context(served(kind))
        yield


@contextmanager
def graph_here(config: LaunchConfig) -> Iterator[None]:
    """The nodes of a graph."""
    with ExitStack() as programs:
        for spec in config.specs:
            programs.enter_context(program_here(command(spec, config.settings)))
        yield


@contextmanager
def replay_here(cloud: str, history: int = 0) -> Iterator[None]:
    """The nodes of a replay, at this verifier; its prompts remember so many frames."""
    settings = GraphSettings(sim="false", namespace=NAMESPACE, cloud=cloud, history=history)
    left_out = frozenset({"navigator", "container", "stop_guard"})
    with graph_here(LaunchConfig(settings, {}, left_out)):
        yield


@contextmanager
def running_bridge(**parameters: object) -> Iterator[Hearer]:
    """The bridge with these parameters, and who plays its drafter."""
    with running(CloudBridge, **parameters) as bridge, Hearer(bridge) as hearer:
        yield hearer
