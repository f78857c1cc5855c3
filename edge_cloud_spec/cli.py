"""``edge-cloud-spec``: one command, a subcommand for each thing a person does with the package.

Every subcommand exits 0 only when it did what it says, and prints one clear sentence when what it
was given cannot be used. Modules are imported by the subcommand that needs them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import cast

from . import __version__
from .errors import exit_status
from .share import lab

Run = Callable[[argparse.Namespace], int]
Add = Callable[[argparse.ArgumentParser, Sequence[str]], Run]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
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
    for name, (about, add) in _COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        if name in chosen:
            command.set_defaults(run=add(command, chosen))
    return parser


def _demo(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    demo = lab("demo.command")
    demo.add_demo_arguments(parser)
    return cast(Run, demo.run_demo)


def _replay(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .replay.command import add_replay_arguments, run_replay

    add_replay_arguments(parser)
    return run_replay


def _view(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .view.command import add_view_arguments, run_view

    add_view_arguments(parser)
    return run_view


def _record(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .observe.recorder import add_record_arguments, run_record

    add_record_arguments(parser)
    return run_record


def _serve(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .cloud.command import add_serve_arguments, run_serve

    add_serve_arguments(parser)
    return run_serve


def _decode(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .edge.command import add_decode_arguments, run_decode

    add_decode_arguments(parser)
    return run_decode


def _bench(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    bench = lab("bench.command")
    bench.add_bench_arguments(parser, chosen)
    return cast(Run, bench.run_bench)


def _train(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    for kind, about in _TRAINED.items():
        command = kinds.add_parser(kind, help=about, description=about)
        if kind in chosen:
            training = lab(f"training.{kind}.command")
            training.add_train_arguments(command)
            command.set_defaults(train=training.run_train)
    return lambda args: cast(int, args.train(args))


def _doctor(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    from .doctor.command import add_doctor_arguments, run

    add_doctor_arguments(parser)
    return run


_TRAINED = {
    "tiny": "train or evaluate the embedded pair on simulated views",
    "exits": "train early exits of a target, which stays as it is",
}
_COMMANDS: dict[str, tuple[str, Add]] = {
    "demo": ("watch a simulated Go2 follow an instruction", _demo),
    "serve": ("run the cloud verifier", _serve),
    "decode": ("decode one picture and instruction through the link, without ROS", _decode),
    "replay": ("replay a bag's camera and instruction to the nodes", _replay),
    "view": ("show the running graph, or a bag, in a browser", _view),
    "record": ("record a running graph into a bag", _record),
    "bench": ("measure, with figures as JSON", _bench),
    "train": ("train and evaluate the embedded models, and exits of any target", _train),
    "doctor": ("check what this machine has, and say what to do", _doctor),
}


if __name__ == "__main__":
    sys.exit(main())
