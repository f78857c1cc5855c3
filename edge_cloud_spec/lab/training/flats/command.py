"""``edge-cloud-spec train flats``: fine-tunes a pair on an expert's conversations in flats."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ....errors import UserError
from ....models import EMBEDDED
from ...rows import Options, add_options
from ..tiny.architecture import SHAPES, save_pair_model
from ..tiny.data import make_views
from .conversations import Taught, Tuner, TuningPlan, encode, encoded_episodes
from .episodes import make_episodes, read_episodes

DRAFTER_SHARE = 0.25  # of the minutes: it should stay the weaker
RATES = {"target": 1e-3, "drafter": 2e-3}

OPTIONS: Options = {
    "--pair": {"type": Path, "default": EMBEDDED, "help": "the pair to begin with (%(default)s)"},
    "--out": {
        "type": Path,
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
    "--seed": {"type": int, "default": 1, "help": "of episodes, views and steps"},
    "--threads": {"type": int, "default": 2, "help": "of torch; processes that render"},
}

add_train_arguments = partial(add_options, options=OPTIONS)
"""The options of ``edge-cloud-spec train flats``."""


def run_train(args: argparse.Namespace) -> int:
    """Run the command; returns 0 on success. UserError: an invalid option."""
    if min(args.threads, args.episodes, args.views) < 1 or args.seed < 0 or not args.minutes > 0:
        raise UserError(
            "--threads, --episodes and --views are 1 or more, --minutes above 0, --seed 0 or more"
        )
    for path in (args.pair / name / "model.safetensors" for name in SHAPES):
        if not path.exists():
            raise UserError(f"--pair: {path} is missing: give the folder of a target and a drafter")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {args.out} cannot be made: {error.strerror}") from None
    torch.set_num_threads(args.threads)
    for name in SHAPES:
        tune(args, name)
    return 0


def tune(args: argparse.Namespace, name: str) -> None:
    """Tune the pair's model of this name into ``args.out``, or go on with it."""
    folder = args.out / name
    folder.mkdir(exist_ok=True)
    share = DRAFTER_SHARE if name == "drafter" else 1 - DRAFTER_SHARE
    plan = TuningPlan(args.minutes * share, 2, 4, RATES[name], args.seed)
    tuner = Tuner(SHAPES[name], args.pair / name, folder, plan)
    episodes, seen = [], []
    rendered = args.out / "episodes"
    for file in make_episodes(rendered, args.seed, args.episodes, "mixed", args.threads):
        some = list(read_episodes(file))
        episodes += some
        seen.append(encoded_episodes(tuner.model, file, some, name))
    views = make_views(args.out / "views", args.seed, args.views, "mixed", args.threads)
    viewed = encode(tuner.model, list(views.images))
    tuner.run(Taught(episodes, np.concatenate(seen), views, viewed))
    save_pair_model(tuner.model, folder, flats=True)
