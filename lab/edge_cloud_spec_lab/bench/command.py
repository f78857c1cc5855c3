"""The command ``edge-cloud-spec bench SUITE``."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_cloud_spec.errors import UserError, check_writable
from edge_cloud_spec.share import path_of

from ..rows import Options, Row, add_options, print_table, seed, write

__all__ = ["Options", "Row", "add_options", "write"]  # which every suite takes from here

# What each suite measures, by the name of its module or folder (see __init__.py).
SUITES = {
    "ablations": "what early exits and looked-up drafts give, and what they cost",
    "endpoint": "chats by the robot's API over links that break; first words, and what it costs",
    "equality": "token by token against the target alone, computed by transformers itself",
    "failover": "replicas of a fleet on Ray killed and drained: how soon robots decode again",
    "faults": "faults put into the running system: what moves, how fast it stands and goes on",
    "flats": "simulated flats in virtual time: success and path length by frames remembered",
    "fleet": "many robots and one server: tokens per second, rounds, fairness; and a simulation",
    "frames": "tokens read, bytes sent and times with the earlier frames of a mission",
    "mission": "simulated rooms in virtual time: until the robot moves, and until it is there",
    "models": "two checkpoints on pictures of a bag: acceptance, times, memory, preset and promise",
    "pipelines": "each preset under published costs and links, in virtual or real time",
    "passes": "the time of a pass over many sessions, beside the bound of memory: for GPUs",
    "payload": "serialized bytes a round of every preset and rule",
    "peers": "tokens per second beside transformers' generate and assisted generate",
    "rivals": "auto beside a cloud that speculates by itself: tokens per second and mission time",
    "rooms": "simulated furnished rooms in virtual time: what arrives, and whether moves go around",
    "schedules": "short decodes over a link that cuts, loses, repeats and reorders any message",
    "stop": "how fast e_stop stops the robot",
}


def add_bench_arguments(parser: argparse.ArgumentParser, chosen: Sequence[str]) -> None:
    """A subcommand for each suite; only a chosen one is imported, since some bring torch or ROS."""
    suites = parser.add_subparsers(required=True, metavar="SUITE", dest="suite")
    for name, about in SUITES.items():
        suite = suites.add_parser(name, help=about, description=about)
        suite.add_argument("--seed", type=seed, default=0, help="other data (default %(default)s)")
        suite.add_argument("--json", type=path_of, help="write the rows there")
        if name in chosen:
            add_options(suite, _module(name).OPTIONS)


def run_bench(args: argparse.Namespace) -> int:
    """Run one suite; returns 0 unless a row says that it did not pass."""
    started = time.perf_counter()
    module = _module(args.suite)
    if args.json:
        check_writable(args.json)
    rows = module.run(args)
    if rows:
        print_table(rows, getattr(module, "COLUMNS", None))
    print(f"{args.suite}: {time.perf_counter() - started:.0f} s")
    if args.json:
        write(args.json, args.suite, args.seed, rows)
    return 0 if all(row.get("passed", True) for row in rows) else 1


def _module(suite: str) -> Any:
    """Import a suite: a file of this folder, or a folder with ``suite.py`` and helpers."""
    module = importlib.import_module(f".{suite}", __package__)
    is_folder = hasattr(module, "__path__")
    return importlib.import_module(f".{suite}.suite", __package__) if is_folder else module


def earlier_rows(path: Path | None, key: str) -> dict[str, Row]:
    """For ``--resume``: the rows of an earlier file by their ``key``. Raises UserError."""
    if path is None:
        raise UserError("--resume needs --json, the file of the run to go on with")
    try:
        text = path.read_text() if path.exists() else ""
        return {row[key]: row for row in json.loads(text)["rows"]} if text else {}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not of this suite; --resume cannot go on with it") from None
