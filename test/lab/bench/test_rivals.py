"""``auto`` beside the best of the same cloud, over seeds."""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

import pytest
from helpers.suites import rows

from edge_cloud_spec.cli import main
from edge_cloud_spec_lab.bench import rivals

FEW = "--cost-profile today-27b-mtp,today-7b --rtt 20 --seeds 2 --answers 1 --processes 1"


def test_a_row_has_auto_over_the_best_of_its_cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[argparse.Namespace] = []
    seconds = {"cloud_ar": 20.0, "cloud_mtp": 10.0, "cloud_sd": 12.0, "auto": 9.0}

    def missions(args: argparse.Namespace) -> list[rivals.Row]:
        asked.append(args)
        return [
            {
                "preset": preset,
                "mission_s_mean": seconds[preset] + (args.seed == 13),
                "success": 1.0,
                "not_own": 0,
            }
            for preset in args.presets.split(",")
            if preset != "cloud_mtp" or args.cost_profile != "today-7b"
        ]

    monkeypatch.setattr(rivals.mission, "run", missions)
    with_head, without = rows(
        "rivals", tmp_path, *FEW.split(), "--tokens", "60", "--scenes", "4", seed=3
    )
    assert (with_head["seeds"], with_head["rooms"], with_head["passed"]) == (2, 8, True)
    assert with_head["paper"] in ("dsd", "picospec", "specedge")
    fast = [with_head[name] for name in ("cloud_mtp", "cloud_sd", "paper_tokens_per_s")]
    assert max(fast) > with_head["cloud_ar"] > 0
    assert with_head["auto_over_best"] == pytest.approx(with_head["auto"] / max(fast))
    assert len(with_head["auto_over_best_by_seed"]) == 2
    assert with_head["auto_mission_s"] == 9.5 and with_head["cloud_mtp_mission_s"] == 10.5
    assert with_head["auto_mission_over_best"] == pytest.approx(9.5 / 10.5)
    assert mean(with_head["auto_mission_over_best_by_seed"]) == pytest.approx((0.9 + 10 / 11) / 2)
    assert "cloud_mtp" not in without
    assert without["auto_mission_over_best"] == pytest.approx(9.5 / 12.5)
    assert [(one.seed, one.scenes, one.rtt) for one in asked[:2]] == [
        (3, 4, [20.0]),
        (13, 4, [20.0]),
    ]
    assert {one.presets for one in asked} == {"cloud_ar,cloud_mtp,cloud_sd,auto"}


@pytest.mark.parametrize("wrong", ["--presets cloud_ar", "--seeds 0", "--scenes -1"])
def test_what_compares_nothing_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rivals", *wrong.split()]) == 2
    assert "--presets needs auto and cloud_ar" in capsys.readouterr().err
