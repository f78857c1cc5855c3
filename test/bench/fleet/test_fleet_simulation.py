"""The simulation beside the virtual harness, and where its answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.lab.bench.fleet.figures import figures
from edge_cloud_spec.lab.bench.fleet.scripted import FleetModel, FleetSimulation
from edge_cloud_spec.lab.harness.fleet.load import FleetLoad, RoundTime
from edge_cloud_spec.lab.harness.fleet.virtual_fleet import VirtualFleet
from edge_cloud_spec.lab.harness.regimes import custom_regime
from edge_cloud_spec.presets import load_preset

CHEAP = custom_regime(4.0, draft_ms=3.0, verify_ms=10.0, ar_ms=10.0, alpha=0.7)
ROUND = RoundTime(0.0, 0.0, 3, draft_s=0.03, drafted=4)
MODEL = FleetModel([ROUND], lambda drafted: 0.05, lambda robot: 0.01)
LOAD = FleetLoad(tokens=30, seconds=20.0)


def test_a_robot_alone_waits_for_nobody() -> None:
    row = figures(FleetSimulation(MODEL, 1, 1, LOAD).run(), 2.0, 20.0)
    assert row["round_ms_p50"] == pytest.approx(100.0)
    assert row["round_ms_p99"] == pytest.approx(100.0)
    assert row["tokens_per_s"] == pytest.approx(30.0, rel=0.02)


def test_one_at_a_time_serves_no_more_than_its_passes_and_a_batch_serves_all() -> None:
    alone = FleetSimulation(MODEL, 8, 1, LOAD, WorkerLimits(batch=1))
    row = figures(alone.run(), 2.0, 20.0)
    assert row["tokens_per_s"] == pytest.approx(3 / 0.05, rel=0.02)
    assert row["round_ms_p50"] == pytest.approx(8 * 50.0, rel=0.2) and alone.busy > 0.98
    assert row["fairness"] > 0.99
    together = figures(FleetSimulation(MODEL, 8, 1, LOAD).run(), 2.0, 20.0)
    assert together["tokens_per_s"] > 3.0 * row["tokens_per_s"]
    spread = figures(FleetSimulation(MODEL, 8, 8, LOAD, WorkerLimits(batch=1)).run(), 2.0, 20.0)
    assert spread["round_ms_p99"] == pytest.approx(100.0)


def test_it_agrees_with_the_virtual_harness() -> None:
    preset, load = load_preset("dsd"), FleetLoad(tokens=40, seconds=3.0)
    (alone,) = VirtualFleet(CHEAP, 1, preset, load).run()
    model = FleetModel(
        [one for one in alone.rounds if not one.first],
        lambda drafted: CHEAP.batch_pass_ms(drafted) / 1e3,
        lambda robot: load.link(CHEAP, robot).delay_ms / 1e3,
    )
    real = figures(VirtualFleet(CHEAP, 3, preset, load).run(), 0.3, 3.0)
    mine = figures(FleetSimulation(model, 3, 1, load).run(), 0.3, 3.0)
    for name in ("tokens_per_s", "round_ms_p50"):
        assert mine[name] == pytest.approx(real[name], rel=0.25), name


def test_more_replicas_cost_more_and_wait_less(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    options = "--simulate 60 --robots 1 --seconds 1.5 --simulated-seconds 4 --pause 0.5"
    arguments = ["bench", "fleet", *options.split(), "--preset", "dsd", "--json", str(path)]
    assert main(arguments) == 0
    checked, few, many = json.loads(path.read_text())["rows"]
    assert checked["harness"] == "simulated" and abs(checked["error_round_ms_p50"]) < 0.2
    assert few["robots"] == many["robots"] == 60
    assert many["replicas"] == 2 * few["replicas"]
    assert many["dollars_per_hour"] == 2 * few["dollars_per_hour"] > 0
    assert many["busy"] < few["busy"] <= 1.0
    assert main(["bench", "fleet", "--simulate", "9", "--preset", "auto"]) == 2
