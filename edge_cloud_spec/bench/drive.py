"""``bench drive``: the same simulated rooms under every preset.

The simulator waits for each decision, so success depends on what is decided and not on the machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..cloud.process import VerifierProcess
from ..decoding.policy import SamplingPolicy
from ..decoding.preset import load_preset
from ..edge.link import Link, LinkSettings
from ..edge.runner import DecodeRunner, DecodeSettings
from ..errors import UserError
from ..models import EMBEDDED
from ..models.prompt import Request
from ..models.text import TextStream
from ..nav.action import Action
from ..nav.answer import NotAnAction, read_answer
from ..share import rules_text
from .command import Row

MAX_DECISIONS = 40
RUNS = (
    ("cloud_ar", "greedy"),
    ("dsd", "greedy"),
    ("edge_only", "greedy"),
    ("cloud_sd", "greedy"),
    ("cloud_ar", "coupled"),
    ("dsd", "coupled"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--scenes", type=int, default=100, help="rooms (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8, help="of the coupled rule")
    parser.add_argument("--order", default="action first", help="or 'reason first'")
    parser.add_argument("--renderer", default="auto", help="auto, egl or rays")
    parser.add_argument("--processes", type=int, default=2, help="rooms driven side by side")
    parser.add_argument("--target", default=str(EMBEDDED / "target"))
    parser.add_argument("--drafter", default=str(EMBEDDED / "drafter"))


@dataclass(frozen=True)
class Drive:
    """One room under one preset and rule."""

    room: int
    preset: str
    rule: str
    success: bool
    stopped_at: str
    steps: int
    tokens: int
    seconds: float  # of decoding
    accepted: int
    tested: int
    answers: tuple[tuple[int, ...], ...]


def run(args: argparse.Namespace) -> list[Row]:
    """A row a preset and rule."""
    if args.scenes < 1 or args.processes < 1:
        raise UserError("--scenes and --processes must be 1 or more")
    rooms = [args.seed * 1_000_003 + i for i in range(args.scenes)]
    options = ["--target", args.target, "--drafter", args.drafter, "--threads", "1"]
    drives: list[Drive] = []
    with VerifierProcess([*options, "--max-tokens", "48"]) as cloud:
        args.cloud = cloud.address
        workers = multiprocessing.get_context("spawn").Pool(args.processes)
        with workers:
            jobs = [(args, room) for room in rooms]
            for done, result in enumerate(workers.imap_unordered(_drive_room, jobs), start=1):
                drives += result
                reached = sum(d.success for d in result)
                print(f"room {done}/{len(rooms)}: {reached} of {len(result)} runs", flush=True)
    return [_row(drives, preset, rule) for preset, rule in RUNS]


def _row(drives: Sequence[Drive], preset: str, rule: str) -> Row:
    mine = [d for d in drives if (d.preset, d.rule) == (preset, rule)]
    alone = {d.room: d.answers for d in drives if (d.preset, d.rule) == ("cloud_ar", rule)}
    tested = sum(d.tested for d in mine)
    return {
        "preset": preset,
        "rule": rule,
        "scenes": len(mine),
        "success": sum(d.success for d in mine) / len(mine),
        "steps": sum(d.steps for d in mine),
        "tokens": sum(d.tokens for d in mine),
        "seconds": round(sum(d.seconds for d in mine), 2),
        "same_decisions_as_cloud_ar": sum(d.answers == alone[d.room] for d in mine) / len(mine),
        "acceptance": sum(d.accepted for d in mine) / tested if tested else 0.0,
    }


_runner: tuple[DecodeRunner, Link] | None = None  # of this worker process, made once


def _drive_room(job: tuple[argparse.Namespace, int]) -> list[Drive]:
    args, room = job
    global _runner
    if _runner is None:
        from ..models.load import load

        model = load(args.drafter, threads=1)
        runner = DecodeRunner(model, model.spec(rules_text(), 48))
        _runner = runner, Link(LinkSettings(args.cloud))
    return [_drive(args, room, preset, rule, *_runner) for preset, rule in RUNS]


def _drive(
    args: argparse.Namespace, number: int, preset: str, rule: str, runner: DecodeRunner, link: Link
) -> Drive:
    from ..sim.episode import Episode
    from ..sim.room import make_room

    temperature = 0.0 if rule == "greedy" else args.temperature
    settings = DecodeSettings(load_preset(preset), rule, SamplingPolicy(temperature))
    answers: list[tuple[int, ...]] = []
    seconds, accepted, tested = 0.0, 0, 0
    with Episode(make_room(number), args.renderer) as episode:
        while len(answers) < MAX_DECISIONS:
            seed = (args.seed << 40) ^ (number << 8) ^ len(answers)
            asked = replace(settings, policy=replace(settings.policy, seed=seed % 2**63))
            request = Request(episode.instruction, episode.frame(), args.order)
            outcome = runner.run(request, asked, secrets.randbits(64), link.connect)
            if not outcome.completed:
                raise UserError(f"{preset} in room {number}: {outcome.text or outcome.reason}")
            answers.append(outcome.tokens)
            seconds += outcome.seconds
            accepted += outcome.ledger.accepted
            tested += outcome.ledger.tested
            action = _action(TextStream(runner.draft_model.tokenizer).add(outcome.tokens))
            if action is None:
                continue  # nothing moves on what is no action; the next frame may say more
            episode.perform(action)
            if action.verb == "stop":
                break
        result = episode.outcome()
    return Drive(
        number,
        preset,
        rule,
        result.success,
        result.stopped_at,
        len(answers),
        sum(map(len, answers)),
        seconds,
        accepted,
        tested,
        tuple(answers),
    )


def _action(answer: str) -> Action | None:
    try:
        return read_answer(answer).action
    except NotAnAction:
        return None
