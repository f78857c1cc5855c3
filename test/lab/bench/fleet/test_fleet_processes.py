"""Fleets of real clients: processes and recorded drafts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from helpers.cloud.api_peer import ANSWER, ApiPeer
from helpers.suites import rows

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.edge.decode_options import DecodeSettings
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.load_drafter import DraftModelSettings, load_drafter
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec_lab.bench.fleet.embedded import (
    RecordedAnswers,
    embedded_worker,
    record_robots,
)
from edge_cloud_spec_lab.bench.fleet.figures import figures
from edge_cloud_spec_lab.bench.requests import sample_requests
from edge_cloud_spec_lab.harness.emulated_link import LinkProfile
from edge_cloud_spec_lab.harness.fleet.load import FleetLoad
from edge_cloud_spec_lab.harness.fleet.robot_processes import RobotPlan, run_robots
from edge_cloud_spec_lab.harness.grpc_robot import GrpcRobot
from edge_cloud_spec_lab.harness.server import ServerProcess, VerifierProcess

DSD = load_preset("dsd")


def test_robots_in_processes_of_their_own_decode_over_links_of_their_own() -> None:
    recorded = record_robots(sample_requests(5, 2))
    load = FleetLoad(think_s=0.02, seconds=0.5)
    plans = [
        RobotPlan(n, partial(RecordedAnswers, recorded, n), DSD, load, LinkProfile(5.0))
        for n in range(2)
    ]
    with ServerProcess(partial(embedded_worker, WorkerLimits())) as server:
        row = figures(run_robots(plans, server.address), 0.0, 600.0)
    assert row["equal"] and row["answers"] >= 2 and row["round_ms_p50"] > 10.0
    assert row["tokens_per_verify"] > 2.0, "their recorded drafts are accepted"


def test_a_verifier_in_a_process_of_its_own_serves_or_is_one_sentence() -> None:
    with ApiPeer() as api:
        model = load_drafter(DraftModelSettings(path="bytes"))  # without torch, as the target
        with (
            VerifierProcess(["--target", f"openai:{api.url}", "--model", "m"]) as server,
            GrpcRobot(server.address, model, model.spec(64)) as robot,
        ):
            outcome = robot.decode(*sample_requests(5, 1), DecodeSettings(load_preset("cloud_ar")))
        assert outcome.completed and model.tokenizer.decode(outcome.tokens) == ANSWER
    with pytest.raises(UserError, match="/nowhere"):
        VerifierProcess(["--target", "/nowhere"])


def test_a_bench_of_passes_runs_without_a_gpu(tmp_path: Path) -> None:
    options = "--robots 1,2 --nodes 1,4 --prompt 32 --trials 1"
    found = rows("passes", tmp_path, *options.split())
    assert [(row["robots"], row["nodes"]) for row in found] == [(1, 1), (1, 4), (2, 1), (2, 4)]
    for row in found:
        assert row["verify_ms"] > 0 < row["limit_ms"] and row["exits_ratio"] > 0 < row["head_ms"]
        assert row["transformers_ms"] > 0
