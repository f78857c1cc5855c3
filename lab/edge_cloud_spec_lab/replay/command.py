"""``edge-cloud-spec replay BAG``: plays a bag's pictures and instructions to the real nodes.

It compares their answers with the recorded ones, if there are any, and records the new ones.
Nothing moves: the nodes have their own namespace, in which the replay takes the navigator's place.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from edge_cloud_spec import __version__
from edge_cloud_spec.bringup.graph import LOCAL, GraphSettings, graph
from edge_cloud_spec.edge.decode_options import DecodeOptions
from edge_cloud_spec.errors import UserError, check_writable, write_json
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.observe.decision import joined
from edge_cloud_spec.options import add_options, given
from edge_cloud_spec.pilot.settings import DrafterSettings
from edge_cloud_spec.share import path_of
from edge_cloud_spec.signals import signals_as_interrupt

from ..running.console_view import ConsoleView
from ..running.observer import Observer
from ..running.running_graph import LaunchConfig, free_address, launch_graph
from .difference import Comparison, compare, dialect_of, history_of, influences
from .player import NAMESPACE, NotPlayed, Player
from .recording import Choice, Recording, ReplayTask, read_recording

REPLAY_NODES = {"cloud_verifier", "cloud_bridge", "drafter"}
REPRODUCIBLE = ("greedy", "coupled")  # rules whose answer depends on picture, target, seed only


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``edge-cloud-spec replay``."""
    parser.add_argument("bag", type=path_of, help="folder of a rosbag2, or its .mcap or .db3 file")
    parser.add_argument("--cloud", default=LOCAL, help="HOST:PORT of a verifier; local: start one")
    parser.add_argument("--target", default="", help="target model (directory or hub name)")
    parser.add_argument("--drafter", default="", help="draft model (directory or hub name)")
    parser.add_argument("--namespace", default="", help="of the robot, where the bag has several")
    parser.add_argument("--camera", default="", metavar="TOPIC", help="the bag's camera")
    parser.add_argument("--instruction", default="", metavar="TOPIC", help="its instructions")
    parser.add_argument("--say", default="", metavar="TEXT", help="follow this, on all pictures")
    parser.add_argument(
        "--every",
        type=float,
        default=1.0,
        metavar="S",
        help="seconds between new decisions, in the bag's time (%(default)g; 0: each picture)",
    )
    add_options(parser, DecodeOptions(), otherwise="as recorded")
    parser.add_argument("--out", type=path_of, metavar="BAG", help="record the replay there")
    parser.add_argument(
        "--attach",
        action="store_true",
        help=f"play to nodes that run in the namespace /{NAMESPACE} of this ROS_DOMAIN_ID",
    )
    parser.add_argument("--json", type=path_of, help="write the decisions there")


def run_replay(args: argparse.Namespace) -> int:
    """Play the bag; returns 0 if all decisions equal the recorded ones, or are made if none are
    recorded.

    1: a decision differs, or was not made. Under ``rejection``, whose answers depend on the drafts,
    0 if all were made. Raises UserError.
    """
    if not 0 <= args.every < math.inf:
        raise UserError(f"--every is 0 seconds or more, not {args.every:g}")
    if args.attach and (args.target or args.drafter or args.dialect or args.cloud != LOCAL):
        raise UserError(
            "--attach plays to nodes that run: no --cloud, --target, --drafter or --dialect"
        )
    if args.target and args.cloud != LOCAL:
        raise UserError("--cloud names a verifier that runs: no --target")
    if args.json is not None:
        check_writable(args.json)
    recording = read_recording(
        args.bag, Choice(args.camera, args.instruction, args.say, args.every, args.namespace)
    )
    recording = replace(recording, tasks=tuple(_with_options(args, recording)))
    view = ConsoleView(Console(highlight=False))
    count, frames = len(recording.tasks), recording.frames
    what = "recorded decisions" if recording.compares else "new decisions"
    passed = f"; some passed over: {recording.problem}" if recording.problem else ""
    view.print_line(f"{args.bag}: {count} {what}, {frames} pictures{passed}", "bold")
    _check_target(args, recording)
    out = args.out or (None if recording.compares else _beside(args.bag))
    rows: list[Comparison] = []
    try:
        with (
            signals_as_interrupt(),
            _nodes(args, recording, out, view) as observer,
            Player(observer) as player,
        ):
            player.wait_for_drafter()
            for number, task in enumerate(recording.tasks, 1):
                answer = player.play(task)
                row = observer.read(partial(compare, number, task, answer, recording.run_log))
                rows.append(row)
                _show(view, row)
            now = observer.read(influences).get("target")
    except NotPlayed as why:
        view.print_line(str(why), "bold red")
        return 1
    was = influences(recording.run_log).get("target")
    if was and now and was != now:
        view.print_line(f"the target is {now}, and was {was} in the recorded run", "yellow")
    status = _conclude(view, recording, rows)
    if out is not None:
        view.print_line(f"recorded: {out}" if not observer.problem else observer.problem)
        status = status or int(bool(observer.problem))
    if args.json is not None:
        first = recording.tasks[0].parameters
        report = {
            "suite": "replay",
            "seed": first["seed"],
            "versions": {"edge_cloud_spec": __version__},
            "preset": first.get("preset", "dsd"),
            "rule": first["rule"],
            "rows": [asdict(row) for row in rows],
        }
        write_json(args.json, report)
    return status


def _with_options(args: argparse.Namespace, recording: Recording) -> Iterator[ReplayTask]:
    """The tasks with the user's parameters."""
    chosen = given(DecodeOptions(), args)
    chosen.pop("dialect", None)  # with which the drafter is started
    for number, task in enumerate(recording.tasks):
        made = {"seed": 0, "first_decision": number} if task.recorded is None else {}
        parameters = {"rule": DecodeOptions.rule} | dict(task.parameters) | made | chosen
        if chosen:
            DrafterSettings.of({name: parameters[name] for name in chosen.keys() | {"rule"}})
        yield replace(task, parameters=parameters)


def _check_target(args: argparse.Namespace, recording: Recording) -> None:
    """Raise UserError if the recorded run had another target and the user chose none."""
    was = influences(recording.run_log).get("target")
    if not (was and recording.compares) or args.target or args.attach or args.cloud != LOCAL:
        return
    from edge_cloud_spec.models.load import identity  # torch: seconds that --help should not cost

    now = identity(EMBEDDED / "target")
    if was != now:
        raise UserError(
            f"{args.bag} was recorded with the target {was}, and the embedded one is {now}: "
            "give --target its directory, or --cloud its verifier"
        )


@contextlib.contextmanager
def _nodes(
    args: argparse.Namespace, recording: Recording, out: Path | None, view: ConsoleView
) -> Iterator[Observer]:
    """Drafter, bridge and verifier: existing ones, or started here."""
    if args.attach:
        with Observer(int(os.environ.get("ROS_DOMAIN_ID") or 0), out, NAMESPACE) as observer:
            yield observer
        return
    recorded = str(recording.tasks[0].parameters.get("preset", "dsd"))
    settings = GraphSettings(
        cloud=args.cloud,
        preset=recorded,
        target=args.target,
        drafter=args.drafter,
        dialect=args.dialect or dialect_of(recording.run_log),
        history=history_of(recording.run_log),
        max_tokens=max(int(task.parameters.get("max_tokens", 0)) for task in recording.tasks),
        sim="false",
        scan="free_space",  # what the robot's lidars showed is in the bag
        namespace=NAMESPACE,
        local_address=free_address(),
    )
    others = {spec.name for spec in graph(settings)} - REPLAY_NODES
    config = LaunchConfig(settings, {}, frozenset(others))
    with (
        tempfile.TemporaryDirectory(prefix="replay-") as logs,
        launch_graph(config, Path(logs), out, view.node_ready) as running,
    ):
        yield running.observer


def _beside(bag: Path) -> Path:
    """A new folder beside the bag."""
    base = bag.resolve() if bag.is_dir() else bag.resolve().parent
    names = (f"{base.name}_decisions{number or ''}" for number in range(1000))
    return next(base.parent / name for name in names if not (base.parent / name).exists())


def _show(view: ConsoleView, row: Comparison) -> None:
    words = joined([row.replayed or row.problem])
    if row.equal is None:
        view.print_line(f"  {row.number:3}  {'words' if row.replayed else 'none ':8} {words}")
    elif row.equal:
        view.print_line(f"  {row.number:3}  same     {words}", "green")
    else:
        view.print_line(f"  {row.number:3}  was      {joined([row.recorded or ''])}", "dim")
        view.print_line(f"       is now   {words}", "red")


def _conclude(view: ConsoleView, recording: Recording, rows: list[Comparison]) -> int:
    """Print the summary; returns the exit status."""
    made = sum(row.replayed is not None for row in rows)
    if not recording.compares:
        view.print_line(f"{made} of {len(rows)} decisions were made", "bold")
        return int(made < len(rows))
    equal = sum(bool(row.equal) for row in rows)
    text = f"{equal} of {len(rows)} decisions are the recorded ones"
    view.print_line(text, "bold green" if equal == len(rows) else "bold red")
    first = next((row for row in rows if not row.equal), None)
    if first is not None:
        view.print_line(f"the first difference: {first.place}: {first.difference or first.problem}")
        if first.why:
            view.print_line(f"  likely because {first.why}")
    rules = {str(task.parameters["rule"]) for task in recording.tasks}
    return int((equal if rules <= {*REPRODUCIBLE} else made) < len(rows))
