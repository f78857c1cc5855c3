"""What robots decode with a verifier that is made as ``serve`` makes it."""

from __future__ import annotations

from functools import cache
from typing import Any

from edge_cloud_spec.cloud.command import make_worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.edge.runner import Outcome
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.request import Request
from edge_cloud_spec.wire.messages import Open
from edge_cloud_spec_lab.bench.requests import sample_requests
from edge_cloud_spec_lab.harness.grpc_robot import GrpcRobot
from edge_cloud_spec_lab.harness.server import InProcessServer, parsed

TARGET, DRAFTER = EMBEDDED / "target", EMBEDDED / "drafter"
POLICY = SamplingPolicy(0.8, top_p=0.95, seed=7)


def worker_of(*options: str) -> Any:
    """The worker of ``serve`` with these options."""
    return make_worker(parsed(options))


def opening_of(request: Request, rule: str = "greedy", policy: SamplingPolicy = GREEDY) -> Open:
    """What a robot opens a decode with."""
    return Open(0, request, policy, rule)


@cache
def embedded_drafter() -> Any:
    return load_drafter(DraftModelSettings())


def answers(worker: Any, names: list[str], rule: str, count: int, seed: int = 0) -> list[Any]:
    """What each of these presets makes of so many requests."""
    drafter, said = embedded_drafter(), list[Any]()
    policy, requests = GREEDY if rule == "greedy" else POLICY, sample_requests(seed, count)
    with (
        InProcessServer(worker) as cloud,
        GrpcRobot(cloud.address, drafter, worker._models.spec) as robot,
    ):
        for name in names:
            settings = DecodeSettings(load_preset(name), rule, policy)
            for request in requests:
                outcome = robot.decode(request, settings)
                assert outcome.completed, (name, outcome)
                said.append((name, request.text, outcome.tokens))
    return said


def refused(outcome: Outcome, complaint: str, reason: str) -> None:
    """It ended with one sentence, which has this complaint."""
    assert not outcome.completed and outcome.reason == reason, outcome
    assert complaint in outcome.text and "\n" not in outcome.text and len(outcome.text) <= 504
