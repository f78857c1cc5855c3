"""``edge-cloud-spec train flats``: fine-tunes a pair on an expert's conversations in flats."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.share import path_of

from ...rows import Options, add_options
from ...sim.camera import decode_jpeg
from ..tiny.architecture import TINY_SHAPES, save_pair_model
from ..tiny.data import make_views
from .conversations import Taught, Tuner, TuningPlan
from .episodes import make_episodes, read_episodes

FLATS_DRAFTER_SHARE = 0.25  # of the minutes: it should stay the weaker
PEAK_RATES = {"target": 1e-3, "drafter": 2e-3}

OPTIONS: Options = {
    "--pair": {
        "type": path_of,
        "default": EMBEDDED,
        "help": "the pair to begin with (%(default)s)",
    },
    "--out": {
        "type": path_of,
        "default": Path("flats-pair"),
        "help": "folder of episodes, states and pair; run again to go on (%(default)s)",
    },
    "--minutes": {"type": float, "default": 120.0, "help": "of tuning, both models, in all"},
    "--episodes": {"type": int, "default": 1000, "help": "missions of the expert"},
    "--views": {
        "type": int,
        "default": 4000,
        "help": "single frames to keep what it sees",
    },
    "--rounds": {"type": int, "default": 5, "help": "times that the target drives itself"},
    "--rollouts": {"type": int, "default": 100, "help": "missions that it drives each time"},
    "--batch": {"type": int, "default": 4, "help": "conversations a step (a GPU: 96)"},
    "--device": {"default": "cpu", "help": "of torch, as cuda (%(default)s)"},
    "--dtype": {
        "choices": ("float32", "bfloat16"),
        "default": "float32",
        "help": "of products: bfloat16 for a GPU, or a CPU that has it (%(default)s)",
    },
    "--seed": {"type": int, "default": 1, "help": "of episodes, views and steps"},
    "--threads": {"type": int, "default": 2, "help": "of torch; processes that render"},
}

add_train_arguments = partial(add_options, options=OPTIONS)
"""The options of ``edge-cloud-spec train flats``."""


def run_train(args: argparse.Namespace) -> int:
    """Run the command; returns 0 on success. UserError: an invalid option."""
    if min(args.threads, args.episodes, args.views, args.rollouts, args.batch) < 1:
        raise UserError("--threads, --episodes, --views, --rollouts and --batch are 1 or more")
    if min(args.seed, args.rounds) < 0 or not args.minutes > 0:
        raise UserError("--minutes is above 0, --seed and --rounds are 0 or more")
    for path in (args.pair / name / "model.safetensors" for name in TINY_SHAPES):
        if not path.exists():
            raise UserError(f"--pair: {path} is missing: give the folder of a target and a drafter")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {args.out} cannot be made: {error.strerror}") from None
    torch.set_num_threads(args.threads)
    for name in TINY_SHAPES:
        tune(args, name)
    return 0


def tune(args: argparse.Namespace, name: str) -> None:
    """Tune the pair's model of this name into ``args.out``, or go on with it.

    The target learns from missions of its own, too. The drafter learns from those, in which the
    target's words stand.
    """
    folder, rendered = args.out / name, args.out / "episodes"
    folder.mkdir(exist_ok=True)
    share = FLATS_DRAFTER_SHARE if name == "drafter" else 1 - FLATS_DRAFTER_SHARE
    plan = TuningPlan(
        args.minutes * share,
        args.batch,
        2 * args.batch,
        PEAK_RATES[name],
        args.seed,
        args.device,
        getattr(torch, args.dtype),
    )
    tuner = Tuner(TINY_SHAPES[name], args.pair / name, folder, plan)
    views = make_views(args.out / "views", args.seed, args.views, "mixed", args.threads)
    taught = Taught(views, tuner.encode(list(views.images)))
    expert = make_episodes(rendered, args.seed, args.episodes, "mixed", args.threads)
    add_episodes(taught, tuner, expert)
    for number in range(1, args.rounds + 1):
        if name == "target":
            tuner.run(taught, number / (args.rounds + 1))
            save_pair_model(tuner.model, folder, flats=True)
        seed = args.seed + 100 * number
        model = args.out / "target"
        played = make_episodes(rendered, seed, args.rollouts, "mixed", args.threads, model)
        add_episodes(taught, tuner, played)
    tuner.run(taught)
    save_pair_model(tuner.model, folder, flats=True)


def add_episodes(taught: Taught, tuner: Tuner, files: Sequence[Path]) -> None:
    """Teach the episodes of these files."""
    for file in files:
        some = list(read_episodes(file))
        taught.add(some, tuner.encode([decode_jpeg(jpeg) for e in some for jpeg in e.jpegs]))
