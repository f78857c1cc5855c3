"""``bench pipelines``: each preset under the published regimes, in virtual or in real time.

Prints tokens per second and speed-up over the target alone, beside the papers' formulas and
results. Robot, cloud and codec are the real ones; models are scripted: they cost what a regime says
and agree as often. With ``--regime embedded`` the models are the embedded pair.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ....decoding.policy import GREEDY, SamplingPolicy, seeded_rule
from ....decoding.preset import Preset
from ....errors import UserError
from ....presets import load_preset
from ...harness.regimes import CUSTOM, Regime
from ..command import Row
from ..options import (
    HARNESSES,
    add_harness_arguments,
    check_counts,
    profile_of,
    regimes_of,
)
from .measured import MeasuredAnswers
from .published import formula_speedup, layer_split_speedup, published_speedup

if TYPE_CHECKING:
    from .report.write import ReportFolder

EMBEDDED = "embedded"  # in place of a regime's name
PRESETS = "cloud_ar,dsd,fsd,picospec,specedge,auto"
SIZES = {"virtual": (1_000, 3), "grpc": (150, 1)}  # tokens of an answer, answers
SWEEP = (0.0, 20.0, 50.0, 100.0, 200.0, 400.0)  # ms; a report's round-trip times
# The fields that a terminal shows, with their headings; --json has all.
COLUMNS = {
    "regime": "regime",
    "preset": "preset",
    "rtt_ms": "rtt ms",
    "tokens_per_s": "tokens/s",
    "speedup": "speedup",
    "formula_speedup": "formula",
    "published": "published",
    "cache_miss": "miss",
    "first_choice": "1st choice",
    "second_choice": "2nd choice",
    "passed": "equal",
    "real_over_virtual": "real/virtual",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument(
        "--regime",
        help="names with commas, custom (custom if its costs are given, else all), or embedded: "
        "not scripted, but the embedded pair's own passes; with --harness grpc and --rtt",
    )
    parser.add_argument("--presets", default=PRESETS, help="(%(default)s)")
    parser.add_argument("--rtt", type=float, nargs="*", default=[], help="ms, in place of its own")
    parser.add_argument("--tokens", type=int, help="of an answer (1000; over gRPC 150)")
    parser.add_argument("--answers", type=int, help="of each preset (3; over gRPC 1; embedded 10)")
    parser.add_argument("--temperature", type=float, default=0.0, help="above 0: rule coupled")
    parser.add_argument("--out", type=Path, help="a folder for plots and a report of HTML")
    add_harness_arguments(parser)


def run(args: argparse.Namespace) -> list[Row]:
    """A row a regime, preset and round-trip time."""
    presets = [load_preset(name) for name in args.presets.split(",")]
    if unverified := [preset.name for preset in presets if not preset.verified]:
        raise UserError(f"{', '.join(unverified)} asks no cloud; leave it out of --presets")
    if args.regime and EMBEDDED in args.regime.split(","):
        from .embedded import embedded_rows  # torch, which scripted models do without

        return embedded_rows(args, presets)
    tokens, answers = SIZES[args.harness]
    args.tokens = tokens if args.tokens is None else args.tokens
    args.answers = answers if args.answers is None else args.answers
    check_counts(args, "tokens", "answers")
    report = _report(args, presets)
    rows = [
        row
        for regimes in zip(*(regimes_of(args, rtt) for rtt in args.rtt or [None]), strict=True)
        for regime in regimes
        for row in _rows(regime, presets, args)
    ]
    if report is not None:
        print(f"report: {report.write(rows, [] if args.rtt else _sweep(presets, args))}")
    return rows


def _report(args: argparse.Namespace, presets: Sequence[Preset]) -> ReportFolder | None:
    """The report to write, once its folder is known to be writable; raises UserError."""
    if args.out is None:
        return None
    try:
        from .report.write import ReportFolder
    except ImportError as error:
        raise UserError(
            f"--out draws with {error.name}; pip install 'edge-cloud-spec[sim]'"
        ) from None
    regimes = regimes_of(args, args.rtt[0] if args.rtt else None)
    if regimes[0].name != CUSTOM:
        regimes = regimes_of(args, None)  # with their published results
    links = {regime.name: profile_of(args, regime) for regime in regimes}
    return ReportFolder(args.out, regimes, presets, links, args.tokens, args.seed)


def _sweep(presets: Sequence[Preset], args: argparse.Namespace) -> list[Row]:
    """Rows over the round-trip time, from one answer each, in virtual time."""
    once = argparse.Namespace(**{**vars(args), "answers": 1, "harness": "virtual"})
    return [
        row
        for rtt in SWEEP
        for regime in regimes_of(args, rtt)
        for row in _rows(regime, presets, once)[:-1]
    ]


def _rows(regime: Regime, presets: Sequence[Preset], args: argparse.Namespace) -> list[Row]:
    rows = []
    for preset in presets:
        rows.append(_row(regime, preset, args))
        print(_progress(rows[-1]), file=sys.stderr)
    speedup = layer_split_speedup(regime)
    split = {
        "regime": regime.name,
        "preset": "layer_split",
        "rtt_ms": regime.rtt_ms,
        "harness": "formula",
        "tokens_per_s": speedup / regime.ar_ms * 1e3,
        "speedup": speedup,
    }
    return [*rows, split]


def measure(
    harness_name: str, regime: Regime, preset: Preset, args: argparse.Namespace
) -> MeasuredAnswers:
    """One answer after another; the robot keeps its measurements from one to the next."""
    answers = []
    drafts = preset.drafter == "cloud"
    make, profile = HARNESSES[harness_name], profile_of(args, regime)
    with closing(make(regime, profile, args.seed, cloud_drafts=drafts)) as harness:
        for seed in range(args.seed, args.seed + args.answers):
            policy = SamplingPolicy(args.temperature, seed=seed) if args.temperature else GREEDY
            answers.append(harness.robot.decode(preset, args.tokens, seed, policy))
        seconds = sum(answer.outcome.seconds for answer in answers)
        return MeasuredAnswers(
            [answer.outcome for answer in answers],
            sum(answer.equal for answer in answers),
            1 - harness.robot.busy.total / seconds,
            1 - harness.cloud_busy.total / seconds,
        )


def _row(regime: Regime, preset: Preset, args: argparse.Namespace) -> Row:
    done = measure(args.harness, regime, preset, args)
    formula, published = (
        formula_speedup(regime, preset.name),
        published_speedup(regime, preset.name),
    )
    row: Row = {
        "regime": regime.name,
        "preset": preset.name,
        "rule": seeded_rule(args.temperature),
        "rtt_ms": regime.rtt_ms,
        "harness": args.harness,
        **done.row(),
        "speedup": done.tokens_per_s * regime.ar_ms / 1e3,
        "formula_speedup": formula,
        "published": published,
        "published_over_formula": published / formula if published and formula else None,
    }
    if args.harness != "virtual":
        virtual = measure("virtual", regime, preset, args).tokens_per_s
        row["virtual_tokens_per_s"] = virtual
        row["real_over_virtual"] = done.tokens_per_s / virtual
    return row


def _progress(row: Row) -> str:
    text = f"{row['regime']} {row['preset']} at {row['rtt_ms']:g} ms: {row['speedup']:.2f}"
    if "real_over_virtual" in row:
        text += f", {row['real_over_virtual']:.3f} of the speed in virtual time"
    return text
