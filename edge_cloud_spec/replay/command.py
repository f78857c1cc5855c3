"""``edge-cloud-spec replay BAG``: a bag's frames and instructions, published to running nodes.

Their answers are compared with the recorded ones. Nothing moves: the replay takes the navigator's
place and requests each decision when the recorded run made it, so that it is made on the frame of
the recorded one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from .. import __version__
from ..bringup.graph import LOCAL, GraphSettings
from ..bringup.running_graph import LaunchConfig, free_address, launch_graph
from ..bringup.signals import signals_as_interrupt
from ..errors import UserError
from ..observe.console_view import ConsoleView
from ..observe.draft_text import joined
from ..observe.observer import Observer
from .player import DecisionComparison, Player
from .recording import Recording, read_recording, target_of

REPRODUCIBLE = ("greedy", "coupled")  # rules whose answer depends on frame, target, seed only


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``edge-cloud-spec replay``."""
    parser.add_argument("bag", type=Path, help="folder of a rosbag2 (report/bag of a demo)")
    parser.add_argument("--cloud", default=LOCAL, help="HOST:PORT of a verifier; local: start one")
    parser.add_argument("--target", default="", help="target model (directory or hub name)")
    parser.add_argument("--drafter", default="", help="draft model (directory or hub name)")
    parser.add_argument("--preset", default="", help="another preset than the recorded one")
    parser.add_argument(
        "--attach",
        action="store_true",
        help="play to nodes that run already, in this ROS_DOMAIN_ID, with their parameters but "
        "the recorded seeds",
    )
    parser.add_argument("--json", type=Path, help="write the comparison there")


def run_replay(args: argparse.Namespace) -> int:
    """Play the bag; 0 when all decisions are the recorded ones (``rejection``: were made)."""
    recording = read_recording(args.bag)
    view = ConsoleView(Console(highlight=False))
    view.print_line(
        f"{args.bag}: {len(recording.decisions)} decisions on {len(recording.frames)} pictures, "
        f"preset {args.preset or recording.preset}, rule {recording.rule}",
        "bold",
    )
    rows: list[DecisionComparison] = []
    with signals_as_interrupt(), _nodes(args, recording, view) as observer:
        for row in Player(observer, recording).play():
            rows.append(row)
            _show(view, len(rows), row)
        target = observer.read(target_of)
    if recording.target and target and target != recording.target:
        change = f"the target is {target}, and was {recording.target} in the recorded run"
        view.print_line(change, "yellow")
    equal = sum(row.equal for row in rows)
    text = f"{equal} of {len(rows)} decisions are the recorded ones"
    view.print_line(text, "bold green" if equal == len(rows) else "bold red")
    if args.json is not None:
        _write(args.json, args, recording, rows)
    made = sum(row.replayed is not None for row in rows)
    return 0 if (equal if recording.rule in REPRODUCIBLE else made) == len(rows) else 1


@contextlib.contextmanager
def _nodes(args: argparse.Namespace, recording: Recording, view: ConsoleView) -> Iterator[Observer]:
    """Drafter, bridge and verifier: those that run already, or ones started here."""
    if args.attach:
        with Observer(int(os.environ.get("ROS_DOMAIN_ID") or 0), None) as observer:
            yield observer
        return
    settings = GraphSettings(
        cloud=args.cloud,
        preset=args.preset or recording.preset,
        target=args.target,
        drafter=args.drafter,
        sim=False,
        local_address=free_address(),
    )
    config = LaunchConfig(
        settings, {"drafter": recording.parameters}, frozenset({"navigator", "monitor"})
    )
    with (
        tempfile.TemporaryDirectory(prefix="replay-") as logs,
        launch_graph(config, Path(logs), None, view.node_ready) as running,
    ):
        yield running.observer


def _show(view: ConsoleView, number: int, row: DecisionComparison) -> None:
    if row.equal:
        view.print_line(f"  {number:3}  same     {joined([row.recorded])}", "green")
    else:
        view.print_line(f"  {number:3}  was      {joined([row.recorded])}", "dim")
        view.print_line(f"       is now   {joined([row.replayed or row.problem])}", "red")


def _write(
    path: Path, args: argparse.Namespace, recording: Recording, rows: list[DecisionComparison]
) -> None:
    content = {
        "suite": "replay",
        "seed": recording.parameters["seed"],
        "versions": {"edge_cloud_spec": __version__},
        "preset": args.preset or recording.preset,
        "rule": recording.rule,
        "rows": [asdict(row) for row in rows],
    }
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
