"""``edge-cloud-spec train tiny``: trains a pair, or evaluates the one that ships."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration

from edge_cloud_spec.errors import UserError, check_writable
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.load import load
from edge_cloud_spec.share import path_of

from ...rows import Options, Row, add_options, print_table, write
from ...sim.kinds import THING_KINDS
from ..loop import descend, falling, run_stage
from .architecture import TINY_SHAPES, ModelShape, build_model, save_pair_model
from .data import (
    BEARING_BINS_DEG,
    DISTANCE_BINS_M,
    IGNORE,
    Batch,
    QuestionEncoder,
    Views,
    draw_batch,
    make_views,
    sampling_weights,
)
from .evaluation import evaluate
from .packed import PackedForward
from .tokenizer import build_tokenizer

QUESTIONS = 2
# Of a stage, with a rising and with the full learning rate.
WARMUP_SHARE, FULL_RATE_SHARE = 0.02, 0.3
AUXILIARY = 0.6  # weight of the vision head's loss
SLOT = 36  # at least the tokens of the longest question and answer


@dataclass(frozen=True)
class TrainingPlan:
    """Duration and speed of a training: minutes of the two stages, images per step, peak learning
    rate.

    A stage ends early after ``sight_images`` or ``joint_images`` images (0: no limit): a drafter
    that should stay weak must not become strong on a faster machine.
    """

    sight: float
    joint: float
    batch: int
    rate: float
    seed: int
    sight_images: int = 0
    joint_images: int = 0
    threads: int = 2
    compiled: bool = True


class VisionHead(nn.Module):
    """An auxiliary head, for training only: predicts what each visual token shows, and where it
    is."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.sizes = [
            4 * (len(THING_KINDS) + 1),
            len(BEARING_BINS_DEG) + 1,
            len(DISTANCE_BINS_M) + 1,
        ]
        self.out = nn.Linear(hidden, sum(self.sizes))

    def forward(self, merged: Tensor, batch: Batch) -> Tensor:
        """The loss over visual tokens [B, 64, H]."""
        outputs = self.out(self.norm(merged)).float().split(self.sizes, dim=-1)
        classes = outputs[0].reshape(-1, len(THING_KINDS) + 1)
        each = F.cross_entropy(classes, batch.classes.flatten(), reduction="none")
        weight = batch.worth.flatten()
        loss = 2.0 * (each * weight).sum() / weight.sum()
        worth = batch.worth.amax(dim=-1).flatten()
        for logits, truth in zip(outputs[1:], (batch.bearings, batch.distances), strict=True):
            each = F.cross_entropy(
                logits.flatten(0, 1), truth.flatten(), ignore_index=IGNORE, reduction="none"
            )
            weight = worth * (truth.flatten() != IGNORE)
            loss = loss + 0.5 * (each * weight).sum() / weight.sum().clamp(min=1)
        return loss


def _optimizers(modules: list[nn.Module], rate: float) -> list[torch.optim.Optimizer]:
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for module in modules:
        for name, parameter in module.named_parameters():
            inner = parameter.ndim == 2 and "embed" not in name and not name.startswith("out.")
            (matrices if inner else rest).append(parameter)
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adam]


def learning_rate_share(progress: float) -> float:
    """The learning rate as a share of its peak, at a share of the stage's time."""
    return min(1.0, (progress + 0.001) / WARMUP_SHARE) * falling(progress, FULL_RATE_SHARE)


class PairTrainer:
    """Trains one model; owns its weights, optimizers and data order."""

    def __init__(self, shape: ModelShape, views: Views, plan: TrainingPlan) -> None:
        torch.set_num_threads(plan.threads)
        self.views, self.plan = views, plan
        self.model: Qwen3VLForConditionalGeneration = build_model(shape, plan.seed)
        self.sight = VisionHead(shape.hidden)
        self.forward = PackedForward(self.model, QUESTIONS, SLOT)
        self.encoder = QuestionEncoder(build_tokenizer())
        self.rng = np.random.default_rng(plan.seed)
        self._order = np.empty(0, np.int64)
        self._sampling_weights = sampling_weights(views)

    def run(self) -> Qwen3VLForConditionalGeneration:
        """Train both stages; returns the model in evaluation mode."""
        plan, visual = self.plan, self.model.model.visual
        if plan.compiled:
            print("each stage's first step is compiled, which takes a minute", flush=True)
        self._stage("sight", plan.sight, plan.sight_images, 0, visual, self._sight_loss)
        self._stage("joint", plan.joint, plan.joint_images, QUESTIONS, self.model, self._joint_loss)
        return self.model.eval()

    def _next(self, questions: int) -> Batch:
        if len(self._order) < self.plan.batch:
            share = self._sampling_weights / self._sampling_weights.sum()
            self._order = self.rng.choice(len(self.views), len(self.views), p=share)
        chosen, self._order = np.split(self._order, [self.plan.batch])
        return draw_batch(self.views, chosen, self.encoder, questions, SLOT, self.rng)

    def _sight_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        merged, features = self.forward.encode_images(batch.pixels)
        loss = self.sight(merged, batch)
        # the deepstack mergers are trained by the joint stage only
        return loss + 0.0 * sum(feature.float().mean() for feature in features), loss.detach()

    def _joint_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        merged, logits = self.forward(batch.pixels, batch.ids)
        each = F.cross_entropy(
            logits.float().flatten(0, 1), batch.targets.flatten(), reduction="none"
        )
        weights = batch.weights.flatten()
        loss = (each * weights).sum() / weights.sum()
        return loss + AUXILIARY * self.sight(merged, batch), loss.detach()

    def _stage(
        self,
        name: str,
        minutes: float,
        images: int,
        questions: int,
        module: nn.Module,
        loss_of: Callable[[Batch], tuple[Tensor, Tensor]],
    ) -> None:
        """Train for so many minutes, or until so many images were used (0: no limit)."""
        optimizers = _optimizers([module, self.sight], self.plan.rate)
        compute = torch.compile(loss_of, dynamic=False) if self.plan.compiled else loss_of
        losses: list[float] = []

        def progress(spent: float, steps: int) -> float:
            seen = self.plan.batch * steps
            return max(spent / (60 * minutes), seen / images if images else 0.0)

        def step(share: float) -> None:
            rate = self.plan.rate * learning_rate_share(share)
            with torch.autocast("cpu", torch.bfloat16):
                loss, shown = compute(self._next(questions))
            descend(optimizers, loss, rate, 1.0)
            losses.append(float(shown))

        def report() -> str:
            mean = sum(losses) / len(losses)
            losses.clear()
            return f"loss {mean:.3f}"

        run_stage(name, progress, step, report)


HELD_OUT_VIEWS = 1_000
VIEWS = 32_000
COLUMNS = {
    name: name.replace("_", " ")
    for name in ("model", "skill", "accuracy", "wrong_picture", "chance")
}
TINY_DRAFTER_SHARE = 0.1  # of the minutes
SIGHT_SHARE = 0.5  # of a model's minutes
DRAFTER_IMAGES = (5_000, 18_000)  # sight, joint: with more it errs too seldom to be a drafter


OPTIONS: Options = {
    "--out": {
        "type": path_of,
        "help": "folder of the pair (default: the shipped one to evaluate, ./tiny-pair to train)",
    },
    "--minutes": {"type": float, "default": 60.0, "help": "of training, both models"},
    "--views": {"type": int, "default": VIEWS, "help": "views to train on"},
    "--seed": {"type": int, "default": 1, "help": "of views, weights and questions"},
    "--threads": {"type": int, "default": 2, "help": "of torch; processes that render"},
    "--evaluate": {"action": "store_true", "help": "measure a pair only"},
    "--count": {"type": int, "default": HELD_OUT_VIEWS, "help": "held-out views to measure on"},
    "--json": {"type": path_of, "help": "write the figures to this file"},
}

add_train_arguments = partial(add_options, options=OPTIONS)
"""The options of ``edge-cloud-spec train tiny``."""


def run_train(args: argparse.Namespace) -> int:
    """Run the command; returns 0 on success. UserError: an invalid option."""
    if args.count < 20:
        raise UserError(f"--count must be at least 20 views to measure on, not {args.count}")
    if args.threads < 1 or args.seed < 0:
        raise UserError("--threads is 1 or more, --seed 0 or more")
    if args.json:
        check_writable(args.json)
    folder = args.out or (EMBEDDED if args.evaluate else Path("tiny-pair"))
    if not args.evaluate:
        train(args, folder)
    rows = measure(folder, args.seed, args.count, args.threads)
    print_table(rows, COLUMNS)
    if args.json:
        write(args.json, "train tiny", args.seed, rows)
    return 0


def train(args: argparse.Namespace, folder: Path) -> None:
    """Train both models into ``folder``/target and ``folder``/drafter.

    UserError, before anything is rendered: invalid options.
    """
    if args.views < 100 or not args.minutes > 0:
        raise UserError("training needs --views of at least 100, --minutes above 0")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder} cannot be made: {error.strerror}") from None
    views = make_views(folder / "views", args.seed, args.views, "mixed", args.threads)
    for name, shape in TINY_SHAPES.items():
        save_pair_model(PairTrainer(shape, views, _plan(name, args)).run(), folder / name)


def _plan(name: str, args: argparse.Namespace) -> TrainingPlan:
    """The training plan; the drafter is trained little on purpose, so that verification has
    mistakes to find."""
    weak = name == "drafter"
    share = args.minutes * (TINY_DRAFTER_SHARE if weak else 1 - TINY_DRAFTER_SHARE)
    return TrainingPlan(
        sight=share * SIGHT_SHARE,
        joint=share * (1 - SIGHT_SHARE),
        batch=64 if weak else 16,
        rate=4e-3 if weak else 2e-3,
        seed=args.seed,
        sight_images=DRAFTER_IMAGES[0] if weak else 0,
        joint_images=DRAFTER_IMAGES[1] if weak else 0,
        threads=args.threads,
        compiled=shutil.which("g++") is not None,
    )


def measure(folder: Path, seed: int, count: int, threads: int) -> list[Row]:
    """Evaluate the pair in ``folder`` on ``count`` views that no training seed renders.

    UserError: a model of the pair is missing.
    """
    trained = {name: folder / name for name in TINY_SHAPES}
    if lost := [path for path in trained.values() if not (path / "model.safetensors").exists()]:
        raise UserError(f"{lost[0]}/model.safetensors is missing: train a pair into {folder} first")
    # training renders shards of seeds below 10**9
    with tempfile.TemporaryDirectory() as rendered:
        views = make_views(Path(rendered), seed + 10**6, count, "mixed", threads)
    models = {name: load(path, threads=threads) for name, path in trained.items()}
    return evaluate(models, views, seed)
