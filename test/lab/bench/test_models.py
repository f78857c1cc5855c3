"""``bench models``: acceptance, times and promise of two checkpoints on pictures of a bag."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.served_answers import worker_of
from helpers.suites import rows

pytest.importorskip("mujoco")
from edge_cloud_spec.decoding.cost_model import Costs
from edge_cloud_spec.models.load import load
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec_lab.bench import models
from edge_cloud_spec_lab.bench.formulas import promised
from edge_cloud_spec_lab.bench.models import (
    CHAIN_TOKENS,
    PairMeasures,
    measure,
    opened,
    promises,
)
from edge_cloud_spec_lab.bench.requests import sample_requests
from edge_cloud_spec_lab.harness.random_checkpoint import TINY, make_pair

COSTS = Costs(lambda n: 0.002, lambda n: 0.05, 0.05, 0.02, 0.8, 0.5)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    shape = replace(TINY, hidden=64, heads=4)
    return make_pair(tmp_path_factory.mktemp("pair"), shape, shape, agreement=0.7)


def measured(target: Path, drafter: Path, tokens: int = 24) -> PairMeasures:
    ours, theirs = load(target, threads=1), load(drafter, threads=1)
    spec, into = ours.spec(tokens), PairMeasures()
    for request in sample_requests(3, 2, "rays"):
        sessions = [opened(model, spec, request)[0] for model in (ours, theirs)]
        measure(*sessions, spec, into)
    return into


def test_a_model_that_drafts_for_itself_is_always_right(pair: tuple[Path, Path]) -> None:
    found = measured(pair[0], pair[0])
    assert found.by_depth == [1.0] * CHAIN_TOKENS and found.wrong == 0
    other = measured(*pair)
    assert 0.2 < other.acceptance < 1.0
    assert other.reached == sorted(other.reached, reverse=True)
    assert all(a <= r for a, r in zip(other.accepted, other.reached, strict=True))
    assert sum(other.reached) - sum(other.accepted) == other.wrong


def test_what_is_promised_follows_the_formula_and_the_link() -> None:
    chain = 1 + 0.8 + 0.8**2 + 0.8**3 + 0.8**4  # tokens of a round of four drafted ones
    assert promised(load_preset("dsd"), COSTS) == pytest.approx(chain / (0.05 + 0.04 + 4 * 0.002))
    assert promised(load_preset("cloud_ar"), COSTS) == pytest.approx(20.0)
    far = replace(COSTS, one_way=2.0, draft=lambda n: 0.5)
    names = list(promises(far))
    assert names.index("cloud_ar") < names.index("dsd")
    near = list(promises(COSTS))
    assert near.index("dsd") < near.index("cloud_ar") and "dssd" not in near


def test_auto_is_promised_no_less_than_the_cloud_by_itself_and_what_its_best_plan_gives() -> None:
    """At any costs: what it does first is to measure, which is not what it comes to."""
    random, led = Random(29), 0
    for _ in range(60):
        draft, verify = random.uniform(1e-4, 0.05), random.uniform(1e-3, 0.1)
        costs = Costs(
            lambda nodes, s=draft: s,  # type: ignore[misc]
            lambda nodes, s=verify: s * (1 + nodes / 50),  # type: ignore[misc]
            *(verify, random.uniform(0.0, 0.2), random.uniform(0.0, 0.99), 0.3),
        )
        auto, alone = (promised(load_preset(name), costs) for name in ("auto", "cloud_ar"))
        assert auto >= alone
        led += auto > alone
    assert 6 < led < 54, "either happens"


def test_a_pair_on_a_bag_has_a_row_for_each_picture_limit_and_a_checked_promise(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier is in this process."""
    pytest.importorskip("rclpy")
    pytest.importorskip("rosbags")
    from helpers.bags import make_bag

    monkeypatch.setattr(models, "VerifierProcess", lambda options: Cloud(worker_of(*options)))
    bag = make_bag(tmp_path / "bag", seconds=1.5, raw="rgb8")
    options = ["--target", str(pair[0]), "--drafter", str(pair[1]), "--bag", str(bag)]
    options += ["--say", "find the red chair", "--frames", "2", "--max-tokens", "12", "--rtt", "5"]
    options += ["--max-pixels", "1500", "--max-image-tokens", "3", "--dialect", "uni_navid"]
    found = whole, resized, pruned = rows("models", tmp_path, *options)
    assert [row["max_pixels"] for row in found] == [0, 1500, 0]
    assert [row["max_image_tokens"] for row in found] == [0, 0, 3]
    assert 0 < max(resized["draft_prompt"], pruned["draft_prompt"]) < whole["draft_prompt"]
    for row in found:
        assert row["frames"] == 2 and row["tokens"] == 24, "the target's, all of them"
        assert row["dialect"] == "uni_navid" and row["actions"] == 0, "a target that knows nothing"
        assert len(row["acceptance_by_depth"]) == CHAIN_TOKENS
        for name in ("draft_ms", "verify_ms", "prefill_ms", "promised_tokens_per_s", "ratio"):
            assert row[name] > 0, name
        assert row["preset"] in row["promised_by_preset"] and row["preset"] != "auto"
        assert row["target"] != row["drafter"] and row["decode_ms"] > 0
