"""The target's own head drafts in the cloud: whatever it says, answers are those of transformers'
``generate``, and where it is right they take fewer passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import jpeg, random_head
from helpers.cloud.grpc_robot import POLICIES
from helpers.cloud.served_answers import opening_of
from helpers.cloud.worker_robot import Robot, do_all
from torch import Tensor

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.models.draft_head import DraftHead
from edge_cloud_spec.models.load import load
from edge_cloud_spec.request import Picture, Request
from edge_cloud_spec.wire.messages import Fault, Generation
from edge_cloud_spec_lab.bench.reference import generate, load_reference
from edge_cloud_spec_lab.harness.random_checkpoint import CheckpointShape, make_checkpoint

SPECULATIVE, MAY = Generation(speculative=True), Generation(may_speculate=True)
FAMILY, TOKENS = "qwen3_5", 24
Weights = dict[str, Tensor]


def as_it_is(weights: Weights) -> Weights:
    return weights


def of_a_cycle(weights: Weights) -> Weights:
    """A head that takes a token's embedding to the LM head: right where that alone says what
    follows, and otherwise one that repeats itself."""
    width = len(weights["fc.weight"])
    passes = torch.cat([torch.eye(width), torch.zeros(width, width)], 1)
    little = ("o_proj.weight", "down_proj.weight", "norm.weight")
    scaled = {
        name: weights[name] * 0.1 if name.endswith(little) else weights[name] for name in weights
    }
    return scaled | {"fc.weight": passes}


def broken(weights: Weights) -> Weights:
    return {name: torch.full_like(tensor, torch.nan) for name, tensor in weights.items()}


HEADS = (as_it_is, of_a_cycle, broken)


@cache
def target_of(root: Path, follows: bool) -> tuple[Path, Any]:
    """A checkpoint and transformers' model of it. follows: each token has one that follows it,
    whatever was before; otherwise answers depend on the whole prompt."""
    text = {"initializer_range": 0.15}
    shape = CheckpointShape(layers=4)
    if follows:
        cycle = np.random.default_rng(0).permutation(256)
        rows = np.full(400, -1)
        rows[cycle] = np.roll(cycle, -1)
        made = make_checkpoint(root / "cycle", FAMILY, CheckpointShape(hidden=64), follows=rows)
    else:
        made = make_checkpoint(root / "random", FAMILY, shape, text=text)
    return made, load_reference(str(made), load(made, check=False))


class Cloud:
    """A worker with a head, and what transformers says."""

    def __init__(self, root: Path, change: Callable[[Weights], Weights], **options: Any) -> None:
        self.asked = 0
        path, self.reference = target_of(root, options.pop("follows", False))
        self.model = load(path, check=False)
        head = DraftHead.of(change(random_head(self.model, 3)), self.model, "of a test")
        assert head is not None
        self.spec = self.model.spec(TOKENS, None)
        self.worker = Worker(self.model, self.spec, limits=WorkerLimits(**options), head=head)

    def ask(self, request: Request, rule: str, how: Generation, **more: Any) -> Robot:
        self.asked += 1
        opening = replace(opening_of(request, rule, POLICIES[rule]), nonce=self.asked)
        opening = replace(opening, generation=how, **more)
        robot = Robot(self.worker)
        robot.say(opening)
        return robot

    def own(self, request: Request, rule: str) -> tuple[int, ...]:
        prompt = self.model.prompt(request, self.spec)
        return generate(self.reference, prompt, self.spec, POLICIES[rule])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("targets")


def asked(count: int, spec: Any) -> list[Request]:
    """Different pictures and texts, some of them twice."""
    texts = ("find the silver bottle", "search for the red chair near the door", "find it")
    return [spec.request(Picture.of(jpeg(n % 4)), f"{texts[n % 3]} {n % 5}") for n in range(count)]


@pytest.mark.parametrize("how", [SPECULATIVE, MAY])
@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("change", HEADS)
def test_whatever_a_head_says_answers_are_those_of_generate(
    root: Path, change: Callable[[Weights], Weights], rule: str, how: Generation
) -> None:
    """One after the other, the last of them known, and then several robots at once."""
    cloud = Cloud(root, change)
    requests = asked(6, cloud.spec)
    alone = []
    for request in [*requests, requests[-1]]:
        alone.append(cloud.ask(request, rule, how))
        do_all(cloud.worker)
    together = [cloud.ask(request, rule, how) for request in requests]
    do_all(cloud.worker)
    for robot, request in zip(
        [*alone, *together], [*requests, requests[-1], *requests], strict=True
    ):
        assert robot.said == cloud.own(request, rule) and not robot.count(Fault)
    assert cloud.worker.counters.answers.drafted["cloud"] > 0
    assert cloud.worker.kv_memory.prefix_hits > 0
