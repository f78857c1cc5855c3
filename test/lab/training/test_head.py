"""Training of a head: it learns what the target says, in the form that the engine computes, and the
target stays."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import checkpoints as helper
from helpers.training import decided, material

from edge_cloud_spec.cli import main
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.draft_head import DraftHead, head_modules, keep_hidden
from edge_cloud_spec.models.exits import Exits
from edge_cloud_spec.models.load import load
from edge_cloud_spec_lab.training.exits.command import answers, picture_requests
from edge_cloud_spec_lab.training.head import command
from edge_cloud_spec_lab.training.head.command import HeadTrainer, example, save_head


def steps(many: int) -> Callable[..., None]:
    """As ``run_stage``, but so many steps."""
    return lambda name, progress, step, report: [step(each / many) for each in range(many)]


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_vl", "qwen3_5", "qwen3_moe", "qwen3_vl_moe"])
def test_a_trained_head_says_in_the_engine_what_it_said_in_training(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_stage", steps(4))
    target = Path(shutil.copytree(helper.checkpoint(family), tmp_path / "target"))
    model = load(target, threads=1, check=False)
    keep_hidden(model)
    spec = model.spec(12)
    if model.reads_pictures:
        requests = picture_requests(*material(tmp_path), 1)
    else:
        requests = (spec.request(f"find chair {each}") for each in count())
    answered = [*answers(model, spec, requests, 4, 1)]
    examples = [example(model, *each) for each in answered]
    trainer = HeadTrainer(model, examples, 1)
    trainer.run(1.0)
    save_head(trainer.modules, model, target / "head")
    prompt, _, answer = answered[-1]
    shown = examples[-1]
    cos, sin = model.transformer.rotary(shown.positions)
    angles = cos[None, :, 0], command._unfolded(sin[:, 0])[None]
    with torch.no_grad():
        rows = trainer._rows(shown.embeddings[None].float(), shown.hidden[None].float(), angles)
        expected = F.linear(rows[0, -1], trainer._lm_head).numpy()
    head = DraftHead.load(target, load(target, check=False))
    assert head is not None and head.name == "trained for the target"
    session = head._vlm.open(prompt)
    session.forward(answer)
    session.commit([*range(len(answer) - 2)])
    drafts = head.beside(session, prompt)
    drafts.extend(answer[:-1])
    assert np.abs(drafts.logits_after(-1) - expected).max() < 0.02 * expected.std()


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "qwen3_vl_moe"])
def test_a_new_head_is_made_of_numbers_whatever_memory_held(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **kw: empty(*size, **kw).fill_(torch.nan))
    modules = head_modules(helper.vlm(family).transformer, "cpu")
    assert all(weight.isfinite().all() for weight in modules.parameters())
    assert all(weight.any() for weight in modules.get_submodule("layers.0.mlp").parameters())


def test_a_head_whose_training_failed_is_not_written(tmp_path: Path) -> None:
    model = helper.vlm("qwen3")
    modules = head_modules(model.transformer, "cpu")
    modules["norm"].weight.data[3] = torch.inf
    with pytest.raises(UserError, match=r"not finite, as in norm\.weight"):
        save_head(modules, model, tmp_path / "head")
    assert not (tmp_path / "head").exists()


def test_a_head_of_other_weights_is_used_and_said_to_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Path(shutil.copytree(helper.checkpoint("qwen3"), tmp_path / "target"))
    other = helper.vlm("qwen3", 1)
    save_head(head_modules(other.transformer, "cpu"), other, target / "head")
    caplog.clear()
    assert DraftHead.load(target, load(target, check=False)) is not None
    (said,) = [each.message for each in caplog.records if each.name.startswith("edge_cloud_spec")]
    assert "other weights than the target's, and drafts all the same" in said


def test_training_teaches_a_head_what_the_target_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_stage", steps(30))
    monkeypatch.setattr(command, "HEAD_WARMUP_STEPS", 1)
    monkeypatch.setattr(command, "ANSWERS_PER_STEP", 2)  # of 600 tokens each
    model = load(decided(tmp_path / "target"), threads=1, check=False)
    before = model.open(helper.prompt_of(model)).forward((1, 2, 3))
    keep_hidden(model)
    requests = picture_requests(*material(tmp_path), 1)
    answered = answers(model, model.spec(12), requests, 12, 1)
    trainer = HeadTrainer(model, [example(model, *each) for each in answered], 1)
    learned = trainer._examples[: trainer._learned]
    with torch.no_grad():
        begun = trainer._losses_and_agreements(learned)
    trainer.run(1.0)
    with torch.no_grad():
        ended = trainer._losses_and_agreements(learned)
    for (loss, agreed), (after, more) in zip(begun, ended, strict=True):
        assert after < 0.9 * loss and more > agreed
    assert np.allclose(before, model.open(helper.prompt_of(model)).forward((1, 2, 3)), atol=1e-4)


def test_the_command_trains_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    pictures, prompts = material(tmp_path)
    target = Path(shutil.copytree(helper.checkpoint(), tmp_path / "target"))
    options = ["--target", str(target), "--out", str(target / "head"), "--pictures", str(pictures)]
    options += ["--prompts", str(prompts), "--max-tokens", "8", "--threads", "1"]
    train = ["train", "head", *options, "--requests", "4"]
    assert main([*train, "--minutes", "0.002"]) == 0
    assert DraftHead.load(target, load(target, check=False)) is not None
    assert main([*train, "--minutes", "0"]) == 2


@pytest.mark.parametrize("kind", ["head", "exits"])
def test_a_target_of_text_alone_learns_from_prompts_alone(kind: str, tmp_path: Path) -> None:
    pictures, prompts = material(tmp_path)
    target = Path(shutil.copytree(helper.checkpoint("qwen3"), tmp_path / "target"))
    train = ["train", kind, "--target", str(target), "--out", str(target / kind)]
    train += ["--max-tokens", "8", "--threads", "1", "--requests", "4", "--minutes", "0.002"]
    assert main(train) == 2
    assert main([*train, "--prompts", str(prompts), "--pictures", str(pictures)]) == 2
    assert not (target / kind).exists()
    assert main([*train, "--prompts", str(prompts)]) == 0
    vlm = load(target, check=False)
    if kind == "head":
        assert DraftHead.load(target, vlm) is not None
    else:
        assert Exits.load(target / kind, vlm) is not None
