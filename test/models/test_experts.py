"""Mixtures of experts: a row's result is its own in any pass, and published files are read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import CLOSE, prompt_of
from safetensors.numpy import load_file, save_file
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.passes.layer import MixtureOfExperts, pack_linears
from edge_cloud_spec_lab.harness.random_checkpoint import make_checkpoint

EXPERTS, CHOSEN, HIDDEN = 8, 3, 32
PASS_CLOSE = 1e-5  # of outputs around 1, in float32


def block(normed: bool = True) -> Any:
    """One of transformers' own, with random weights."""
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN,
        moe_intermediate_size=48,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        norm_topk_prob=normed,
    )
    torch.manual_seed(0)
    made = Qwen3MoeSparseMoeBlock(config).eval().requires_grad_(False)
    for weight in made.parameters():
        weight.normal_(0, 0.3)
    return made


def ours_of(theirs: Any) -> MixtureOfExperts:
    made = MixtureOfExperts(theirs, "none")
    pack_linears(made)
    assert len(made.experts) == EXPERTS
    return made


def rows_of(count: int) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_a_row_has_the_result_of_transformers_whichever_rows_share_the_pass(
    normed: bool, tied: bool
) -> None:
    """``tied``: each expert is as likely as the next one, for all rows, so that ties decide."""
    theirs = block(normed)
    if tied:
        theirs.gate.weight[1::2] = theirs.gate.weight[::2]
    ours, rows = ours_of(theirs), rows_of(40)
    with torch.inference_mode():
        whole = ours(rows)
        alone = torch.cat([ours(row[None]) for row in rows])
        by_fives = torch.cat([ours(five) for five in rows.split(5)])
        expected = theirs(rows[None])[0]
        chosen = theirs.gate(rows)[2]
    pairs = (chosen // 2).sort().values.diff() == 0
    assert bool(pairs.any(1).all()) == tied
    for result in (whole, alone, by_fives):
        assert (result - expected).abs().max() < PASS_CLOSE
    others = theirs.experts(rows, (chosen + 2) % EXPERTS, torch.full(chosen.shape, 1 / CHOSEN))
    assert (others - expected).abs().max() > 100 * PASS_CLOSE


def test_an_expert_that_no_row_chooses_is_not_computed() -> None:
    ours, computed = ours_of(block()), []
    for number, expert in enumerate(ours.experts):
        expert.register_forward_hook(lambda *_, number=number: computed.append(number))
    ours(rows_of(1))
    assert len(computed) == CHOSEN
    computed.clear()
    ours(rows_of(64))
    assert computed == [*range(EXPERTS)]  # once each


@pytest.mark.parametrize("lost", [False, True])
def test_the_layout_of_published_checkpoints_loads_the_same(lost: bool, tmp_path: Path) -> None:
    """Qwen3-VL-MoE's files have the experts' weights as [experts, in, out]."""
    text = {"moe_intermediate_size": 48}
    source = make_checkpoint(tmp_path / "ours", "qwen3_vl_moe", text=text)
    published = Path(shutil.copytree(source, tmp_path / "published"))
    tensors: dict[str, np.ndarray] = load_file(source / "model.safetensors")
    of_experts = [name for name in tensors if ".experts." in name]
    assert len(of_experts) == 4  # two layers of three, gate and up in one
    for name in of_experts:
        rows, columns = (HIDDEN, 96) if "gate_up" in name else (48, HIDDEN)
        if tensors[name].shape[1:] != (rows, columns):
            tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(1, 2))
        assert tensors[name].shape == (8, rows, columns)
    if lost:
        del tensors[of_experts[0]]
    save_file(tensors, published / "model.safetensors", metadata={"format": "pt"})
    if lost:
        with pytest.raises(UserError, match=r"lack 1 tensors, .*experts"):
            load(published)
        return
    both = [load(source), load(published)]
    first, second = (each.open(prompt_of(each)).forward([5, 6]) for each in both)
    assert np.abs(first - second).max() < CLOSE
