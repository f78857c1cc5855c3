"""The commands that the lab adds to ``edge-cloud-spec``, by the entry point ``lab``.

Each imports its modules when it is chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge_cloud_spec.cli import Command, Run

TRAINED = {
    "tiny": "train or evaluate the embedded pair on simulated views",
    "flats": "fine-tune a pair on conversations in flats",
    "rooms": "fine-tune the pair's target in furnished rooms, by missions of its own",
    "exits": "train early exits of a target, which stays as it is",
    "head": "train a head that drafts for a target, which stays as it is",
}


def _demo(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .demo.command import add_demo_arguments, run_demo

    add_demo_arguments(parser)
    return run_demo


def _bench(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .bench.command import add_bench_arguments, run_bench

    add_bench_arguments(parser, chosen)
    return run_bench


def _memory(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .memory import add_memory_arguments, run_memory

    add_memory_arguments(parser)
    return run_memory


def _replay(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .replay.command import add_replay_arguments, run_replay

    add_replay_arguments(parser)
    return run_replay


def _train(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    for kind, about in TRAINED.items():
        command = kinds.add_parser(kind, help=about, description=about)
        if kind in chosen:
            training = import_module(f".training.{kind}.command", __package__)
            training.add_train_arguments(command)
            command.set_defaults(train=training.run_train)
    return lambda args: int(args.train(args))


def _view(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .view.command import add_view_arguments, run_view

    add_view_arguments(parser)
    return run_view


COMMANDS: dict[str, Command] = {
    "demo": ("watch a simulated Go2 follow an instruction", _demo),
    "bench": ("measure, with figures as JSON", _bench),
    "memory": ("say how much memory a checkpoint needs", _memory),
    "replay": ("replay a bag's camera and instruction to the nodes", _replay),
    "train": ("train and evaluate the embedded models, and exits of any target", _train),
    "view": ("show the running graph, or a bag, in a browser", _view),
}
