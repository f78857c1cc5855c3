"""``edge-cloud-spec train rooms``: fine-tunes the pair's target in furnished rooms."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED

from ...rows import Options, add_options
from ..loop import descend, falling, run_stage
from ..tiny.architecture import TARGET, build_model, load_weights
from ..tiny.command import AUXILIARY, VisionHead, optimizers_of
from ..tiny.data import (
    Batch,
    QuestionEncoder,
    Views,
    draw_batch,
    make_views,
    sampling_weights,
)
from ..tiny.packed import PackedForward, block_order
from ..tiny.tokenizer import build_tokenizer
from .views import REACHES, RoomViews, make_room_views, together

WEIGHTS = "model.safetensors"
QUESTIONS = 2
SLOT = 40  # at least the tokens of the longest question and answer
PLAIN_SHARE = 0.5  # of a batch: views of rooms whose way is clear
WARMUP_STEPS = 60  # in which the heads, which are not kept, learn alone
FULL_RATE_SHARE = 0.3

OPTIONS: Options = {
    "--pair": {"type": Path, "default": EMBEDDED, "help": "the pair to begin with (%(default)s)"},
    "--out": {
        "type": Path,
        "default": Path("rooms-pair"),
        "help": "folder of views, state and pair; run again to go on (%(default)s)",
    },
    "--minutes": {"type": float, "default": 120.0, "help": "of tuning"},
    "--rooms": {"type": int, "default": 400, "help": "missions of the expert"},
    "--views": {"type": int, "default": 12_000, "help": "of plain rooms, to keep what it sees"},
    "--rounds": {"type": int, "default": 6, "help": "times that the target drives itself"},
    "--rollouts": {"type": int, "default": 100, "help": "missions that it drives each time"},
    "--batch": {"type": int, "default": 16, "help": "views a step"},
    "--rate": {"type": float, "default": 1e-3, "help": "peak learning rate"},
    "--seed": {"type": int, "default": 1, "help": "of rooms, views and steps"},
    "--threads": {"type": int, "default": 2, "help": "of torch; processes that render"},
}

add_train_arguments = partial(add_options, options=OPTIONS)
"""The options of ``edge-cloud-spec train rooms``."""


def run_train(args: argparse.Namespace) -> int:
    """Run the command; returns 0 on success. UserError: an invalid option."""
    if min(args.threads, args.rooms, args.views, args.rollouts) < 1 or args.batch < 2:
        raise UserError("--threads, --rooms, --views and --rollouts are 1 or more, --batch 2")
    if min(args.seed, args.rounds) < 0 or not min(args.minutes, args.rate) > 0:
        raise UserError("--minutes and --rate are above 0, --seed and --rounds are 0 or more")
    base = args.pair / "target"
    if not (base / WEIGHTS).exists():
        raise UserError(f"--pair: {base / WEIGHTS} is missing: give the folder of a pair")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {args.out} cannot be made: {error.strerror}") from None
    torch.set_num_threads(args.threads)
    tune(args)
    return 0


def tune(args: argparse.Namespace) -> None:
    """Tune the pair's target into ``args.out``/target, or go on with it."""
    folder, rendered = args.out / "target", args.out / "rooms"
    plain = make_views(args.out / "views", args.seed + 500, args.views, "mixed", args.threads)
    rooms = [make_room_views(rendered, args.seed, args.rooms, args.threads)]
    tuner = RoomTuner(args, plain)
    for number in range(1, args.rounds + 1):
        tuner.run(together(rooms), number / (args.rounds + 1))
        tuner.save(folder)
        seed = args.seed + 100 * number
        rooms.append(make_room_views(rendered, seed, args.rollouts, args.threads, folder))
    tuner.run(together(rooms), 1.0)
    tuner.save(folder)


class RoomTuner:
    """The target in fine-tuning, with its heads; ``--out`` keeps its state."""

    def __init__(self, args: argparse.Namespace, plain: Views) -> None:
        self.args, self.plain = args, plain
        self.state = args.out / "tuning.pt"
        self.base = args.pair / "target"
        with safe_open(self.base / WEIGHTS, "pt") as stored:
            self.names = list(stored.keys())
            rows = stored.get_slice(next(n for n in self.names if "embed_tokens" in n))
            shape = replace(TARGET, vocabulary=rows.get_shape()[0])
        self.model = build_model(shape, args.seed)
        load_weights(self.model, self.base)
        self.sight = VisionHead(shape.hidden)
        self.reach = nn.Sequential(nn.LayerNorm(shape.hidden), nn.Linear(shape.hidden, 4 * REACHES))
        self.heads = nn.ModuleList([self.sight, self.reach])
        self.forward = PackedForward(self.model, QUESTIONS, SLOT)
        self.encoder = QuestionEncoder(build_tokenizer())
        self.optimizers = optimizers_of([self.model, self.heads], args.rate)
        self.steps, self.spent = 0, 0.0
        if self.state.exists():
            state = torch.load(self.state, weights_only=True)
            self.steps, self.spent = state["steps"], state["spent"]
            self.model.load_state_dict(state["model"])
            self.heads.load_state_dict(state["heads"])
            for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(kept)
        compiled = shutil.which("g++") is not None
        self.compute = torch.compile(self.losses, dynamic=False) if compiled else self.losses

    def keep(self) -> None:
        """Write the state."""
        part = self.state.with_suffix(".part")
        state = {"steps": self.steps, "spent": self.spent, "model": self.model.state_dict()}
        state |= {"heads": self.heads.state_dict()}
        torch.save(state | {"optimizers": [o.state_dict() for o in self.optimizers]}, part)
        part.replace(self.state)

    def save(self, folder: Path) -> None:
        """Write the target: its base's files, with these weights in fp16."""
        exits = shutil.ignore_patterns("exits", WEIGHTS)
        shutil.copytree(self.base, folder, ignore=exits, dirs_exist_ok=True)
        state = self.model.state_dict()
        kept = {name: state[name].to(torch.float16).contiguous() for name in self.names}
        save_file(kept, folder / WEIGHTS, {"format": "pt"})

    def losses(self, batch: Batch, reach: Tensor, learned: bool) -> tuple[Tensor, Tensor]:
        """The loss, and those of answers, of what is seen and of what is in the way. ``learned``:
        whether more than the heads is."""
        merged, logits = self.forward(batch.pixels, batch.ids)
        if not learned:
            merged = merged.detach()
        each = F.cross_entropy(
            logits.float().flatten(0, 1), batch.targets.flatten(), reduction="none"
        )
        weights = batch.weights.flatten()
        answers = (each * weights).sum() / weights.sum()
        sight = self.sight(merged, batch)
        buckets = self.reach(merged[-len(reach) :]).float().view(-1, REACHES)
        ways = F.cross_entropy(buckets, reach.flatten())
        heads = sight + ways
        loss = answers + AUXILIARY * heads if learned else heads + 0.0 * answers
        return loss, torch.stack((answers, sight, ways)).detach()

    def draw(self, rooms: RoomViews, rng: np.random.Generator) -> tuple[Batch, Tensor]:
        """A batch: views of plain rooms, then of furnished ones, and what is in the way there
        [B / 2, 64, 4]."""
        size = self.args.batch
        count = int(size * PLAIN_SHARE)
        chosen = rng.choice(len(self.plain), count, p=self._plain_shares)
        plain = draw_batch(self.plain, chosen, self.encoder, QUESTIONS, SLOT, rng)
        chosen = rng.integers(len(rooms), size=size - count)
        mirrored = rng.random(len(chosen)) < 0.5
        furnished = draw_batch(rooms, chosen, self.encoder, QUESTIONS, SLOT, rng, mirrored)
        grid = rooms.reach[chosen].astype(np.int64)
        grid[mirrored] = grid[mirrored, :, ::-1]
        reach = block_order(torch.from_numpy(grid)).view(len(chosen), -1, 4)
        parts = (plain, furnished)
        joined = (torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Batch))
        return Batch(*joined), reach

    @property
    def _plain_shares(self) -> np.ndarray:
        weights = sampling_weights(self.plain)
        return np.asarray(weights / weights.sum())

    def run(self, rooms: RoomViews, until: float) -> None:
        """Tune until this share of the minutes is spent."""
        args, before = self.args, self.spent
        losses: list[Tensor] = []

        def progress(spent: float, _: int) -> float:
            self.spent = before + spent
            return self.spent / (60 * float(args.minutes) * until)

        def step(share: float) -> None:
            rng = np.random.default_rng((args.seed, self.steps, 0xF0))
            learned = self.steps >= WARMUP_STEPS
            with torch.autocast("cpu", torch.bfloat16):
                loss, shown = self.compute(*self.draw(rooms, rng), learned)
            rate = args.rate * min(1.0, (self.steps + 1 - WARMUP_STEPS * learned) / WARMUP_STEPS)
            descend(self.optimizers, loss, rate * falling(share * until, FULL_RATE_SHARE), 1.0)
            losses.append(shown)
            self.steps += 1

        def report() -> str:
            self.keep()
            shown = " ".join(f"{v:.3f}" for v in torch.stack(losses).mean(0).tolist())
            losses.clear()
            return f"losses {shown}"

        run_stage("rooms", progress, step, report)
        self.keep()
