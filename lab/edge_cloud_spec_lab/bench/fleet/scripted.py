"""Scripted robots at a published server's costs, in virtual time: a row per server and fleet
size."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import cache

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.presets import load_preset

from ...harness.cost_profiles import ServerCostProfile, load_server_cost_profile
from ...harness.fleet.load import FleetLoad
from ...harness.fleet.virtual_fleet import run_fleet
from ..command import Row
from .figures import figures, row_of
from .server_only import run_server_only

SCRIPTED_WARM_UP_SHARE = 0.1  # share of the time that is not counted
SERVER_LIMITS = {"batched": WorkerLimits(), "one_at_a_time": WorkerLimits(batch=1)}


def scripted_rows(args: argparse.Namespace) -> list[Row]:
    """Means over the seeds. ``throughput_ratio`` and ``token_ratio``: relative to the server alone
    with half as many robots, which is SpecEdge's comparison (5: two robots per place in the batch);
    ``throughput_ratio_same``: with as many."""
    server = load_server_cost_profile(args.cost_profile)
    preset = with_published_tree(args.preset, server)

    @cache
    def mean(name: str, robots: int) -> Row:
        seeds = range(args.seed, args.seed + args.seeds)
        rows = [_run(args, name, robots, server, preset, seed) for seed in seeds]
        row = row_of(
            "scripted", name, robots, "tree" if name == "server_only" else preset.name, rows
        )
        speed = f"{row['tokens_per_s']:.1f} tokens/s, {row['token_ms_mean']:.1f} ms a token"
        print(f"{name}, {robots} robots: {speed}", file=sys.stderr)
        return row

    rows = []
    for robots in args.robots:
        half, same = mean("server_only", max(1, robots // 2)), mean("server_only", robots)
        for name in args.server:
            row = dict(mean(name, robots))
            row["throughput_ratio"] = row["tokens_per_s"] / half["tokens_per_s"]
            row["token_ratio"] = row["token_ms_mean"] / half["token_ms_mean"]
            row["throughput_ratio_same"] = row["tokens_per_s"] / same["tokens_per_s"]
            rows.append(row)
    return rows


def with_published_tree(name: str, server: ServerCostProfile) -> Preset:
    """The preset of this name, with best-first trees of the published size."""
    preset = load_preset(name)
    if preset.best_first is None:
        return preset
    depth = max(preset.best_first.depth, server.server_only_depth)
    tree = replace(preset.best_first, nodes=server.nodes, width=server.width, depth=depth)
    return replace(preset, best_first=tree)


def _run(
    args: argparse.Namespace,
    name: str,
    robots: int,
    server: ServerCostProfile,
    preset: Preset,
    seed: int,
) -> Row:
    load = FleetLoad(args.tokens, args.think, args.seconds, args.jitter, seed)
    if name == "server_only":
        activities = run_server_only(server, robots, load)
    else:
        activities = run_fleet(server.cost_profile, robots, preset, load, SERVER_LIMITS[name])
    return figures(activities, SCRIPTED_WARM_UP_SHARE * args.seconds, args.seconds)
