"""Which transports a node's participant has: a process that dies within shared memory stops those
who share it, so our nodes have none; whoever has sits in this process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from helpers.graph.peer import Peer
from hypothesis import given
from hypothesis import strategies as st
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import Bool

from edge_cloud_spec.bringup.graph import CONTAINED
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.msg import NavStatus
from edge_cloud_spec.nodes.runtime.transport import (
    LOCALHOST_ONLY,
    PROFILE_VARIABLES,
    RANGE,
    udp_alone,
)
from edge_cloud_spec.share import share

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
PROCESSES = ("navigator", "stop_guard", "container")
NODES = ("navigator", "stop_guard", *CONTAINED)
SWITCHES = ("FASTDDS_BUILTIN_TRANSPORTS", *PROFILE_VARIABLES)
VARIABLES = (*SWITCHES, RANGE, LOCALHOST_ONLY, "ROS_STATIC_PEERS")
RANGES = {
    "localhost": {RANGE: "LOCALHOST"},
    "subnet": {RANGE: "SUBNET"},
    "deprecated": {RANGE: "", LOCALHOST_ONLY: "1"},
    "peers": {RANGE: "LOCALHOST", "ROS_STATIC_PEERS": "localhost;127.0.0.1"},
}


def shared_memory(pid: int) -> set[str]:
    """Fast DDS' segments and ports that the process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text("utf-8")
    return {line.split("/dev/shm/")[1] for line in maps.splitlines() if "/dev/shm/fast" in line}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Nothing chosen; what a node sets in this process is undone."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield monkeypatch


@pytest.mark.parametrize("name", RANGES)
def test_no_node_of_ours_is_in_shared_memory_and_who_is_there_and_ours_hear_each_other(
    environment: pytest.MonkeyPatch, launch: Any, name: str
) -> None:
    for variable, value in RANGES[name].items():
        environment.setenv(variable, value)
    running = [launch(["-m", f"edge_cloud_spec.nodes.{name}"]) for name in PROCESSES]
    with Peer() as peer:
        status = peer.collect(NavStatus, "nav_status", LATCHED)
        peer.create_publisher(Bool, "e_stop", LATCHED).publish(Bool(data=True))
        peer.until(lambda: status and "e_stop" in status[-1].detail)
        for node in NODES:
            assert peer.set_parameters_of(node, {}) == []  # it hears, and answers
        assert shared_memory(os.getpid())  # there is some, and the peer is in it
        assert not set().union(*(shared_memory(process.pid) for process in running))


def test_what_the_user_has_chosen_stays(
    environment: pytest.MonkeyPatch, launch: Any, tmp_path: Path
) -> None:
    own = tmp_path / "own.xml"
    own.write_text('<profiles xmlns="http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles"/>')
    environment.setenv(PROFILE_VARIABLES[0], str(own))
    environment.setenv(RANGE, "LOCALHOST")
    guard: subprocess.Popen[str] = launch(["-m", "edge_cloud_spec.nodes.stop_guard"])
    with Peer() as peer:
        peer.hear_diagnostics()
        peer.until(lambda: "/stop_guard" in peer.last)
        assert shared_memory(guard.pid)


@pytest.mark.parametrize("switch", [*SWITCHES, "DEFAULT_FASTRTPS_PROFILES.xml", "another RMW"])
def test_other_middleware_and_a_users_profile_are_left_alone(
    environment: pytest.MonkeyPatch, tmp_path: Path, switch: str
) -> None:
    environment.chdir(tmp_path)
    environment.setenv(RANGE, "LOCALHOST")
    with udp_alone():
        assert os.environ[PROFILE_VARIABLES[0]]  # without any of these it acts
    for name in PROFILE_VARIABLES:
        environment.delenv(name)
    environment.setenv(RANGE, "LOCALHOST")
    if switch in SWITCHES:
        environment.setenv(switch, "UDPv6")
    elif switch.endswith(".xml"):
        (tmp_path / switch).touch()
    else:
        name = "get_rmw_implementation_identifier"
        environment.setattr(rclpy, name, lambda: "rmw_cyclonedds_cpp")
    before = dict(os.environ)
    with udp_alone():
        assert dict(os.environ) == before


@given(
    st.one_of(st.sampled_from(["", "OFF", "SUBNET", "SYSTEM_DEFAULT", "LOCALHOST"]), st.just("x")),
    st.sampled_from(["", "0", "1"]),
    st.lists(st.from_regex(r"127\.[1-9]\.0\.[1-9]", fullmatch=True), max_size=3),
)
def test_a_node_asks_no_further_than_the_discovery_range_says(
    discovery: str, only: str, peers: list[str]
) -> None:
    """Where only this machine is to be asked, nothing is heard by multicast, and nobody is asked
    but the peers that the range asks, too; a wider range stays as it is."""
    local = only == "1" or discovery in ("LOCALHOST", "x")
    with pytest.MonkeyPatch.context() as patch:
        for name in SWITCHES:
            patch.setenv(name, "")
        given_ = {RANGE: discovery, LOCALHOST_ONLY: only, "ROS_STATIC_PEERS": ";".join(peers)}
        for name, value in given_.items():
            patch.setenv(name, value)
        with udp_alone():
            profile = Path(os.environ[PROFILE_VARIABLES[0]])
            text = profile.read_text("utf-8")
            if not local:
                assert profile.name == "udp.xml" and os.environ[RANGE] == discovery
                return
            assert os.environ[RANGE] == "SYSTEM_DEFAULT" and LOCALHOST_ONLY not in os.environ
            asked = text.split("<initialPeersList>")[1].split("</initialPeersList>")[0]
            addresses = [part.split("<")[0] for part in asked.split("<address>")[1:]]
            assert addresses == ["127.0.0.1", *(peers if only != "1" else [])]
            assert "<metatrafficUnicastLocatorList>" in text and "239." not in text
        assert profile.exists() == (profile.parent == share() / "config/dds")


def test_a_peer_that_nobody_knows_is_told_in_one_sentence(environment: pytest.MonkeyPatch) -> None:
    environment.setenv(RANGE, "LOCALHOST")
    environment.setenv("ROS_STATIC_PEERS", "no..such..peer")
    with pytest.raises(UserError, match=r"ROS_STATIC_PEERS: 'no[.][.]such"), udp_alone():
        pass
