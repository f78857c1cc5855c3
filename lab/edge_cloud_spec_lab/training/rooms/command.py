"""``edge-cloud-spec train rooms``: fine-tunes the pair's target in furnished rooms."""

from __future__ import annotations

import argparse
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.nav.answer import ORDERS
from edge_cloud_spec.share import path_of

from ...rows import Options, add_options
from ..flats.conversations import ConversationBatch, Taught, Tuner, TuningPlan, conversation
from ..tiny.architecture import TARGET
from ..tiny.data import draw_instruction, make_views
from ..tiny.language import pieces
from .views import RoomViews, make_room_views

WEIGHTS = "model.safetensors"
PLAIN_SHARE = 0.25  # of what a step learns: views of rooms whose way is clear
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
    "--rooms": {"type": int, "default": 300, "help": "missions of the expert"},
    "--views": {"type": int, "default": 4000, "help": "of plain rooms, to keep what it sees"},
    "--rounds": {"type": int, "default": 10, "help": "times that the target drives itself"},
    "--rollouts": {"type": int, "default": 60, "help": "missions that it drives each time"},
    "--batch": {"type": int, "default": 16, "help": "views a step (a GPU: 256)"},
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
    if min(args.threads, args.rooms, args.views, args.rollouts) < 1 or args.batch < 2:
        raise UserError("--threads, --rooms, --views and --rollouts are 1 or more, --batch 2")
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
    plain = max(1, round(args.batch * PLAIN_SHARE))
    plan = TuningPlan(
        args.minutes,
        args.batch - plain,
        plain,
        ROOMS_PEAK_RATE,
        args.seed,
        args.device,
        getattr(torch, args.dtype),
        turns=1,
    )
    tuner = Tuner(TARGET, base, folder, plan)
    # no seed of train tiny, which those that it is measured on may follow
    views = make_views(args.out / "views", args.seed + 500, args.views, "mixed", args.threads)
    lessons = RoomLessons(views, tuner.encode(list(views.images)))
    lessons.learn(make_room_views(rendered, args.seed, args.rooms, args.threads), tuner)
    for number in range(1, args.rounds + 1):
        tuner.run(lessons, number / (args.rounds + 1))
        save_target(tuner, base, folder)
        seed = args.seed + 100 * number
        driven = make_room_views(rendered, seed, args.rollouts, args.threads, folder)
        lessons.learn(driven, tuner)
    tuner.run(lessons)
    save_target(tuner, base, folder)
    return 0


class RoomLessons(Taught):
    """What the target learns from: views of furnished rooms, in which it goes around what is in the
    way where it is told the free space, and questions about plain ones."""

    rooms: tuple[RoomViews, ...] = ()
    seen: tuple[tuple[Tensor, Tensor], ...] = ()

    def learn(self, rooms: RoomViews, tuner: Tuner) -> None:
        """Learn from these, too, and from their mirrored pictures."""
        images = rooms.images
        seen = (tuner.encode(list(images)), tuner.encode(list(images[:, :, ::-1])))
        self.rooms, self.seen = (*self.rooms, rooms), (*self.seen, seen)

    def conversations(self, count: int, rng: np.random.Generator) -> ConversationBatch:
        """So many, of one turn each."""
        sizes = np.array([len(rooms) for rooms in self.rooms])
        rows, pictures = [], []
        for part in rng.choice(len(sizes), count, p=sizes / sizes.sum()):
            rooms, mirrored = self.rooms[part], int(rng.integers(2))
            index, order = int(rng.integers(len(rooms))), ORDERS[rng.integers(2)]
            name, things = rooms.target(index), rooms.things(index, bool(mirrored))
            asked, action = draw_instruction(name, rng), ""
            if rng.random() >= UNTOLD_SHARE:
                asked += f"\n{rooms.told(index, bool(mirrored))}"
                action = rooms.action(index, bool(mirrored), rng)
            answer = pieces(things, name, order, action)
            rows.append(conversation([answer], order, asked, self.encoder))
            pictures.append(self.seen[part][mirrored][index : index + 1])
        return ConversationBatch.of(rows, pictures, self.encoder.pad)


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
