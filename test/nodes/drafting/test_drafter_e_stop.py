"""The real drafter under an e_stop: latched or not, an instruction is refused and forgotten."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("rclpy")
from helpers.navigator_bench import PATIENCE, Bench
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import Bool, String

from edge_cloud_spec.nav.mission import STARTED

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def test_an_instruction_during_e_stop_is_refused_in_words_and_forgotten(
    bench: Bench, start: Any
) -> None:
    said: list[str] = []
    stop = bench.create_publisher(Bool, "e_stop", LATCHED)
    stop.publish(Bool(data=True))  # before the drafter begins, as for one that starts again
    bench.create_subscription(
        String, "instruction_status", lambda message: said.append(message.data), LATCHED
    )
    start()
    start(program=["-m", "edge_cloud_spec.nodes.drafter"])
    bench.until(lambda: said and said[-1] == f"idle {STARTED}", 4 * PATIENCE)  # a model is loaded
    bench.until(lambda: bench.instruction.get_subscription_count() >= 2)
    bench.instruction.publish(String(data="find the red box"))
    bench.until(lambda: said[-1].startswith("failed e_stop is on; publish the instruction again"))
    stop.publish(Bool(data=False))
    bench.until(lambda: "released; publish an instruction" in bench.state.detail)
    assert not any(line.startswith("following") for line in said)
    bench.instruction.publish(String(data="find the red box"))
    bench.until(lambda: said[-1].startswith("following find the red box"))
    bench.e_stop.publish(Bool(data=True))
    bench.until(lambda: said[-1].startswith("idle e_stop"))
