"""The benchmarks run as a user runs them, on little data; their figures hold what they promise."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.served_answers import worker_of
from helpers.documents import line_error
from helpers.suites import rows

from edge_cloud_spec.cli import main
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.edge.measures import Round
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.presets import load_preset, preset_names
from edge_cloud_spec_lab.bench import equality, peers, pipelines
from edge_cloud_spec_lab.bench.ablations import accepted
from edge_cloud_spec_lab.bench.chi_square import compare, tail
from edge_cloud_spec_lab.bench.decodes import cache_hits

PARTS = ("exits", "lookup")
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def verifier_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifiers are in this process, where torch is imported."""
    for suite in (equality, peers, pipelines):
        monkeypatch.setattr(suite, "VerifierProcess", lambda options: Cloud(worker_of(*options)))


def test_every_preset_says_the_targets_own_tokens(tmp_path: Path, verifier_here: None) -> None:
    measured = rows("equality", tmp_path, "--prompts", "1", "--samples", "8")
    verified = [name for name in preset_names() if load_preset(name).verified]
    assert len(measured) == 3 * len(verified) >= 24
    assert {(row["preset"], row["rule"]) for row in measured} == {
        (preset, rule) for preset in verified for rule in ("greedy", "coupled", "rejection")
    }
    for row in measured:
        if row["rule"] != "rejection":
            assert (row["equal"], row["failed"]) == (row["prompts"], 0) == (1, 0)
        elif row["exact"]:
            assert row["freedom"] > 0, "nothing is compared"
            assert row["p_value"] > 1e-4


def test_every_preset_says_what_generate_says_under_a_generation_config(
    tmp_path: Path, verifier_here: None
) -> None:
    """Over gRPC; the target drafts for itself, so that all is accepted if the robot knows it."""
    model = Path(shutil.copytree(EMBEDDED / "target", tmp_path / "model"))
    config = json.loads((model / "generation_config.json").read_text())
    config |= {"repetition_penalty": 3.0, "no_repeat_ngram_size": 2, "min_new_tokens": 9}
    config |= {"do_sample": True, "temperature": 0.01, "top_p": 0.001, "top_k": 1}
    (model / "generation_config.json").write_text(json.dumps(config))
    options = ("--target", str(model), "--drafter", str(model), "--prompts", "1", "--samples", "0")
    measured = rows("equality", tmp_path, *options, "--max-tokens", "20")
    assert len(measured) >= 16
    for row in measured:
        assert row["equal"] == 1 and (row["preset"] != "dsd" or row["acceptance"] > 0.99), row


def test_a_decision_that_remembers_eight_frames_costs_one(tmp_path: Path) -> None:
    one, conversation = rows("frames", tmp_path, "--missions", "1", "--decisions", "10")
    assert conversation["prompt_tokens"] > 4 * one["prompt_tokens"]
    for model in ("cloud", "robot"):
        assert conversation[f"{model}_tokens"] < 1.15 * one[f"{model}_tokens"]
    assert conversation["up_bytes"] < 1.02 * one["up_bytes"]


def test_a_move_that_goes_around_arrives_where_one_on_its_line_is_blocked(tmp_path: Path) -> None:
    options = "--scenes", "2", "--players", "straight", "--processes", "1"
    on_its_line, around = rows("rooms", tmp_path, *options, seed=3)
    assert on_its_line["blocked"] > 0.0 and on_its_line["ways"] == 0.0
    assert around["arrived"] > on_its_line["arrived"] and around["ways"] > 0.0
    assert on_its_line["contacts"] == around["contacts"] == 0 and around["clearance_m"] > 0.05


def test_presets_drive_through_flats_as_their_target_does(tmp_path: Path) -> None:
    players = ("oracle", "target", "auto")
    options = ("--scenes", "1", "--players", *players, "--frames", "3", "--processes", "1")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in players}
    for row in rows("flats", tmp_path, *options, seed=22):
        found[row.pop("player")].append(row)
    assert found["oracle"][0]["success"] == 1.0
    assert found["target"] == found["auto"] != found["oracle"]


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


def test_the_embedded_pair_says_its_own_tokens_over_an_emulated_link(
    tmp_path: Path, verifier_here: None
) -> None:
    measured = rows(
        "pipelines",
        tmp_path,
        *("--cost-profile", "embedded", "--presets", "dsd,fsd"),
        *("--rtt", "4", "30", "--jitter", "2", "--answers", "1"),
    )
    assert [(row["rtt_ms"], row["preset"]) for row in measured] == [
        (rtt, preset) for rtt in (4.0, 30.0) for preset in ("cloud_ar", "dsd", "fsd")
    ]
    assert all(row["equal"] == row["answers"] == 1 and row["passed"] for row in measured)
    assert all(row["speedup"] == 1.0 for row in measured if row["preset"] == "cloud_ar")
    for row in measured:
        assert row["tokens_per_s"] > 0
        assert (row["acceptance"] is None) == (row["preset"] == "cloud_ar")


def test_peers_decode_the_same_tokens(tmp_path: Path, verifier_here: None) -> None:
    measured = rows("peers", tmp_path, "--requests", "1")
    assert len(measured) == 7
    assert all(row["tokens_equal"] == 1.0 and row["tokens_per_s"] > 0 for row in measured)


REFUSED = {
    "mission --scenes 0": "--scenes is at least 1",
    "mission --seed -1": "no whole number from 0",
    "mission --rtt nan": "give ms with commas",
    "mission --ar-ms inf": "no finite number",
    "mission --draft-ms nan": "no finite number",
    "mission --outage inf,1": "give EVERY,FOR",
    "mission --json /nowhere/rows.json": "/nowhere",
    "mission --presets auto:explain=none:explain=full": "explain is given twice",
    "mission --presets auto:lookup=maybe": "lookup",
    "mission --presets auto:explain=loudly": "explain",
    "mission --presets auto:speed=1": "no OPTION=VALUE",
    "mission --presets auto:drive=off": "drive",
    "mission --presets auto:grammar=all": "grammar",
    "mission --presets auto:way=person:seen=perhaps": "seen",
    "mission --presets auto:look=0": "look",
    "mission --presets auto:explain": "no OPTION=VALUE",
    "mission --presets auto:": "no OPTION=VALUE",
    "mission --presets nobody": "no preset 'nobody'",
    "equality --prompts 0": "--prompts is at least 1",
    "equality --prompts 1 --target /tmp": "/tmp",
    "equality --samples -1": "--samples is 0 or more",
    "equality --temperature nan": "--temperature must be a number from 0 to 10, not nan",
    "models --rtt nan": "no finite number",
    "models --frames 0": "--frames is at least 1",
    "models --bag /nowhere": "there is no bag",
    "models --up-mbps 0": "--up-mbps more than 0",
    "models --max-pixels -4": "max_pixels is -4",
    "models --max-image-tokens -4": "max_image_tokens is -4",
    "models --preset edge_only": "give one that is verified",
    "models --preset warp": "no preset 'warp'",
    "models --dialect klingon": "no dialect 'klingon'",
    "pipelines --rtt nan": "no finite number",
    "pipelines --cost-profile mars": "no cost profile 'mars'",
    "pipelines --cost-profile embedded": "give --rtt",
    "pipelines --cost-profile embedded --rtt -1": "0 or more",
    "pipelines --cost-profile embedded --rtt 20 --draft-ms 5 --gamma 2": "--draft-ms",
    "pipelines --cost-profile embedded --rtt 20 --tokens 9": "--tokens",
    "pipelines --cost-profile embedded --rtt 20 --answers 0": "--answers",
    "pipelines --cost-profile fsd-go2,embedded --rtt 20": "alone",
    "pipelines --presets edge_only": "edge_only",
    "ablations --requests 0": "--requests is at least 1",
    "ablations --target /nowhere": "/nowhere",
    "peers --requests 0": "--requests is at least 1",
    "payload --rounds 0": "--rounds is at least 1",
    "passes --robots 0": "of 1 or more",
    "flats --players dssdd": "no preset 'dssdd'",
    "fleet --server three": "--server is one of",
    "fleet --robots 0": "of 1 or more",
    "fleet --think -1": "0 or more",
    "fleet --cost-profile fsd-go2": "specedge-32b",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_cannot_be_measured_is_refused_in_a_sentence(
    options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["bench", *options.split()])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr().err
    (sentence,) = (line for line in told.splitlines() if "error: " in line)
    assert code == 2 and REFUSED[options] in sentence and "Traceback" not in told


def test_each_ablation_gives_what_it_promises(tmp_path: Path) -> None:
    measured = rows("ablations", tmp_path, "--requests", "4")
    parts = {part: [row for row in measured if row["part"] == part] for part in PARTS}
    assert all(row["with"] >= row["without"] and row["cost"] > 0 for row in measured[2:])
    assert all(0 < row["with"] <= 1 for row in parts["exits"])
    tokens = [row["with"] for row in parts["lookup"]]
    assert len(tokens) == 3 and 1 < tokens[0] <= tokens[1] <= tokens[2]


@pytest.mark.parametrize(
    ("tokens", "count"), [([], 0), ([1], 1), ([1, 2], 2), ([1, 3], 1), ([2, 1], 0), ([1, 2, 9], 2)]
)
def test_a_looked_up_draft_counts_up_to_its_first_wrong_token(
    tokens: list[int], count: int
) -> None:
    assert accepted(Draft(tuple(tokens)), [1, 2]) == count


def test_each_picture_of_the_page_is_drawn_from_the_json_beside_it(tmp_path: Path) -> None:
    for file in (DOCS / "figures").glob("*.json"):
        shutil.copy(file, tmp_path)
    subprocess.run([sys.executable, str(DOCS / "figures" / "draw.py"), str(tmp_path)], check=True)
    drawn = {file.name for file in tmp_path.glob("*.png")}
    assert drawn == {file.name for file in (DOCS / "figures").glob("*.png")}
    page = (DOCS / "benchmarks.md").read_text()
    assert all(f"](figures/{name})" in page for name in drawn)


def figures_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """docs/figures/check.py, with ``folder`` for what is kept."""
    spec = spec_from_file_location("figures_check", DOCS / "figures" / "check.py")
    assert spec is not None and spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", folder)
    monkeypatch.setattr(module, "MADE", folder / "made")
    return module


def test_every_kept_figure_has_a_command_that_our_parsers_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = figures_check(DOCS / "figures", monkeypatch).commands()
    assert set(commands) == {file.name for file in (DOCS / "figures").glob("*.json")}
    assert [error for words in commands.values() if (error := line_error(shlex.join(words)))] == []
    # Neither is a page's command another one for the same figure.
    page = (DOCS / "benchmarks.md").read_text()
    assert not re.search(r"--(json|speeds) (docs/figures/)?\w+[.]json", page)


def test_a_check_of_figures_makes_a_file_once_and_prints_what_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = figures_check(tmp_path, monkeypatch)
    command = "edge-cloud-spec bench payload --rounds 1 --json small.json"
    (tmp_path / "commands.txt").write_text(f"# a comment\n{command}\n")
    assert check.main(["--keep"]) == 1  # there was none
    assert check.main([]) == 0
    kept = json.loads((tmp_path / "small.json").read_text())
    for factor, count in ((1.02, 0), (1.05, 1)):
        changed = deepcopy(kept)
        changed["rows"][0]["up_bytes_mean"] *= factor
        (tmp_path / "small.json").write_text(json.dumps(changed))
        capsys.readouterr()
        assert check.main(["small.json"]) == count
        out = capsys.readouterr().out
        assert f"{count} rows moved" in out and ("up_bytes_mean" in out) == bool(count)
    with pytest.raises(SystemExit):
        check.main(["none.json"])


ROUND = Round(base=5, drafted=4, accepted=1, emitted=2, start=0.0, sent=0.0, settled=1.0)


def test_a_cache_hit_is_a_draft_that_was_ready_before_the_verdict() -> None:
    def answer(*rounds: Round) -> Any:
        return SimpleNamespace(stats=SimpleNamespace(rounds=rounds))

    ready = replace(ROUND, waited=False)
    first, alone = replace(ROUND, base=0), replace(ready, drafted=0)
    assert cache_hits([answer(first, ready, alone), answer(ROUND, ready)]) == 2 / 3
    assert cache_hits([answer(first, alone)]) is None
