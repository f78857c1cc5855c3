"""Nodes of ours under an rclpy that is as Humble's, and beside a node that is as Humble's are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.graph import humble
from helpers.graph.peer import Peer
from helpers.navigator_bench import Bench
from rcl_interfaces.msg import Log
from std_msgs.msg import Bool

from edge_cloud_spec.nodes import bridge_messages
from edge_cloud_spec.nodes.runtime import transport
from edge_cloud_spec.nodes.runtime.transport import LOCALHOST_ONLY, PROFILE_VARIABLES, RANGE
from edge_cloud_spec.wire.messages import Close
from edge_cloud_spec_lab.running.running_graph import this_machine

NODES = ("cloud_bridge", "drafter")

# The transports of rmw_fastrtps 6.2, Humble's, under ROS_LOCALHOST_ONLY.
LOOPBACK = """<profiles xmlns="http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles">
  <transport_descriptors>
    <transport_descriptor><transport_id>udp</transport_id><type>UDPv4</type>
      <interfaceWhiteList><address>127.0.0.1</address></interfaceWhiteList></transport_descriptor>
    <transport_descriptor><transport_id>shm</transport_id><type>SHM</type></transport_descriptor>
  </transport_descriptors>
  <participant profile_name="humble" is_default_profile="true"><rtps>
    <userTransports><transport_id>udp</transport_id><transport_id>shm</transport_id></userTransports>
    <useBuiltinTransports>false</useBuiltinTransports>
  </rtps></participant>
</profiles>"""
NEIGHBOUR = """
from helpers.graph.peer import Peer
with Peer() as peer:
    assert peer.set_parameters_of("stop_guard", {}) == []
"""


def test_words_move_and_a_stop_ends_it_where_callbacks_get_the_message_alone(
    bench: Bench, start: Any
) -> None:
    start(program=humble.program("edge_cloud_spec.nodes.navigator"))
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.turning)
    bench.publish("stop")
    bench.until(lambda: bench.halted and bench.said("stopped", "r1", "told to stop"))
    bench.instruct("find the red box")
    bench.e_stop.publish(Bool(data=True))
    bench.until(lambda: bench.state.e_stopped)


def test_no_callback_of_drafter_and_bridge_fails_where_it_gets_the_message_alone(
    launch: Any,
) -> None:
    """They serve parameters, and publish diagnostics."""
    given = {"drafter": ("model.path:=bytes",), "cloud_bridge": ("cloud:=127.0.0.1:1",)}
    for node in NODES:
        arguments = [part for value in given.get(node, ()) for part in ("-p", value)]
        launch(humble.program(f"edge_cloud_spec.nodes.{node}"), *arguments)
    with Peer() as peer:
        logs = peer.collect(Log, "/rosout", 100)
        peer.hear_diagnostics()
        for node in NODES:
            peer.until(lambda node=node: f"/{node}" in peer.last)
            assert peer.set_parameters_of(node, {}) == []
        assert not [log.msg for log in logs if "callback failed" in log.msg]


def test_nodes_on_the_loopback_interface_alone_and_ours_hear_each_other(
    launch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(RANGE)
    monkeypatch.setenv(LOCALHOST_ONLY, "1")
    launch(humble.program("edge_cloud_spec.nodes.stop_guard"))
    profile = tmp_path / "loopback.xml"
    profile.write_text(LOOPBACK)
    theirs = {**dict.fromkeys(PROFILE_VARIABLES, str(profile)), RANGE: "SYSTEM_DEFAULT"}
    environment = {**os.environ, **theirs, "PYTHONPATH": str(humble.TESTS)}
    del environment[LOCALHOST_ONLY]
    subprocess.run([sys.executable, "-c", NEIGHBOUR], env=environment, check=True, timeout=120)


def test_what_demo_and_bench_start_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_machine() == {RANGE: "LOCALHOST"}
    monkeypatch.setattr(transport, "HAS_RANGE", False)
    assert this_machine() == {LOCALHOST_ONLY: "1"}


class Bytes(bytes):
    """Of which nobody looks at each one."""

    def __iter__(self) -> Any:
        raise AssertionError("byte by byte, a picture takes a tenth of a second")


def test_a_payload_is_not_checked_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bridge_messages.encode_client(Close()).data
    encoded = SimpleNamespace(data=Bytes(data))
    monkeypatch.setattr(bridge_messages, "encode_client", lambda message: encoded)
    assert bridge_messages.to_request(Close(), "").payload.tobytes() == data
