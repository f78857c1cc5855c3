"""``edge-cloud-spec``: one command with subcommands.

Every subcommand exits with 0 only if it did its task, and prints one clear sentence if its input
cannot be used. Each imports only the modules that it needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

from . import __version__
from .errors import exit_status
from .share import has_lab, lab

Run = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return exit_status(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    args = _parser(arguments[:2]).parse_args(arguments)
    run: Run = args.run
    return run(args)


def _parser(chosen: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edge-cloud-spec",
        description="Vision-language navigation by edge-cloud speculative decoding.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (about, _) in _COMMANDS.items():
        if name in _OF_THE_LAB and name not in chosen and not has_lab():
            continue
        command = commands.add_parser(name, help=about, description=about)
        if name in chosen:
            command.set_defaults(run=_add(name, command, chosen))
    return parser


def _add(name: str, parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    """Add a command's options to its parser; returns the function that runs it."""
    if name == "train":
        return _train(parser, chosen)
    folder = _COMMANDS[name][1]
    module = lab(folder) if name in _OF_THE_LAB else import_module(f".{folder}", __package__)
    add = getattr(module, f"add_{name}_arguments")
    add(parser, chosen) if name == "bench" else add(parser)
    return cast(Run, getattr(module, f"run_{name}"))


def _train(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    for kind, about in _TRAINED.items():
        command = kinds.add_parser(kind, help=about, description=about)
        if kind in chosen:
            training = lab(f"training.{kind}.command")
            training.add_train_arguments(command)
            command.set_defaults(train=training.run_train)
    return lambda args: cast(int, args.train(args))


_OF_THE_LAB = ("demo", "bench", "train")
_TRAINED = {
    "tiny": "train or evaluate the embedded pair on simulated views",
    "flats": "fine-tune a pair on conversations in flats",
    "exits": "train early exits of a target, which stays as it is",
}
# What each is for, and the module with its ``add_NAME_arguments`` and ``run_NAME``.
_COMMANDS = {
    "demo": ("watch a simulated Go2 follow an instruction", "demo.command"),
    "serve": ("run the cloud verifier", "cloud.command"),
    "decode": (
        "decode one picture and instruction through the link, without ROS",
        "edge.command",
    ),
    "memory": ("say how much memory a checkpoint needs", "models.memory"),
    "replay": ("replay a bag's camera and instruction to the nodes", "replay.command"),
    "view": ("show the running graph, or a bag, in a browser", "view.command"),
    "commission": (
        "measure what a base, its odometry and its camera really do",
        "commission.command",
    ),
    "record": ("record a running graph into a bag", "observe.recorder"),
    "bench": ("measure, with figures as JSON", "bench.command"),
    "train": ("train and evaluate the embedded models, and exits of any target", "training"),
    "doctor": ("check what this machine has, and say what to do", "doctor.command"),
}


if __name__ == "__main__":
    sys.exit(main())
