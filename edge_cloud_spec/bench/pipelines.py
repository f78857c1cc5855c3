"""``bench pipelines``: each preset under the published regimes, in virtual time.

Both state machines and the codec run as in earnest; models are scripted: they cost what a regime
says and agree as often.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from ..decoding import cost
from ..decoding.policy import GREEDY, SamplingPolicy
from ..decoding.preset import load_preset
from ..errors import UserError
from .command import Row
from .regimes import Regime, load_regime, regime_names
from .virtual import VirtualDecode

PRESETS = "cloud_ar,dsd,fsd,picospec,specedge,auto"
EDGE_LAYERS = (
    0.1  # share of the target's layers on the robot, in layer_split (PicoSpec 4.2: 3 of 28)
)
EDGE_SLOWER = 4.0  # a layer there takes so many times as long; assumed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The suite's options."""
    parser.add_argument("--regime", default="all", help="names with commas (%(default)s)")
    parser.add_argument("--presets", default=PRESETS, help="(%(default)s)")
    parser.add_argument("--rtt", type=float, nargs="*", default=[], help="ms, in place of its own")
    parser.add_argument("--tokens", type=int, default=1_000, help="of an answer (%(default)s)")
    parser.add_argument("--answers", type=int, default=3, help="of each preset (%(default)s)")
    parser.add_argument("--jitter", type=float, default=0.0, help="ms, of each way")
    parser.add_argument("--runner-up", type=float, help="share, in place of the regime's")
    parser.add_argument("--temperature", type=float, default=0.0, help="above 0: rule coupled")


def run(args: argparse.Namespace) -> list[Row]:
    """A row a regime, preset and round-trip time."""
    if args.tokens < 1 or args.answers < 1 or any(rtt < 0 for rtt in args.rtt):
        raise UserError("--tokens and --answers are at least 1, --rtt is 0 or more")
    names = regime_names() if args.regime == "all" else args.regime.split(",")
    rows = []
    for regime in map(load_regime, names):
        if args.runner_up is not None:
            regime = replace(regime, runner_up=args.runner_up)
        for rtt in args.rtt or [regime.rtt_ms]:
            there = regime.with_rtt(rtt)
            for preset in args.presets.split(","):
                rows.append(_measured(there, preset, args))
                print(_told(rows[-1]), file=sys.stderr)
            rows.append(_layer_split(there))
    return rows


def _measured(regime: Regime, name: str, args: argparse.Namespace) -> Row:
    preset = load_preset(name)
    done = []
    for seed in range(args.seed, args.seed + args.answers):
        policy = SamplingPolicy(args.temperature, seed=seed) if args.temperature else GREEDY
        done.append(VirtualDecode(regime, preset, args.tokens, seed, policy, args.jitter).run())
    rounds = [r for decode in done for r in decode.robot.ledger.rounds]
    seconds = sum(decode.now for decode in done) / 1e3
    tokens = sum(len(decode.emitted) for decode in done)
    speed = tokens / seconds
    return {
        "regime": regime.name,
        "preset": name,
        "rule": "coupled" if args.temperature else "greedy",
        "rtt_ms": regime.rtt_ms,
        "harness": "virtual",
        "tokens_per_s": speed,
        "speedup": speed * regime.ar_ms / 1e3,
        "formula_speedup": formula_speedup(regime, name),
        "published": _published(regime, name),
        "tokens_per_round": tokens / len(rounds),
        "cache_miss": sum(r.waited for r in rounds) / len(rounds),
        "robot_idle": 1 - sum(d.robot_busy.total for d in done) / (1e3 * seconds),
        "cloud_idle": 1 - sum(d.cloud_busy.total for d in done) / (1e3 * seconds),
        "up_bytes_mean": sum(d.up.sent for d in done) / len(rounds),
        "down_bytes_mean": sum(d.down.sent for d in done) / len(rounds),
        "equal": sum(d.emitted == d.own_answer() for d in done),
    }


def formula_speedup(regime: Regime, preset: str) -> float | None:
    """What the paper's own formula gives for these costs, over the target alone."""
    length, draft, verify, rtt = regime.gamma, regime.draft_ms, regime.verify_ms, regime.rtt_ms
    tokens = cost.expected_tokens(regime.alpha, length)
    if preset == "dsd":
        return tokens * regime.ar_ms / cost.stop_and_wait_time(length, draft, rtt, verify)
    if preset == "fsd" and regime.exit_hit:
        miss = 1 - regime.exit_hit
        return tokens * regime.ar_ms / cost.fsd_time(length, draft, rtt, verify, miss)
    if preset == "picospec":
        time = cost.picospec_time(length, draft, rtt, verify, regime.alpha)
        return tokens * regime.ar_ms / time
    return None


def _published(regime: Regime, preset: str) -> float | None:
    said = regime.published
    found = {
        "dsd": said.get("ar_to_sd", said.get("vanilla")),
        "fsd": said.get("ar_to_fsd"),
        "picospec": said.get("picospec"),
    }
    if preset == "fsd" and found["fsd"] is None and "sd_to_fsd" in said:
        return said["ar_to_sd"] * said["sd_to_fsd"]
    return found.get(preset)


def _layer_split(regime: Regime) -> Row:
    """The papers' other baseline, from its cost: some layers on the robot, the rest elsewhere."""
    edge = EDGE_SLOWER * regime.ar_ms
    time = cost.layer_split_time(EDGE_LAYERS, edge, regime.ar_ms, regime.rtt_ms)
    return {
        "regime": regime.name,
        "preset": "layer_split",
        "rtt_ms": regime.rtt_ms,
        "harness": "formula",
        "tokens_per_s": 1e3 / time,
        "speedup": regime.ar_ms / time,
    }


def _told(row: Row) -> str:
    return f"{row['regime']} {row['preset']} at {row['rtt_ms']:g} ms: {row['speedup']:.2f}"
