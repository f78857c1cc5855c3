"""``bench drive``: the same simulated rooms under every preset.

Prints how many rooms end at the named object, and in how many the decisions are ``cloud_ar``'s. The
simulator waits for each decision, so success depends on the decisions and not on the machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ...decoding.policy import SamplingPolicy, temperature_of
from ...decoding.preset import Preset
from ...edge.runner import DecodeSettings, Outcome
from ...errors import UserError
from ...models import EMBEDDED, VLLM
from ...nav.events import Instruction
from ...nav.mission import MissionSettings
from ...pilot.decision_loop import Frame, LoopSettings
from ...pilot.pilot import Pilot, PilotSettings
from ...presets import load_preset
from ...share import rules_text
from ..harness.grpc_robot import GrpcRobot, engine_options
from ..harness.server import VerifierProcess
from ..sim.bases import BASES, IDEAL
from ..sim.episode import Episode, EpisodeOutcome
from ..sim.room import make_room
from .command import Options, Row
from .decodes import acceptance, cache_hits
from .options import finite

MAX_DECISIONS = 40
PRESETS = "cloud_ar,dsd,edge_only,cloud_sd,cloud_ar:coupled,dsd:coupled"


OPTIONS: Options = {
    "--scenes": {"type": int, "default": 100, "help": "rooms (default %(default)s)"},
    "--presets": {"default": PRESETS, "help": "with commas; greedy, or NAME:coupled (%(default)s)"},
    "--temperature": {"type": finite, "default": 0.8, "help": "of the coupled rule"},
    "--order": {"default": "action first", "help": "or 'reason first'"},
    "--renderer": {"default": "auto", "help": "auto, egl or rays"},
    "--base": {"choices": BASES, "default": IDEAL, "help": "that drives (%(default)s)"},
    "--processes": {"type": int, "default": 2, "help": "rooms driven side by side"},
    "--target": {"default": str(EMBEDDED / "target")},
    "--engine": {"default": "", "help": f"{VLLM}http://HOST:PORT of the target, too, beside ours"},
    "--drafter": {"default": str(EMBEDDED / "drafter")},
}


@dataclass(frozen=True)
class RoomRun:
    """One room under one preset and rule; ``engine``: "" for ours."""

    room: int
    engine: str
    preset: str
    rule: str
    end: EpisodeOutcome
    decisions: tuple[Outcome, ...]

    @property
    def answers(self) -> list[tuple[int, ...]]:
        """The tokens of each decision."""
        return [each.tokens for each in self.decisions]


def _runs(names: str) -> list[tuple[Preset, str]]:
    """The presets of ``--presets``, each with its rule; raises UserError."""
    runs = []
    for name in names.split(","):
        preset, _, rule = name.partition(":")
        if rule not in ("", "coupled"):
            raise UserError(f"--presets {name}: give the name alone (greedy), or {preset}:coupled")
        runs.append((load_preset(preset), rule or "greedy"))
    return runs


def run(args: argparse.Namespace) -> list[Row]:
    """A row a preset and rule."""
    if args.scenes < 1 or args.processes < 1:
        raise UserError("--scenes and --processes must be 1 or more")
    drives = drive_rooms(args)
    return [
        _row(drives, engine, preset, rule)
        for engine in _engines(args)
        for preset, rule in _runs(args.presets)
    ]


def _engines(args: argparse.Namespace) -> list[str]:
    return ["", args.engine] if args.engine else [""]


def drive_rooms(args: argparse.Namespace) -> list[RoomRun]:
    """Each room under each preset and rule; raises UserError."""
    _runs(args.presets)
    rooms = [args.seed * 1_000_003 + i for i in range(args.scenes)]
    drives: list[RoomRun] = []
    with ExitStack() as clouds:
        args.clouds = {
            engine: clouds.enter_context(
                VerifierProcess(engine_options(48, args.target, args.drafter, engine))
            ).address
            for engine in _engines(args)
        }
        workers = multiprocessing.get_context("spawn").Pool(args.processes)
        with workers:
            jobs = [(args, room) for room in rooms]
            for done, result in enumerate(workers.imap_unordered(_drive_room, jobs), start=1):
                drives += result
                reached = sum(d.end.success for d in result)
                print(f"room {done}/{len(rooms)}: {reached} of {len(result)} runs", flush=True)
    return drives


def _row(drives: Sequence[RoomRun], engine: str, preset: Preset, rule: str) -> Row:
    runs = [d for d in drives if (d.engine, d.preset, d.rule) == (engine, preset.name, rule)]
    own = ("", "cloud_ar", rule)
    alone = {d.room: d.answers for d in drives if (d.engine, d.preset, d.rule) == own}
    same = sum(d.answers == alone[d.room] for d in runs) / len(runs) if alone else None
    decisions = [each for d in runs for each in d.decisions]
    return {
        "engine": engine or "ours",
        "preset": preset.name,
        "rule": rule,
        "scenes": len(runs),
        "success": sum(d.end.success for d in runs) / len(runs),
        "steps": len(decisions),
        "contacts": sum(d.end.contacts for d in runs),
        "blocked": sum(d.end.blocked for d in runs),
        "driven_s": sum(d.end.seconds for d in runs) / len(runs),
        "tokens": sum(len(each.tokens) for each in decisions),
        "seconds": round(sum(each.seconds for each in decisions), 2),
        "same_decisions_as_cloud_ar": same,
        "acceptance": acceptance(decisions) or 0.0,
        "cache_hit": cache_hits(decisions) if preset.speculation.predicts else None,
    }


_robots: list[GrpcRobot] = []  # of a worker process: one for each preset and rule


def _drive_room(job: tuple[argparse.Namespace, int]) -> list[RoomRun]:
    args, room = job
    runs = [(engine, *run) for engine in args.clouds for run in _runs(args.presets)]
    if not _robots:
        from ...models.load import load

        model = load(args.drafter, threads=1)
        spec = model.spec(rules_text(), 48)
        _robots.extend(GrpcRobot(args.clouds[engine], model, spec) for engine, *_ in runs)
    return [
        _drive(args, room, engine, preset, rule, robot)
        for (engine, preset, rule), robot in zip(runs, _robots, strict=True)
    ]


def _drive(
    args: argparse.Namespace,
    number: int,
    engine: str,
    preset: Preset,
    rule: str,
    robot: GrpcRobot,
) -> RoomRun:
    policy = SamplingPolicy(temperature_of(rule, args.temperature), seed=number % 2**32)
    loop = LoopSettings(retry=0.0, mission=MissionSettings(failed_after=MAX_DECISIONS))
    pilot = Pilot(
        PilotSettings(DecodeSettings(preset, rule, policy), loop, args.order),
        lambda _, on_receive: robot.client.connect(on_receive),
        clock=lambda: 0.0,  # it ends by its decisions
    )
    pilot.use(robot.runner)
    outcomes: list[Outcome] = []
    with Episode(make_room(number), args.renderer, base=args.base) as episode:
        pilot.hear(Instruction(episode.room.instruction))
        while pilot.instruction and len(outcomes) < MAX_DECISIONS:
            pilot.hear(Frame(episode.frame()))
            decide = pilot.take()
            assert decide is not None, "a decision is due on each frame"
            decided = pilot.make(decide)
            if decided.outcome is None or decided.ended.problem:
                raise UserError(f"{preset.name} in room {number}: {decided.ended.problem}")
            outcomes.append(decided.outcome)
            if decided.action is not None:  # else no motion; the next frame may give one
                episode.perform(decided.action)
        end = episode.outcome()
    return RoomRun(number, engine, preset.name, rule, end, tuple(outcomes))
