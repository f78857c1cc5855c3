"""``edge-cloud-spec train tiny``: train a pair, or evaluate the one that ships."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from ....errors import UserError, check_writable
from ....models import EMBEDDED
from .architecture import SHAPES, load_pair_model, save_pair_model
from .data import QuestionEncoder, make_views
from .evaluation import Evaluation, evaluate
from .tokenizer import build_tokenizer
from .trainer import Trainer, TrainingPlan

HELD_OUT = 1_000  # views
VIEWS = 32_000
DRAFTER_SHARE = 0.1  # of the minutes
SIGHT_SHARE = 0.5  # of a model's minutes
DRAFTER_IMAGES = (5_000, 18_000)  # sight, joint: with more it errs too seldom to be a drafter


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``edge-cloud-spec train tiny``."""
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="folder of the pair (default: the shipped one to evaluate, ./tiny-pair to train)",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of training, both models")
    parser.add_argument("--views", type=int, default=VIEWS, help="views to train on")
    parser.add_argument("--seed", type=int, default=1, help="of views, weights and questions")
    parser.add_argument("--threads", type=int, default=2, help="of torch; processes that render")
    parser.add_argument("--resume", action="store_true", help="continue from OUT's checkpoints")
    parser.add_argument(
        "--start-from", type=Path, default=None, help="a pair whose weights to train further"
    )
    parser.add_argument(
        "--models", default=",".join(SHAPES), help="which to train (default %(default)s)"
    )
    parser.add_argument("--evaluate", action="store_true", help="measure a pair only")
    parser.add_argument("--count", type=int, default=HELD_OUT, help="held-out views to measure on")
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file")


def run_train(args: argparse.Namespace) -> int:
    """Run the command; 0 when it did what it says. UserError: an option does not fit."""
    if args.count < 20:
        raise UserError(f"--count must be at least 20 views to measure on, not {args.count}")
    if args.threads < 1 or args.seed < 0:
        raise UserError("--threads is 1 or more, --seed 0 or more")
    if args.json:
        check_writable(args.json)
    if args.evaluate:
        measured = measure(args.out or EMBEDDED, args.seed, args.count, args.threads)
    else:
        folder = args.out or Path("tiny-pair")
        train(args, folder)
        measured = measure(folder, args.seed, args.count, args.threads)
    report(measured)
    if args.json:
        rows = {"suite": "train tiny", "seed": args.seed, "versions": _versions()}
        args.json.write_text(json.dumps({**rows, "rows": measured.rows}, indent=1) + "\n")
    return 0


def train(args: argparse.Namespace, folder: Path) -> None:
    """Train the models of ``args.models`` into ``folder``/target and ``folder``/drafter.

    UserError, before anything is rendered: options that do not fit, checkpoints that are there
    without ``--resume``, or a model of the pair that is neither trained nor there.
    """
    names = args.models.split(",")
    if args.views < 100 or args.minutes <= 0 or not set(names) <= set(SHAPES):
        raise UserError(
            "training needs --views of at least 100, --minutes above 0 and "
            f"--models of {', '.join(SHAPES)}"
        )
    kept = {name: folder / "checkpoints" / f"{name}.pt" for name in names}
    if not args.resume and any(path.exists() for path in kept.values()):
        raise UserError(f"{folder} holds checkpoints: add --resume, or choose another --out")
    for name in SHAPES:
        if args.start_from is not None:
            _trained(args.start_from, name)
        elif name not in names and not _weights(folder, name).exists():
            raise UserError(
                f"--models {args.models} trains no {name}, and {folder} has none to measure with: "
                "add --start-from and a pair that has one, or train both"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder} cannot be made: {error.strerror}") from None
    views = make_views(folder / "views", args.seed, args.views, "mixed", args.threads)
    for name, checkpoint in kept.items():
        trainer = Trainer(SHAPES[name], views, _plan(name, names, args), checkpoint)
        if args.start_from is not None:
            trainer.start_from(_trained(args.start_from, name))
        if args.resume:
            trainer.resume()
        save_pair_model(trainer.run(), folder / name)
    for name in set(SHAPES) - set(names):
        if args.start_from is not None:  # the pair stays whole
            shutil.copytree(_trained(args.start_from, name), folder / name, dirs_exist_ok=True)


def _plan(name: str, names: Sequence[str], args: argparse.Namespace) -> TrainingPlan:
    """The drafter is trained little on purpose: its mistakes are what verification is for."""
    weak = name == "drafter"
    alone = len(names) == 1
    share = args.minutes * (1 if alone else DRAFTER_SHARE if weak else 1 - DRAFTER_SHARE)
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


def _weights(folder: Path, name: str) -> Path:
    return folder / name / "model.safetensors"


def _trained(folder: Path, name: str) -> Path:
    if not _weights(folder, name).exists():
        raise UserError(f"{folder} has no {name}/model.safetensors: train a pair into it first")
    return folder / name


def measure(folder: Path, seed: int, count: int, threads: int) -> Evaluation:
    """Evaluate the pair in ``folder`` on ``count`` views that no training seed renders.

    UserError: a model of the pair is missing.
    """
    trained = {name: _trained(folder, name) for name in SHAPES}
    torch.set_num_threads(threads)
    # training renders shards of seeds below 10**9
    with tempfile.TemporaryDirectory() as rendered:
        views = make_views(Path(rendered), seed + 10**6, count, "mixed", threads)
    tokenizer = build_tokenizer()
    models = {name: load_pair_model(path) for name, path in trained.items()}
    return evaluate(models, QuestionEncoder(tokenizer), tokenizer.decode, views, seed)


def report(measured: Evaluation) -> None:
    """Print the figures as a table."""
    columns = ("accuracy", "wrong_picture", "wrong_instruction", "chance")
    print("".join(f"{name:>19}" for name in ("model", "skill", *columns)))
    for row in measured.rows:
        figures = [row.get(column) for column in columns]
        shown = ["" if value is None else f"{value:.3f}" for value in figures]
        print("".join(f"{text:>19}" for text in (row["model"], row["skill"], *shown)))


def _versions() -> dict[str, str]:
    names = ("torch", "transformers", "tokenizers", "mujoco")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
