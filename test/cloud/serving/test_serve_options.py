"""``serve``'s options reach the worker: ``--passes fixed`` serves, and replicas get them all."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from helpers.checkpoints import jpeg

from edge_cloud_spec.cli import main
from edge_cloud_spec.lab.harness.server import VerifierProcess

INSTRUCTION = "find the silver bottle"


def test_fixed_passes_are_served_and_decoded_through(tmp_path: Path) -> None:
    """The embedded pair by the command line: with a drafter and without one, the same words."""
    picture = tmp_path / "picture.jpg"
    picture.write_bytes(jpeg(1))
    options = ["--passes", "fixed", "--threads", "1", "--batch", "4", "--kv-memory", "64"]
    answers: list[str] = []
    with VerifierProcess(options) as cloud:
        for preset in ("dsd", "cloud_ar"):
            path = tmp_path / "outcome.json"
            given = ["--cloud", cloud.address, "--preset", preset, "--rule", "coupled"]
            assert main(["decode", str(picture), INSTRUCTION, *given, "--json", str(path)]) == 0
            outcome = json.loads(path.read_text())
            answers.append(outcome["answer"])
            assert outcome["tokens"] > 3 and (outcome["accepted"] > 0) == (preset == "dsd")
    assert answers[0] == answers[1]


def test_a_fleets_replicas_get_the_options_of_their_models_and_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Ray is handed is made in another process: it is pickled, and called."""
    handed: list[bytes] = []

    def serve_fleet(make: Any, *_: object) -> None:
        handed.append(pickle.dumps(make))

    monkeypatch.setattr("edge_cloud_spec.cloud.fleet.ray_fleet.serve_fleet", serve_fleet)
    options = "--replicas 2 --passes fixed --threads 1 --batch 3 --batch-rows 99 --kv-memory 64"
    assert main(["serve", *options.split(), "--address", "127.0.0.1:0"]) == 0
    worker = pickle.loads(handed[0])()
    assert (worker.kv_memory.limit, worker.kv_memory.usage) == (64 * 2**20, 0.0)
    limits = worker.limits
    assert (limits.batch, limits.batch_rows) == (3, 99)
    assert worker._models.target.transformer.masks_itself  # as fixed passes do
