"""``bench frames``: what a decision costs with the earlier frames of its mission in the prompt.

The pair of flats decides over gRPC, frame after frame. Counted are the tokens that each model has
to compute, without those that it finds in its kept prefixes, and the bytes that the robot sends.
A peer that keeps nothing reads the whole prompt.
Times of larger models are computed: a profile's time for a prompt of one frame, by the tokens read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...cloud.model_thread.sessions import WorkerLimits
from ...cloud.model_thread.worker import Worker
from ...edge.runner import DecodeSettings
from ...errors import UserError
from ...history import NO_HISTORY, HistorySpec
from ...models import FLATS
from ...models.load import load
from ...models.vlm import Vlm
from ...pilot.pilot import MissionMemory
from ...presets import load_preset
from ...share import rules_text
from ..harness.cost_profiles import load_cost_profile
from ..harness.grpc_robot import GrpcRobot
from ..harness.server import InProcessServer
from .command import Options, Row
from .options import check_counts
from .requests import sample_requests

MAX_TOKENS = 48
PROFILES = ("today-7b", "today-32b", "today-72b")

OPTIONS: Options = {
    "--missions": {"type": int, "default": 3, "help": "of each kind (%(default)s)"},
    "--decisions": {"type": int, "default": 27, "help": "of each mission (%(default)s)"},
    "--frames": {"type": int, "default": 8, "help": "earlier ones in a prompt (%(default)s)"},
    "--preset": {"default": "dsd"},
    "--pair": {"type": Path, "default": FLATS, "help": "folder of target and drafter"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row for each kind of history. UserError."""
    check_counts(args, "missions", "decisions", "frames")
    try:
        kinds = {
            "one frame": NO_HISTORY,
            "conversation": HistorySpec(args.frames),
        }
    except ValueError as error:
        raise UserError(f"--frames: {error}") from None
    rows = [{"history": name, **_row(args, history)} for name, history in kinds.items()]
    one = rows[0]
    for row in rows:
        share = row["cloud_tokens"] / one["cloud_tokens"]
        row |= {"tokens_ratio": share, "bytes_ratio": row["up_bytes"] / one["up_bytes"]}
        row["read_anew_ratio"] = row["prompt_tokens"] / one["cloud_tokens"]
        for name in PROFILES:
            row[f"prompt_ms_{name}"] = load_cost_profile(name).prefill_ms * share
    return rows


def _row(args: argparse.Namespace, history: HistorySpec) -> Row:
    target, drafter = (load(str(args.pair / name), threads=1) for name in ("target", "drafter"))
    spec = replace(target.spec(rules_text(), MAX_TOKENS), history=history)
    worker = Worker(target, spec, limits=WorkerLimits(lookup_suffixes=0))
    with (
        InProcessServer(worker) as cloud,
        GrpcRobot(cloud.address, drafter, spec) as robot,
    ):
        robot.runner.remember(spec.to_bytes())
        figures = np.array(list(_decisions(args, target, drafter, robot, history)), float)
    names = ("prompt_tokens", "cloud_tokens", "robot_tokens", "up_bytes")
    means = dict(zip(names, figures.mean(axis=0).tolist(), strict=True))
    return {"frames": history.frames, "decisions": len(figures), **means}


def _decisions(
    args: argparse.Namespace, target: Vlm, drafter: Vlm, robot: GrpcRobot, history: HistorySpec
) -> Iterator[tuple[int, int, int, int]]:
    """Of each decision: tokens of its prompt, those that cloud and robot read, and bytes sent."""
    settings = DecodeSettings(load_preset(args.preset))
    for number in range(args.missions):
        requests = sample_requests(args.seed + number, args.decisions)
        memory, mission = MissionMemory(), (str(number), history)
        for each in requests:
            turns = memory.turns(mission)
            request = replace(requests[0], jpeg=each.jpeg, history=turns)
            before = [model.memory.prefix_rows for model in (target, drafter)]
            outcome = robot.decode(request, settings)
            if not outcome.completed:
                raise UserError(f"a decision has failed: {outcome.text}")
            rows = len(target.prompt(request, robot.runner.spec_of(b"")).input_ids)
            found = [
                model.memory.prefix_rows - known
                for model, known in zip((target, drafter), before, strict=True)
            ]
            drafter_rows = rows - found[1] if outcome.stats.drafted else 0
            yield rows, rows - found[0], drafter_rows, outcome.stats.up_bytes
            words = target.tokenizer.decode(outcome.tokens, skip_special_tokens=True)
            memory.add(mission, each.jpeg, words)
