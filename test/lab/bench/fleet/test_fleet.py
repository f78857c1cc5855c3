"""Fleets in virtual time: the figures, the real worker, its baseline, and controls that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.suites import rows

from edge_cloud_spec.decoding.cost_model import profile
from edge_cloud_spec.decoding.shape import BestFirst
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec_lab.bench.fleet.figures import figures, mean_of
from edge_cloud_spec_lab.bench.fleet.server_only import run_server_only
from edge_cloud_spec_lab.harness.cost_profiles import custom_cost_profile, load_server_cost_profile
from edge_cloud_spec_lab.harness.emulated_link import LinkProfile
from edge_cloud_spec_lab.harness.fleet.load import FleetLoad, RobotActivity, RoundTime
from edge_cloud_spec_lab.harness.fleet.virtual_fleet import run_fleet
from edge_cloud_spec_lab.harness.scripted import model
from edge_cloud_spec_lab.harness.scripted.model import CalibratedVlm, ScriptedModels, TargetVlm
from edge_cloud_spec_lab.harness.scripted_robot import ScriptedHarness

CHEAP = custom_cost_profile(4.0, draft_ms=3.0, verify_ms=10.0, ar_ms=10.0, alpha=0.7)
LOAD = FleetLoad(tokens=24, think_s=0.05, seconds=1.0)
DSD = load_preset("dsd")


def test_a_row_counts_the_rounds_of_its_time() -> None:
    rounds = [RoundTime(t / 10, 0.1, 2, first=t == 1) for t in range(1, 21)]
    one = RobotActivity(rounds, [(1.9, 38)], answers=1)
    row = figures([one], 0.95, 1.95)
    assert row["tokens_per_s"] == pytest.approx(20.0)
    assert row["round_ms_p50"] == pytest.approx(100.0)
    assert row["token_ms_p50"] == pytest.approx(50.0)
    assert row["equal"] is True and row["fairness"] == 1.0
    wrong = RobotActivity(rounds, one.spans, answers=1, wrong=1)
    assert figures([one, wrong], 0.0, 2.0)["equal"] is False
    idle = figures([one, RobotActivity()], 0.0, 2.0)
    assert idle["equal"] is False and idle["fairness"] == 0.5, "one of two gets all"
    assert figures([RobotActivity()], 0.0, 2.0)["fairness"] == 0.0
    merged = mean_of([row, row | {"tokens_per_s": 24.0, "equal": False}])
    assert merged["tokens_per_s"] == pytest.approx(22.0)
    assert merged["tokens_per_s_spread"] == pytest.approx(4.0)
    assert merged["equal"] is False and merged["answers"] == 2


def test_a_fleet_of_one_decodes_in_the_times_of_the_harness_for_one() -> None:
    load = FleetLoad(tokens=60, seconds=0.2)
    (activity,) = run_fleet(CHEAP, 1, DSD, load)
    harness = ScriptedHarness(ScriptedModels(CHEAP), load.link(CHEAP, 0))
    alone = harness.robot.decode(DSD, 60, load.answer_seed(0, 0))
    times = [one.settled - one.start for one in alone.outcome.stats.rounds]
    assert [one.seconds for one in activity.rounds] == pytest.approx(times, abs=1e-6)
    assert activity.answers == 1 and not activity.wrong + activity.lost
    assert load.link(CHEAP, 0) != load.link(CHEAP, 1) != LinkProfile(CHEAP.one_way_ms)


class _Wrong(CalibratedVlm):
    """A target that errs now and then."""

    def row(self, state: int) -> Any:
        return super().row(state)[:: -1 if state % 40 == 0 else 1]


def test_a_wrong_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "TargetVlm", lambda *given: TargetVlm(*given[:2], _Wrong()))
    row = figures(run_fleet(CHEAP, 2, DSD, LOAD), 0.0, 1.0)
    assert row["equal"] is False and row["wrong"] > 0


def test_the_baseline_makes_the_published_tokens_and_times() -> None:
    server = load_server_cost_profile("specedge-32b")
    tree = BestFirst(server.nodes, server.server_only_depth, server.width)
    expected, robots = (
        profile(tree, alpha, server.cost_profile.runner_up).tokens
        for alpha in (server.server_only_alpha, server.cost_profile.alpha)
    )
    assert expected == pytest.approx(4.02, rel=0.01)
    assert robots == pytest.approx(server.cost_profile.published["tokens_per_verify"], rel=0.01)
    row = figures(run_server_only(server, 1, FleetLoad(64, seconds=4.0)), 0.0, 4.0)
    assert row["round_ms_p50"] == pytest.approx(42.36 * 4.02, rel=0.01)  # SpecEdge 5.3
    assert row["equal"] and row["tokens_per_verify"] == pytest.approx(expected, rel=0.4)


def test_a_bench_of_fleets_has_a_row_for_each_server_and_size(tmp_path: Path) -> None:
    options = "--robots 1,4 --seeds 2 --seconds 0.6 --tokens 8 --server batched,server_only"
    found = rows("fleet", tmp_path, *options.split(), "--preset", "dsd")
    assert [(row["server"], row["robots"]) for row in found] == [
        (server, robots) for robots in (1, 4) for server in ("batched", "server_only")
    ]
    for row in found:
        assert row["equal"] and row["passed"] and row["tokens_per_s_spread"] >= 0
        assert row["harness"] == "scripted" and row["round_ms_p99"] >= row["round_ms_p50"] > 0
        assert row["fairness"] > 0.8
    assert found[1]["throughput_ratio"] == found[1]["token_ratio"] == 1.0
