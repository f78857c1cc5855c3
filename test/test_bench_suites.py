"""The benchmarks run as a user runs them, on little data; their figures hold what they promise."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edge_cloud_spec.bench.samples import compare, tail
from edge_cloud_spec.cli import main
from edge_cloud_spec.decoding.preset import load_preset, preset_names


def rows(suite: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    path = folder / "rows.json"
    assert main(["bench", suite, "--json", str(path), "--seed", "3", *options]) == 0
    content = json.loads(path.read_text())
    assert content["suite"] == suite and content["seed"] == 3 and content["versions"]["torch"]
    return content["rows"]


def test_every_preset_says_the_targets_own_tokens(tmp_path: Path) -> None:
    measured = rows("equality", tmp_path, "--prompts", "4", "--samples", "20")
    verified = [name for name in preset_names() if load_preset(name).verified]
    assert len(measured) == 3 * len(verified) >= 24
    assert {(row["preset"], row["rule"]) for row in measured} == {
        (preset, rule) for preset in verified for rule in ("greedy", "coupled", "rejection")
    }
    for row in measured:
        if row["rule"] != "rejection":
            assert row["equal"] == row["prompts"] == 4
        elif row["exact"]:
            assert row["p_value"] > 1e-4


def test_samples_of_two_distributions_are_told_apart() -> None:
    dice = Random(0)
    fair, same = ([dice.randrange(6) for _ in range(600)] for _ in range(2))
    loaded = [min(5, dice.randrange(7)) for _ in range(600)]
    assert compare(fair, same).freedom == 5
    assert compare(fair, same).p_value > 0.01
    assert compare(fair, loaded).p_value < 1e-4
    assert compare([1] * 9, [1] * 9).p_value == 1.0
    assert [round(tail(x, k), 3) for x, k in ((3.841, 1), (11.07, 5), (31.41, 20))] == [
        pytest.approx(0.05, abs=0.004)
    ] * 3


def test_the_same_rooms_are_driven_alike_with_and_without_a_drafter(tmp_path: Path) -> None:
    measured = rows("drive", tmp_path, "--scenes", "1", "--processes", "1", "--renderer", "rays")
    verified = [row for row in measured if row["preset"] != "edge_only"]
    assert len(verified) == len(measured) - 1
    assert all(row["same_decisions_as_cloud_ar"] == 1.0 for row in verified)
    assert all(row["tokens"] > 0 and row["scenes"] == 1 for row in measured)


def test_peers_decode_the_same_tokens(tmp_path: Path) -> None:
    measured = rows("peers", tmp_path, "--shapes", "embedded", "--requests", "2")
    assert len(measured) == 5
    assert all(row["tokens_equal"] == 1.0 and row["tokens_per_s"] > 0 for row in measured)


def test_a_benchmark_refuses_what_it_cannot_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "drive", "--scenes", "0"]) == 2
    assert main(["bench", "equality", "--prompts", "1", "--target", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert all(line.startswith("error: ") for line in errors if line)
