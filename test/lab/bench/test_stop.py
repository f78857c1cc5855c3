"""The stop suite with one trial: the whole graph, whose models run in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

pytest.importorskip("rclpy")
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.served_answers import worker_of
from helpers.graph.nodes_here import program_here
from helpers.suites import arguments

from edge_cloud_spec_lab.bench import stop
from edge_cloud_spec_lab.bench.live import LiveRig


def test_e_stop_is_heard_while_a_decode_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    start = LiveRig.start
    with ExitStack() as here:

        def start_verifier(rig: LiveRig, **options: str) -> None:
            argv = rig.verifier_command(rig.verifier_address, **options)
            here.enter_context(Cloud(worker_of(*argv[3:]), address=rig.verifier_address))

        def start_others(rig: LiveRig, name: str, argv: Sequence[str]) -> None:
            if name != "drafter":
                start(rig, name, argv)
                return
            monkeypatch.setenv("ROS_DOMAIN_ID", str(rig.node.context.get_domain_id()))
            here.enter_context(program_here(argv))

        monkeypatch.setattr(LiveRig, "start_verifier", start_verifier)
        monkeypatch.setattr(LiveRig, "start", start_others)
        (row,) = stop.run(arguments("stop", "--trials", "1"))
    assert row["trials"] == 1 and row["load"] > 0
    assert 0 < row["ms_p50"] <= row["ms_p99"]
    assert 0 < row["bare_ms_p50"] <= row["bare_ms_p99"]
