"""``edge-cloud-spec``: one command with subcommands.

Every subcommand exits with 0 only if it did its task, and prints one clear sentence if its input
cannot be used. Each imports only the modules that it needs.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module

from . import __version__
from .errors import UserError, exit_status, how_to_install
from .plugins import load_plugins

Run = Callable[[argparse.Namespace], int]
Command = tuple[str, Callable[[argparse.ArgumentParser, Sequence[str]], Run]]
"""What it is for; and what adds its options to a parser and returns what runs it, given the first
words of the command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    status = exit_status(lambda: _run(arguments))
    if argv is None:
        gc.freeze()  # the program ends: to look through torch for garbage would take a second
    return status


def _run(arguments: list[str]) -> int:
    args = parser_of(arguments[:2]).parse_args(arguments)
    run: Run = args.run
    return run(args)


def parser_of(chosen: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for a command line with these first words. Raises UserError for a command that may
    be of the lab, where that cannot be used."""
    (name,) = chosen[:1] or ("",)
    # What is ours does not depend on what else is installed.
    commands, lacking = (_ours(), "") if name in _COMMANDS else all_commands()
    if lacking and name not in commands and name[:1] not in ("", "-"):
        raise UserError(f"there is no command {name!r} here; {lacking}")
    parser = argparse.ArgumentParser(
        prog="edge-cloud-spec",
        description="Vision-language navigation by edge-cloud speculative decoding.",
        epilog=lacking,
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for each, (about, add) in commands.items():
        command = subparsers.add_parser(each, help=about, description=about)
        if each == name:
            command.set_defaults(run=add(command, chosen))
    return parser


def all_commands() -> tuple[Mapping[str, Command], str]:
    """The commands by name, ours first; and a sentence where there are none of the lab."""
    commands = _ours()
    try:
        for more in load_plugins("commands"):
            commands |= more
    except UserError as error:
        return commands, str(error)
    lab = "demo, bench, memory, replay, train and view are in the lab, which is not installed"
    return commands, "" if "demo" in commands else f"{lab}: {how_to_install('edge_cloud_spec_lab')}"


def _ours() -> dict[str, Command]:
    return {name: (about, partial(_add, name, at)) for name, (about, at) in _COMMANDS.items()}


def _add(name: str, at: str, parser: argparse.ArgumentParser, chosen: Sequence[str]) -> Run:
    module = import_module(f".{at}", __package__)
    getattr(module, f"add_{name}_arguments")(parser)
    run: Run = getattr(module, f"run_{name}")
    return run


# What each is for, and the module with its ``add_NAME_arguments`` and ``run_NAME``.
_COMMANDS = {
    "serve": ("run the cloud verifier", "cloud.command"),
    "decode": (
        "decode one picture and instruction through the link, without ROS",
        "edge.command",
    ),
    "endpoint": ("serve an OpenAI-compatible API on the robot", "endpoint.command"),
    "mcp": ("give an agent tools to steer the robot (MCP)", "agent_tools.command"),
    "commission": (
        "measure what a base, its odometry and its camera really do",
        "commission.command",
    ),
    "record": ("record a running graph into a bag", "observe.recorder"),
    "doctor": ("check what this machine has, and say what to do", "doctor.command"),
}


if __name__ == "__main__":
    sys.exit(main())
