"""``bench rivals``: ``auto`` beside the best that the same cloud does without it, by target and
round trip: tokens per second of ``bench pipelines``, mission time of ``bench mission``, over seeds.

The cloud speculates by a head of its target where the cost profile has one, else by a draft model
of its own; ``cloud_ar`` alone does not use them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from copy import copy
from statistics import mean

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.presets import load_preset

from . import pipelines
from .command import Options, Row
from .mission import suite as mission
from .options import cost_profiles_of, side_by_side

FROM_CLOUD = ("cloud_ar", "cloud_mtp", "cloud_sd")  # no draft is a robot's
SPREAD = 10  # between two seeds, each of which is that of the first of several answers
PROFILES = "today-7b,today-27b-mtp,today-32b,today-72b,today-72b-eagle"

COLUMNS = {
    "cost_profile": "cost_profile",
    "rtt_ms": "rtt ms",
    **{name: f"{name} tokens/s" for name in FROM_CLOUD},
    "paper": "best paper's",
    "paper_tokens_per_s": "tokens/s",
    "auto": "auto tokens/s",
    "auto_over_best": "of best",
    **{f"{name}_mission_s": f"{name} mission s" for name in (*FROM_CLOUD, "auto")},
    "auto_mission_over_best": "of best",
}

OPTIONS: Options = {
    "--tokens": pipelines.OPTIONS["--tokens"],
    "--answers": {"type": int, "default": 3, "help": "of each preset and run (%(default)s)"},
    "--cost-profile": {"default": PROFILES, "help": "(%(default)s)"},
    "--presets": {
        "default": ",".join((*FROM_CLOUD, "dsd", "picospec", "specedge", "auto")),
        "help": "(%(default)s)",
    },
    "--rtt": pipelines.OPTIONS["--rtt"]
    | {"default": [20.0, 40.0, 80.0, 200.0], "help": "ms (20 40 80 200); none: the profile's own"},
    "--head": pipelines.OPTIONS["--head"],
    "--seeds": {"type": int, "default": 3, "help": "runs, each of other data (%(default)s)"},
    "--scenes": {"type": int, "default": 0, "help": "rooms of each run; 0: no missions"},
    "--processes": mission.OPTIONS["--processes"],
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per cost profile and round trip."""
    presets = args.presets.split(",")
    if not {"auto", "cloud_ar"} <= {*presets} or args.seeds < 1 or args.scenes < 0:
        raise UserError(
            "--presets needs auto and cloud_ar beside others, --seeds 1 or more, --scenes 0 or more"
        )
    for name in {*presets} - {*FROM_CLOUD}:
        load_preset(name)
    seeds = [args.seed + SPREAD * number for number in range(args.seeds)]
    return [
        _row(args, profile.name, rtt, seeds)
        for profile in cost_profiles_of(_with(args, pipelines.OPTIONS), None)
        for rtt in args.rtt or [profile.rtt_ms]
    ]


def _with(args: argparse.Namespace, options: Options, **given: object) -> argparse.Namespace:
    """These arguments for another suite, whose other options have their defaults."""
    usual = {flag[2:].replace("-", "_"): each.get("default") for flag, each in options.items()}
    return argparse.Namespace(**(usual | vars(copy(args)) | given))


def _row(args: argparse.Namespace, name: str, rtt: float, seeds: Sequence[int]) -> Row:
    jobs = [_with(args, pipelines.OPTIONS, seed=s, cost_profile=name, rtt=[rtt]) for s in seeds]
    with side_by_side(min(args.processes, len(jobs))) as mapped:
        runs = list(mapped(pipelines.run, jobs))
    speeds = {
        preset: [row["tokens_per_s"] for rows in runs for row in rows if row["preset"] == preset]
        for preset in (row["preset"] for row in runs[0])
    }
    fast = {preset: mean(each) for preset, each in speeds.items()}
    papers = [preset for preset in fast if preset not in (*FROM_CLOUD, "auto")]
    paper = max(papers, key=fast.__getitem__, default="")
    best = max(fast[preset] for preset in fast if preset != "auto")
    row: Row = {
        "cost_profile": name,
        "rtt_ms": rtt,
        "seeds": len(seeds),
        **fast,
        "paper": paper,
        "paper_tokens_per_s": fast.get(paper),
        "auto_over_best": fast["auto"] / best,
        "auto_over_best_by_seed": [
            auto / max(speeds[preset][place] for preset in fast if preset != "auto")
            for place, auto in enumerate(speeds["auto"])
        ],
        "passed": all(each["equal"] == args.answers for rows in runs for each in rows),
    }
    return row | (_missions(args, name, rtt, seeds, papers) if args.scenes else {})


def _missions(
    args: argparse.Namespace, name: str, rtt: float, seeds: Sequence[int], papers: Sequence[str]
) -> Row:
    """The mean mission times of the presets that drive on, s, and that of ``auto`` over the best;
    a paper's preset never was that where its tokens were not."""
    presets = ",".join(each for each in args.presets.split(",") if each not in papers)
    given = {"cost_profile": name, "rtt": [rtt], "presets": presets, "shift": args.scenes}
    runs = [mission.run(_with(args, mission.OPTIONS, seed=seed, **given)) for seed in seeds]
    rows = [row for each in runs for row in each]
    times = {
        preset: [row["mission_s_mean"] for row in rows if row["preset"] == preset]
        for preset in dict.fromkeys(row["preset"] for row in rows)
    }
    best = min((mean(times[preset]), preset) for preset in times if preset != "auto")[1]
    return {
        **{f"{preset}_mission_s": mean(each) for preset, each in times.items()},
        "rooms": args.scenes * len(seeds),
        "auto_mission_over_best": mean(times["auto"]) / mean(times[best]),
        "auto_mission_over_best_by_seed": [
            auto / other for auto, other in zip(times["auto"], times[best], strict=True)
        ],
        "success": min(row["success"] for row in rows),
        "not_own": sum(row["not_own"] for row in rows),
    }
