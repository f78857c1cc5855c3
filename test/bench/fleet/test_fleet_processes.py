"""Fleets of real clients: processes and recorded drafts."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.edge.runner import DecodeRunner, DecodeSettings
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.bench.fleet.embedded import (
    RecordedAnswers,
    embedded_worker,
    record_robots,
)
from edge_cloud_spec.lab.bench.fleet.figures import figures
from edge_cloud_spec.lab.bench.requests import sample_requests
from edge_cloud_spec.lab.harness.emulated_link import LinkProfile
from edge_cloud_spec.lab.harness.fleet.load import FleetLoad
from edge_cloud_spec.lab.harness.fleet.robot_processes import RobotPlan, run_robots
from edge_cloud_spec.lab.harness.server import InProcessServer, ServerProcess, VerifierProcess
from edge_cloud_spec.presets import load_preset

DSD = load_preset("dsd")


def test_robots_in_processes_of_their_own_decode_over_links_of_their_own() -> None:
    recorded = record_robots(sample_requests(5, 2))
    load = FleetLoad(think_s=0.02, seconds=0.5)
    plans = [
        RobotPlan(n, partial(RecordedAnswers, recorded, n, 1), DSD, load, LinkProfile(5.0))
        for n in range(2)
    ]
    with ServerProcess(partial(embedded_worker, WorkerLimits())) as server:
        row = figures(run_robots(plans, server.address), 0.0, 600.0)
    assert row["equal"] and row["answers"] >= 2 and row["round_ms_p50"] > 10.0
    with pytest.raises(UserError, match="/nowhere"):
        VerifierProcess(["--target", "/nowhere"])


def test_recorded_drafts_are_accepted_as_the_drafters_own_are() -> None:
    recorded = record_robots(sample_requests(5, 2))
    answers = RecordedAnswers(recorded, 1)
    request, own = answers.next(0)
    assert request == recorded.recordings[1].request
    with (
        InProcessServer(embedded_worker(WorkerLimits())) as server,
        closing(VerifierClient(ClientSettings(server.address))) as client,
    ):
        runner = DecodeRunner(answers.draft_model, answers.spec)  # type: ignore[arg-type]
        outcome = runner.run(request, DecodeSettings(DSD, reply_timeout=60.0), 1, client.connect)
    assert outcome.tokens == own, outcome.text
    wrong = sum(a != b for a, b in zip(own, recorded.recordings[1].drafted, strict=True))
    rejected = sum(r.accepted < min(r.drafted, 4) for r in outcome.stats.rounds)
    assert rejected <= wrong and outcome.stats.accepted > 0
    assert recorded.recordings[1].acceptance == 1 - wrong / len(own)


def test_a_bench_of_passes_runs_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    options = "--robots 1,2 --nodes 1,4 --prompt 32 --trials 1"
    assert main(["bench", "passes", *options.split(), "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["robots"], row["nodes"]) for row in rows] == [(1, 1), (1, 4), (2, 1), (2, 4)]
    for row in rows:
        assert row["verify_ms"] > 0 < row["limit_ms"] and row["exits_ratio"] > 0
        assert row["transformers_ms"] > 0
    assert main(["bench", "passes", "--robots", "0"]) == 2
