"""A fleet on Ray itself: a replica killed with -9 costs no word, and comes back."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator

import pytest
from helpers.cloud.grpc_robot import OWN, REQUEST, settings, toy_robot
from helpers.cloud.small_fleet import LoopThread

from edge_cloud_spec.cloud.fleet.scaling import ScalingLimits
from edge_cloud_spec.cloud.fleet.serving import Fleet
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.events import Emit
from edge_cloud_spec.harness.toy import toy_replica

pytest.importorskip("ray", reason="the extra fleet is not installed")


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


def test_a_replica_killed_under_its_robot_costs_no_word_and_comes_back(loop: LoopThread) -> None:
    served = ServerSettings("127.0.0.1:0", metrics="127.0.0.1:0")
    fleet = Fleet(toy_replica, served, ScalingLimits(2, 2))
    try:
        address = loop.run(fleet.start(2))
        before, killed = dict(fleet.controller.pids), []
        link = VerifierClient(ClientSettings(address, retry_s=0.02))

        def on_emit(emit: Emit) -> None:
            if emit.position > 3 and not killed:
                (name,) = fleet.roster.placed
                killed.append(name)
                os.kill(before[name], signal.SIGKILL)

        outcome = toy_robot().run(REQUEST, settings("dsd", "coupled"), 1, link.connect, on_emit)
        assert outcome.tokens == OWN
        assert len(killed) == 1
        while fleet.controller.pids[killed[0]] == before[killed[0]]:
            time.sleep(0.02)  # Ray starts it again
        again = toy_robot().run(REQUEST, settings("dsd", "coupled"), 2, link.connect)
        assert again.tokens == OWN
        link.close()
        assert fleet.metrics is not None
        with urllib.request.urlopen(f"http://{fleet.metrics.address}/metrics") as answer:
            said = answer.read().decode()
        for name in before:
            assert f'fleet_replica_up{{replica="{name}"}} 1.0' in said
            assert f'generation_tokens_total{{replica="{name}"}}' in said
    finally:
        loop.run(fleet.stop())
