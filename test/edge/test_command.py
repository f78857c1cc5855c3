"""``edge-cloud-spec decode``: the words, what they cost, and what to do where it cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.checkpoints import checkpoint, jpeg, own_tokens
from helpers.cloud.grpc_cloud import Cloud

from edge_cloud_spec.cli import main
from edge_cloud_spec.cloud.command import ServeSettings, make_worker
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.prompt import Request
from edge_cloud_spec.models.tokenizer import TextStream
from edge_cloud_spec.options import parsed

INSTRUCTION = "find the silver bottle"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A verifier, a picture, and the target once more, to be asked by itself."""
    folder = tmp_path_factory.mktemp("decode")
    picture = folder / "picture.jpg"
    picture.write_bytes(jpeg(1))
    target, alone = (load(checkpoint("qwen3_vl", 1), threads=1) for _ in range(2))
    spec = target.spec("You guide a robot.", 20)
    with Cloud(Worker(target, spec)) as cloud:
        yield SimpleNamespace(address=cloud.address, picture=picture, alone=alone, spec=spec)


def decode(there: SimpleNamespace, *options: str, picture: Path | None = None) -> int:
    drafter = str(checkpoint("qwen3_vl", 2, 384))
    given = ["--cloud", there.address, "--drafter", drafter, *options]
    return main(["decode", str(picture or there.picture), INSTRUCTION, *given])


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ((), GREEDY),
        (("--rule", "coupled", "--seed", "3"), SamplingPolicy(0.8, seed=3)),
        (("--rule", "coupled", "--temperature", "0.5"), SamplingPolicy(0.5)),
        (("--order", "reason first"), GREEDY),
    ],
    ids=str,
)
def test_it_says_the_targets_own_words_and_what_they_cost(
    there: SimpleNamespace,
    options: tuple[str, ...],
    policy: SamplingPolicy,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "outcome.json"
    assert decode(there, *options, "--json", str(path)) == 0
    said = capsys.readouterr().out
    told = json.loads(path.read_text())
    order = options[1] if "--order" in options else "action first"
    request = Request(INSTRUCTION, there.picture.read_bytes(), order)
    own = own_tokens(there.alone, request, there.spec, policy)
    assert told["answer"] == TextStream(there.alone.tokenizer).add(own)
    assert said.startswith(told["answer"] + "\n")
    for name, value in told.items():
        assert name in ("answer", "action") or f"{name} {value:g}" in said
    assert 0 < told["rounds"] <= told["tokens"] == len(own) <= 20
    assert 0 <= told["accepted"] <= told["drafted"]
    assert told["tokens"] <= told["accepted"] + told["rounds"]
    assert told["up_bytes"] > len(there.picture.read_bytes()) > told["down_bytes"] > 0
    assert told["tokens_per_s"] == pytest.approx(1e3 * len(own) / told["ms"], abs=0.1)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--temperature", "0.8"), "greedy goes with temperature 0"),
        (("--rule", "coupled", "--temperature", "0"), "above 0"),
        (("--rule", "coupled", "--temperature", "101"), "temperature must be between 0 and 100"),
        (("--preset", "warp"), "no preset 'warp'"),
        (("--token-file", "/nowhere"), "/nowhere"),
        (("--authority", "/nowhere"), "/nowhere is not a file"),
        (("--order", "last first"), "order"),
        (("--dialect", "klingon"), "no dialect 'klingon'; choose one of clauses"),
        (("--dialect", "no/where.yaml"), "or give the path of a .yaml file"),
        (("--dialect", "navila"), "cloud answers in the dialect clauses and this robot reads nav"),
        (
            ("--max-pixels", "-1"),
            "--max-pixels must be a whole number from 0 to 2147483647, not -1",
        ),
        (("--max-pixels", "10"), r"stands for \d+ pixels; give as many or more, or 0"),
        (("--max-image-tokens", "-3"), "--max-image-tokens must be a whole number from 0"),
        (("--json", "/nowhere/outcome.json"), "/nowhere/outcome.json cannot be written"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_sentence_and_no_success(
    there: SimpleNamespace,
    options: tuple[str, ...],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert decode(there, *options) != 0
    told = capsys.readouterr().err.strip().splitlines()
    assert re.search(complaint, told[-1]), told
    assert not any("Traceback" in line for line in told), told


def test_serve_and_decode_speak_a_dialect_and_its_action_is_said(
    there: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--target", str(checkpoint("qwen3_vl", 1)), "--dialect", "uni_navid"]
    worker = make_worker(parsed(ServeSettings(), [*given, "--max-tokens", "40"]))
    assert "shown one" in capsys.readouterr().out, "it was trained on several pictures"
    path = tmp_path / "outcome.json"
    with Cloud(worker) as cloud:
        here = SimpleNamespace(address=cloud.address, picture=there.picture)
        options = ("--dialect", "uni_navid", "--grammar", "action", "--json", str(path))
        assert decode(here, *options) == 0
    told = json.loads(path.read_text())
    action = load_dialect("uni_navid").action_of(told["answer"], ended=True)
    assert action is not None and told["action"] == str(action)
    assert f"\naction: {action}\n" in capsys.readouterr().out


def test_a_picture_that_is_not_there_is_named(
    there: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert decode(there, picture=Path("/nowhere/picture.jpg")) != 0
    assert "/nowhere/picture.jpg cannot be read" in capsys.readouterr().err


def test_an_instruction_that_the_draft_model_does_not_know_is_refused_with_those_that_it_knows(
    there: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["decode", str(there.picture), "find the pink piano", "--cloud", there.address]
    assert main(asked) == 2  # of the embedded draft model
    out, told = capsys.readouterr()
    assert told.startswith("error: the model does not understand the instruction")
    assert "blue box" in told and not out
