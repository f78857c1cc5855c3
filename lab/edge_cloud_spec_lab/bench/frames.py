"""``bench frames``: what a decision costs with the earlier frames of its mission in the prompt.

The pair of flats decides over gRPC, frame after frame. Counted are the tokens that each model has
to compute, without those that it finds in its kept prefixes, and the bytes that the robot sends.
A peer that keeps nothing reads the whole prompt.
Times of larger models are computed: a profile's time for a prompt of one frame, by the tokens read.
"""

from __future__ import annotations

import argparse

import numpy as np

from edge_cloud_spec.edge.decode_options import DecodeOptions
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.models import FLATS
from edge_cloud_spec.models.load import load
from edge_cloud_spec.nav.history import NO_HISTORY, HistorySpec
from edge_cloud_spec.options import arguments
from edge_cloud_spec.share import path_of

from ..harness.cost_profiles import load_cost_profile
from ..harness.grpc_robot import remembering_robot
from ..tokens import ANSWER_TOKENS
from .command import Options, Row
from .options import check_counts
from .requests import sample_questions

FRAMES_COST_PROFILES = ("today-7b", "today-32b", "today-72b")

OPTIONS: Options = {
    "--missions": {"type": int, "default": 3, "help": "of each kind (%(default)s)"},
    "--decisions": {"type": int, "default": 27, "help": "of each mission (%(default)s)"},
    "--frames": {"type": int, "default": 8, "help": "earlier ones in a prompt (%(default)s)"},
    **arguments(DecodeOptions(preset="dsd"), "preset"),
    "--pair": {"type": path_of, "default": FLATS, "help": "folder of target and drafter"},
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
        for name in FRAMES_COST_PROFILES:
            row[f"prompt_ms_{name}"] = load_cost_profile(name).prefill_ms * share
    return rows


def _row(args: argparse.Namespace, history: HistorySpec) -> Row:
    target, drafter = (load(str(args.pair / name), threads=1) for name in ("target", "drafter"))
    spec = target.spec(ANSWER_TOKENS)
    figures = []
    with remembering_robot(target, drafter, spec, args.preset, history) as decide:
        for number in range(args.missions):
            questions = sample_questions(args.seed + number, args.decisions)
            asked = questions[0]
            for each in questions:
                before = [model.memory.prefix_rows for model in (target, drafter)]
                request, outcome, _ = decide(str(number), asked.instruction, each.jpeg, asked.order)
                rows = len(target.prompt(request, spec).input_ids)
                cloud, robot = (
                    rows - (model.memory.prefix_rows - known)
                    for model, known in zip((target, drafter), before, strict=True)
                )
                stats = outcome.stats
                figures.append((rows, cloud, robot if stats.drafted else 0, stats.up_bytes))
    names = ("prompt_tokens", "cloud_tokens", "robot_tokens", "up_bytes")
    means = dict(zip(names, np.mean(figures, axis=0).tolist(), strict=True))
    return {"frames": history.frames, "decisions": len(figures), **means}
