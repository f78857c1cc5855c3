"""``edge-cloud-spec train rooms``: fine-tunes the pair's target in furnished rooms."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.nav.answer import ORDERS, REASON_FIRST
from edge_cloud_spec.share import path_of

from ...rows import Options, add_options
from ..flats.conversations import (
    ConversationBatch,
    ConversationRow,
    Taught,
    Tuner,
    TuningPlan,
    conversation,
)
from ..tiny.architecture import TARGET
from ..tiny.data import Views, draw_instruction, make_views
from ..tiny.language import pieces, reason_of, visible
from .views import RoomViews, make_room_views, make_told_views

WEIGHTS = "model.safetensors"
PICTURED_SHARE = 0.25  # of what a step learns has a picture
PLAIN_SHARE = 0.5  # of that, of rooms whose way is clear
UNTOLD_SHARE = 0.2  # of the rest: it is not told what a lidar shows, and goes straight as before
ROOMS_PEAK_RATE = 1e-3

OPTIONS: Options = {
    "--pair": {
        "type": path_of,
        "default": EMBEDDED,
        "help": "the pair to begin with (%(default)s)",
    },
    "--out": {
        "type": path_of,
        "default": Path("rooms-pair"),
        "help": "folder of views, state and target; run again to go on (%(default)s)",
    },
    "--minutes": {"type": float, "default": 120.0, "help": "of tuning"},
    "--rooms": {"type": int, "default": 300, "help": "of which the expert's pictures are taken"},
    "--told": {"type": int, "default": 400, "help": "furnished rooms that need no picture"},
    "--views": {"type": int, "default": 4000, "help": "of plain rooms, to keep what it sees"},
    "--rounds": {"type": int, "default": 8, "help": "times that the target drives itself"},
    "--rollouts": {"type": int, "default": 40, "help": "rooms that it drives in each time"},
    "--batch": {"type": int, "default": 32, "help": "answers a step (a GPU: 512)"},
    "--device": {"default": "cpu", "help": "of torch, as cuda (%(default)s)"},
    "--dtype": {
        "choices": ("float32", "bfloat16"),
        "default": "float32",
        "help": "of products: bfloat16 for a GPU, or a CPU that has it (%(default)s)",
    },
    "--seed": {"type": int, "default": 1, "help": "of rooms, views and steps"},
    "--threads": {"type": int, "default": 2, "help": "of torch; processes that render"},
}

add_train_arguments = partial(add_options, options=OPTIONS)
"""The options of ``edge-cloud-spec train rooms``."""


def run_train(args: argparse.Namespace) -> int:
    """Run the command; returns 0 on success. UserError: an invalid option."""
    if min(args.threads, args.rooms, args.told, args.views, args.rollouts) < 1 or args.batch < 2:
        raise UserError("--threads, --rooms, --told, --views, --rollouts are 1 or more, --batch 2")
    if min(args.seed, args.rounds) < 0 or not args.minutes > 0:
        raise UserError("--minutes is above 0, --seed and --rounds are 0 or more")
    base = args.pair / "target"
    if not (base / WEIGHTS).exists():
        raise UserError(f"--pair: {base / WEIGHTS} is missing: give the folder of a pair")
    folder, rendered = args.out / "target", args.out / "rooms"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {args.out} cannot be made: {error.strerror}") from None
    torch.set_num_threads(args.threads)
    pictured = max(1, round(args.batch * PICTURED_SHARE))
    plan = TuningPlan(
        args.minutes,
        args.batch - pictured,
        pictured,
        ROOMS_PEAK_RATE,
        args.seed,
        args.device,
        getattr(torch, args.dtype),
        turns=1,
    )
    tuner = Tuner(TARGET, base, folder, plan)
    # no seed of train tiny, which those that it is measured on may follow
    views = make_views(args.out / "views", args.seed + 500, args.views, "mixed", args.threads)
    lessons = RoomLessons(
        views, tuner.encode(list(views.images)), AutoTokenizer.from_pretrained(base)
    )
    lessons.look(make_room_views(rendered, args.seed, args.rooms, args.threads), tuner)
    lessons.told.append(make_told_views(rendered, args.seed, args.told, args.threads))
    for number in range(1, args.rounds + 1):
        tuner.run(lessons, number / (args.rounds + 1))
        save_target(tuner, base, folder)
        seed = args.seed + 100 * number
        lessons.told.append(make_told_views(rendered, seed, args.rollouts, args.threads, folder))
    tuner.run(lessons)
    save_target(tuner, base, folder)
    return 0


class RoomLessons(Taught):
    """What the target learns from: to go around what is in the way, by what is told and the right
    reason; the same in furnished rooms that it sees, where it goes straight if nothing is told; and
    questions about plain rooms.

    ``told``: of furnished rooms, without pictures; ``rooms``: with pictures, and ``seen``: those
    encoded, and mirrored.
    """

    rooms: RoomViews
    seen: tuple[Tensor, Tensor]

    def __init__(self, views: Views, viewed: Tensor, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__(views, viewed, tokenizer)
        self.told: list[RoomViews] = []

    def look(self, rooms: RoomViews, tuner: Tuner) -> None:
        """Learn from these pictures, too."""
        images = rooms.images
        self.rooms = rooms
        self.seen = tuner.encode(list(images)), tuner.encode(list(images[:, :, ::-1]))

    def conversations(self, count: int, rng: np.random.Generator) -> ConversationBatch:
        """So many answers without a picture, of which the action is learned."""
        sizes = np.array([len(views) for views in self.told])
        rows = []
        for part in rng.choice(len(sizes), count, p=sizes / sizes.sum()):
            views, mirrored = self.told[part], bool(rng.integers(2))
            index = int(rng.integers(len(views)))
            name, things = views.target(index), views.things(index, mirrored)
            answer = pieces(things, name, REASON_FIRST, views.action(index, mirrored, rng))
            given = 1 + len(reason_of(visible(things), name))
            answer[:given] = [replace(piece, weight=0.0) for piece in answer[:given]]
            asked = f"{draw_instruction(name, rng)}\n{views.told(index, mirrored)}"
            row = conversation([answer], REASON_FIRST, asked, self.encoder, pictured=False)
            rows.append(row)
        return ConversationBatch.of(rows, [self.viewed[:0]] * count, self.encoder.pad)

    def question(self, rng: np.random.Generator) -> tuple[ConversationRow, Tensor]:
        """About a picture of a plain or a furnished room."""
        if rng.random() < PLAIN_SHARE:
            return super().question(rng)
        index, mirrored = int(rng.integers(len(self.rooms))), int(rng.integers(2))
        name, things = self.rooms.target(index), self.rooms.things(index, bool(mirrored))
        asked, action, order = draw_instruction(name, rng), "", ORDERS[rng.integers(2)]
        if rng.random() >= UNTOLD_SHARE:
            asked += f"\n{self.rooms.told(index, bool(mirrored))}"
            action = self.rooms.action(index, bool(mirrored), rng)
        answer = pieces(things, name, order, action)
        row = conversation([answer], order, asked, self.encoder)
        return row, self.seen[mirrored][index : index + 1]


def save_target(tuner: Tuner, base: Path, folder: Path) -> None:
    """Write the files of the base, with the weights that it has, as tuned. Its exits are not fit
    for them."""
    exits = shutil.ignore_patterns("exits", WEIGHTS)
    shutil.copytree(base, folder, ignore=exits, dirs_exist_ok=True)
    state = tuner.model.state_dict()
    kept = {
        name: state[name][tuple(map(slice, old.shape))].to(old.dtype).contiguous().cpu()
        for name, old in load_file(base / WEIGHTS).items()
    }
    save_file(kept, folder / WEIGHTS, {"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)
