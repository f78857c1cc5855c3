"""Training of early exits: the loss falls, and the target stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers import checkpoints as helper
from helpers.checkpoints import HIDDEN
from helpers.training import decided, material

from edge_cloud_spec.cli import main
from edge_cloud_spec.models.exits import Exits
from edge_cloud_spec.models.load import load
from edge_cloud_spec_lab.training.exits.command import (
    ExitTrainer,
    collect,
    frequent_tokens,
    picture_requests,
)


def test_training_lowers_the_loss_of_a_frozen_target(tmp_path: Path) -> None:
    model = load(decided(tmp_path / "target"), threads=1)
    before = model.open(helper.prompt_of(model)).forward((1, 2, 3))
    layers, spec = (1, 2), model.spec(12)
    requests = picture_requests(*material(tmp_path), 1)
    rows = collect(model, spec, layers, requests, 12, 1)
    assert rows.hidden.shape[1:] == (2, HIDDEN)
    tokens = frequent_tokens(rows, 64, model.vocabulary)
    trainer = ExitTrainer(model, layers, 8, tokens, rows, 1)
    begun = trainer.measure()
    ended = begun
    for _ in range(30):  # as long as a busy machine needs
        trainer.run(2.0)
        ended = trainer.measure()
        if all(ended[at][0] < 0.9 * begun[at][0] for at in layers):
            break
    assert all(ended[at][0] < 0.9 * begun[at][0] for at in layers), (begun, ended)
    after = model.open(helper.prompt_of(model)).forward((1, 2, 3))
    assert np.allclose(before, after, atol=1e-4)


def test_the_command_trains_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    pictures, prompts = material(tmp_path)
    out, target = tmp_path / "exits", helper.checkpoint()
    options = ["--target", str(target), "--out", str(out), "--pictures", str(pictures)]
    options += ["--prompts", str(prompts), "--max-tokens", "8", "--threads", "1", "--rank", "4"]
    train = ["train", "exits", *options, "--requests", "4"]
    assert main([*train, "--layers", "1,2", "--minutes", "0.005"]) == 0
    exits = Exits.load(out, load(target))
    assert exits is not None and list(exits.adapters) == [1, 2]
    for wrong in (["--layers", "4"], ["--layers", "x"], ["--minutes", "0"]):
        assert main([*train, "--out", str(tmp_path / "new"), *wrong]) == 2
