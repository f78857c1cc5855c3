"""A target on a vLLM server: drafts are verified there, and answers are those of our own engine."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.vllm_peer import VllmPeer

from edge_cloud_spec.cloud.command import add_serve_arguments, make_worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.edge.runner import DecodeSettings
from edge_cloud_spec.lab.bench.requests import sample_requests
from edge_cloud_spec.lab.harness.grpc_robot import GrpcRobot
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load_drafter import load_drafter
from edge_cloud_spec.presets import load_preset

TARGET, DRAFTER = EMBEDDED / "target", EMBEDDED / "drafter"
POLICY = SamplingPolicy(0.8, top_p=0.95, seed=7)


def worker_of(*options: str) -> Any:
    parser = ArgumentParser()
    add_serve_arguments(parser)
    return make_worker(parser.parse_args(options))


@pytest.fixture(scope="module")
def peer() -> Iterator[VllmPeer]:
    with VllmPeer(TARGET) as peer:
        yield peer


def answers(worker: Any, names: list[str], rule: str, count: int) -> list[Any]:
    drafter = load_drafter(str(DRAFTER))
    said = []
    policy = GREEDY if rule == "greedy" else POLICY
    with Cloud(worker) as cloud, GrpcRobot(cloud.address, drafter, worker._models.spec) as robot:
        for name in names:
            settings = DecodeSettings(load_preset(name), rule, policy)
            for request in sample_requests(0, count):
                outcome = robot.decode(request, settings)
                assert outcome.completed, (name, outcome)
                said.append((name, request.instruction, outcome.tokens))
    return said


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
def test_every_preset_says_what_it_says_with_our_own_engine(peer: VllmPeer, rule: str) -> None:
    names = ["dsd", "auto", "picospec", "specedge", "cloud_ar", "fsd", "dssd", "tslt"]
    if rule != "rejection":
        names = [n for n in names if n not in ("dssd", "tslt")]
    there = worker_of("--target", f"vllm:{peer.url}", "--checkpoint", str(TARGET))
    here = worker_of("--target", str(TARGET), "--device", "cpu", "--dtype", "float32")
    assert answers(there, names, rule, 2) == answers(here, names, rule, 2)
