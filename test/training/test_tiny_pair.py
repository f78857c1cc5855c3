"""The shipped pair: small enough, loadable as its family, and it looks before it answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.lab.sim.view import pack, sample_views
from edge_cloud_spec.lab.training.tiny.architecture import SHAPES
from edge_cloud_spec.lab.training.tiny.command import measure
from edge_cloud_spec.lab.training.tiny.data import Views
from edge_cloud_spec.lab.training.tiny.evaluation import evaluate
from edge_cloud_spec.lab.training.tiny.language import INSTRUCTION
from edge_cloud_spec.lab.training.tiny.tokenizer import build_tokenizer
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load import load

MEGABYTES = 25


def parameters(name: str) -> dict[str, tuple[str, int]]:
    with safe_open(EMBEDDED / name / "model.safetensors", "pt") as stored:
        slices = {key: stored.get_slice(key) for key in stored.keys()}  # noqa: SIM118
        return {key: (s.get_dtype(), int(np.prod(s.get_shape()))) for key, s in slices.items()}


def test_the_pair_is_as_small_as_promised():
    files = [path for name in SHAPES for path in (EMBEDDED / name).iterdir()]
    assert sum(path.stat().st_size for path in files) < MEGABYTES * 1e6
    sizes = {name: sum(count for _, count in parameters(name).values()) for name in SHAPES}
    assert 6e6 < sizes["target"] < 8e6
    assert sizes["drafter"] < 1e6
    assert {kind for name in SHAPES for kind, _ in parameters(name).values()} == {"F16"}


def test_the_tokenizers_are_one_and_the_padded_vocabularies_are_two():
    texts = {(EMBEDDED / name / "tokenizer.json").read_text() for name in SHAPES}
    assert len(texts) == 1
    entries = len(build_tokenizer())
    assert len(json.loads(texts.pop())["model"]["vocab"]) < entries
    configs = [json.loads((EMBEDDED / name / "config.json").read_text()) for name in SHAPES]
    rows = {config["text_config"]["vocab_size"] for config in configs}
    assert len(rows) == 2 and min(rows) >= entries


@pytest.mark.parametrize("name", SHAPES)
def test_each_model_says_which_instructions_it_understands(name):
    said = json.loads((EMBEDDED / name / "edge_cloud_spec.json").read_text())
    assert said["instructions"] == INSTRUCTION.pattern
    assert re.fullmatch(said["instructions"], "find the silver bottle")


@pytest.fixture(scope="module")
def views() -> Views:
    return Views(**pack(sample_views(4_000_001, 30, "rays"), 30))


def test_the_target_sees_what_it_is_asked_about_and_guesses_when_it_cannot(views):
    models = {name: load(EMBEDDED / name, threads=1) for name in SHAPES}
    rows = {(row["model"], row["skill"]): row for row in evaluate(models, views, seed=1)}
    for skill, least in (("visible", 0.85), ("side", 0.8), ("distance", 0.75)):
        row = rows["target", skill]
        assert row["accuracy"] >= least
        assert row["wrong_picture"] <= row["accuracy"] - 0.2
        assert row["wrong_instruction"] <= row["accuracy"] - 0.2
    assert 0.5 < rows["drafter", "acceptance"]["accuracy"] < 0.95


def test_a_folder_without_weights_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"target/model\.safetensors"):
        measure(tmp_path, seed=1, count=10, threads=1)
