"""The benchmarks run as a user runs them, on little data; their figures hold what they promise."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from helpers.suites import rows

from edge_cloud_spec.cli import main
from edge_cloud_spec.decoding.suffix_index import BYTES_PER_SUFFIX, SuffixIndex
from edge_cloud_spec.edge.measures import Measures, Round
from edge_cloud_spec.lab.bench.acceptance import ChoiceShares, Share, cache_hits
from edge_cloud_spec.lab.bench.chi_square import compare, tail
from edge_cloud_spec.lab.bench.figures import PICTURES
from edge_cloud_spec.lab.bench.lookup import HOSTILE, RecordedAnswer, Replayed, replay
from edge_cloud_spec.presets import load_preset, preset_names

DOCS = Path(__file__).parents[2] / "docs"


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


def test_lookup_leaves_the_targets_own_tokens(tmp_path: Path) -> None:
    options = "--prompts 3 --samples 0 --lookup --presets cloud_ar,dsd,dssd,specedge"
    for row in rows("equality", tmp_path, *options.split()):
        assert row["lookup"] and row["equal"] == row["prompts"] == 3


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


def test_a_drive_says_how_pre_drafts_and_choices_did(tmp_path: Path) -> None:
    options = ["--scenes", "1", "--processes", "1", "--renderer", "rays"]
    dsd, fsd, auto = rows("drive", tmp_path, *options, "--presets", "dsd,fsd,auto:coupled")
    assert [row["rule"] for row in (dsd, fsd, auto)] == ["greedy", "greedy", "coupled"]
    assert dsd["cache_hit"] is dsd["second_choice"] is None
    assert 0 <= fsd["cache_hit"] <= 1
    for row in (dsd, fsd):  # of chains, every drafted token is a first choice
        assert row["first_choice"] == pytest.approx(row["acceptance"])
        assert row["same_decisions_as_cloud_ar"] is None


def test_the_embedded_pair_says_its_own_tokens_over_an_emulated_link(tmp_path: Path) -> None:
    measured = rows(
        "pipelines",
        tmp_path,
        *("--regime", "embedded", "--harness", "grpc", "--presets", "dsd,fsd"),
        *("--rtt", "4", "30", "--jitter", "2", "--answers", "2"),
    )
    assert [(row["rtt_ms"], row["preset"]) for row in measured] == [
        (rtt, preset) for rtt in (4.0, 30.0) for preset in ("cloud_ar", "dsd", "fsd")
    ]
    assert all(row["equal"] == row["answers"] == 2 and row["passed"] for row in measured)
    assert all(row["speedup"] == 1.0 for row in measured if row["preset"] == "cloud_ar")
    for row in measured:
        assert 0 <= row["robot_idle"] <= 1 and row["cloud_idle"] < 1 and row["tokens_per_s"] > 0
        assert (row["acceptance"] is None) == (row["preset"] == "cloud_ar")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--rtt", "20"], "--harness grpc"),
        (["--harness", "grpc"], "--rtt"),
        (["--harness", "grpc", "--rtt", "-1"], "0 or more"),
        (["--harness", "grpc", "--rtt", "20", "--draft-ms", "5", "--gamma", "2"], "--draft-ms"),
        (["--harness", "grpc", "--rtt", "20", "--tokens", "9"], "--tokens"),
        (["--harness", "grpc", "--rtt", "20", "--answers", "0"], "--answers"),
        (["--harness", "grpc", "--rtt", "20", "--regime", "fsd-go2,embedded"], "alone"),
        (["--harness", "grpc", "--rtt", "20", "--presets", "edge_only"], "edge_only"),
    ],
)
def test_what_does_not_go_with_the_embedded_pair_is_refused(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "pipelines", "--regime", "embedded", *options]) == 2
    assert why in capsys.readouterr().err


def test_peers_decode_the_same_tokens(tmp_path: Path) -> None:
    measured = rows("peers", tmp_path, "--shapes", "embedded", "--requests", "2")
    assert len(measured) == 7
    assert all(row["tokens_equal"] == 1.0 and row["tokens_per_s"] > 0 for row in measured)


def test_a_benchmark_refuses_what_it_cannot_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "drive", "--scenes", "0"]) == 2
    assert main(["bench", "drive", "--presets", "dsd:rejection"]) == 2
    assert main(["bench", "equality", "--prompts", "1", "--target", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert all(line.startswith("error: ") for line in errors if line)


@pytest.mark.parametrize(
    "options",
    [
        ["mission", "--seed", "-1"],
        ["mission", "--rtt", "nan"],
        ["mission", "--ar-ms", "inf"],
        ["mission", "--draft-ms", "nan"],
        ["mission", "--outage", "inf,1"],
        ["mission", "--presets", "auto:explain=none:explain=full"],
        ["mission", "--presets", "auto:lookup=maybe"],
        ["mission", "--json", "/nowhere/rows.json"],
        ["lookup", "--seed", "-1"],
        ["lookup", "--temperature", "nan"],
        ["lookup", "--nodes", "0"],
        ["lookup", "--nodes", "1000000"],
        ["lookup", "--nodes", "four"],
        ["equality", "--prompts", "0"],
        ["equality", "--samples", "-1"],
        ["equality", "--temperature", "nan"],
        ["models", "--rtt", "nan"],
        ["pipelines", "--rtt", "nan"],
        ["grammar", "--prompts", "0"],
        ["peers", "--shapes", "7B"],
        ["grammar", "--target", "/nowhere"],
        ["grammar", "--preset", "nosuch"],
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["bench", *options])
    except SystemExit as end:
        code = end.code
    assert code == 2 and "error:" in capsys.readouterr().err


def test_a_room_is_told_again_and_an_index_attacked(tmp_path: Path) -> None:
    options = "--scenes 1 --processes 1 --renderer rays --nodes 4,16 --answers 50 --suffixes 5000"
    measured = rows("lookup", tmp_path, *options.split())
    assert [row["what"] for row in measured] == ["replay"] * 2 + ["lookup"] * 2 + ["hostile"] * 4
    assert [row["nodes"] for row in measured[:4]] == [4, 16, 4, 16]
    assert 1 < measured[0]["tokens_per_pass"] <= measured[1]["tokens_per_pass"]
    assert {row["of"] for row in measured[4:]} == set(HOSTILE)
    assert all(
        row["bytes"] == 5000 * BYTES_PER_SUFFIX and row["ms_p99"] > 0 for row in measured[2:]
    )


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_passes_of_a_replay_are_those_of_its_drafts(nodes: int) -> None:
    """The same answer three times: token by token, then a chain and a token in each pass."""
    answer = RecordedAnswer("find it", (), (1, 2, 3, 4, 5, 6))
    done = replay([answer] * 3, SuffixIndex(1000), nodes, with_words=True)
    assert done == Replayed(6 + 2 * (6 // (nodes + 1) + (6 % (nodes + 1) > 0)), 18, done.proposed)
    others = [RecordedAnswer("find it", (), tuple(range(7 * n, 7 * n + 6))) for n in range(3)]
    assert replay(others, SuffixIndex(1000), nodes, with_words=True).tokens_per_pass == 1


def test_random_weights_answer_with_actions_in_the_grammar_alone(tmp_path: Path) -> None:
    main(["bench", "grammar", "--prompts", "2", "--seed", "8", "--json", str(tmp_path / "rows")])
    measured = json.loads((tmp_path / "rows").read_text())["rows"]  # its times may not pass
    for checkpoint in ("random", "embedded"):
        own = [row for row in measured if row["checkpoint"] == checkpoint]
        assert len(own) == 4  # both orders, without and with it
        for row in own:
            in_grammar = row["grammar"] == "action"
            known = checkpoint == "embedded" or in_grammar
            assert row["actions"] == (row["answers"] if known else 0)
            if in_grammar:
                assert 0 < row["forced"] < 1
                assert row["same_actions"] == (2 if checkpoint == "embedded" else 0)


def test_exits_are_right_so_often_and_at_such_a_cost(tmp_path: Path) -> None:
    measured = rows("exits", tmp_path, "--requests", "3", seed=0)
    assert {row["rule"] for row in measured} == {"greedy", "coupled"}
    for rule in ("greedy", "coupled"):
        hits = {row["depth"]: row["hit"] for row in measured if row["rule"] == rule}
        assert 0.6 in hits and 0.3 < hits[0.6] <= 1
        assert [hits[depth] for depth in sorted(hits)] == sorted(hits.values())
    assert all(row["verify_ratio"] > 0 and row["rounds"] > 10 for row in measured)
    assert main(["bench", "exits", "--requests", "1", "--exits", str(tmp_path)]) == 2


def test_each_picture_of_the_page_is_drawn_from_the_json_beside_it(tmp_path: Path) -> None:
    for file in (DOCS / "figures").glob("*.json"):
        shutil.copy(file, tmp_path)
    for picture in PICTURES:
        picture(tmp_path)
    drawn = {file.name for file in tmp_path.glob("*.png")}
    assert drawn == {file.name for file in (DOCS / "figures").glob("*.png")}
    page = (DOCS / "benchmarks.md").read_text()
    assert all(f"](figures/{name})" in page for name in drawn)


ROUND = Round(base=5, drafted=4, accepted=1, emitted=2, start=0.0, sent=0.0, settled=1.0)


def test_choices_are_counted_without_the_prior() -> None:
    measures = Measures()
    assert ChoiceShares.of(measures).first.value is None
    for _ in range(900):
        measures.acceptance.observe(0.0)
    before = ChoiceShares.of(measures)
    for right in (1.0, 0.0, 0.0, 0.0):
        measures.acceptance.observe(right)
    measures.runner_up.observe(1.0)
    since = ChoiceShares.of(measures) - before
    assert since.first == Share(1.0, 4) and since.second.value == 1.0
    assert (before + since).first.value == pytest.approx(1 / 904)
    assert measures.runner_up.value < 0.6  # what auto plans with has a prior


def test_a_cache_hit_is_a_draft_that_was_ready_before_the_verdict() -> None:
    ready = replace(ROUND, waited=False)
    first, alone = replace(ROUND, base=0), replace(ready, drafted=0)
    assert cache_hits([first, ready, alone, ROUND, ready]) == Share(2, 3)
    assert cache_hits([first, alone]).value is None
