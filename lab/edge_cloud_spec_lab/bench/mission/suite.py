"""``bench mission``: how long missions take under published costs and links, in virtual time.

The embedded pair decodes, a cost profile gives the times of passes, prefills and the link, and the
simulated robot moves meanwhile. One clock drives them all, so a loaded machine changes only the
duration of the benchmark.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any

from edge_cloud_spec.errors import UserError, check_writable, write_json
from edge_cloud_spec.nav.answer import GRAMMARS
from edge_cloud_spec.nav.settings import DRIVE_CHOICES
from edge_cloud_spec.pilot.decision_loop import EXPLAIN
from edge_cloud_spec.share import path_of

from ...harness.cost_profiles import CostProfile
from ...harness.emulated_link import LinkProfile
from ...harness.mission.embedded_pair import loaded_pair
from ...harness.mission.virtual_robot import MissionRecord, SeenRoom, Variant, VirtualRobot
from ...harness.scripted_robot import CLOUD_MTP
from ..command import Options, Row
from ..options import (
    COST_OPTIONS,
    check_counts,
    cost_profiles_of,
    finite,
    profile_of,
    side_by_side,
    take_link,
)
from .rows import rows_of


@dataclass(frozen=True)
class Shift:
    """The rooms that one robot of each variant visits in turn: its measurements in one help it in
    the next. Before the first, robot and cloud know nothing."""

    rooms: tuple[int, ...]
    variants: tuple[Variant, ...]
    cost_profile: CostProfile
    renderer: str


Done = dict[Variant, list[MissionRecord]]


def work(shift: Shift) -> Done:
    """Run every room under every variant, with shared models and cached logits."""
    pair = loaded_pair()
    variants = shift.variants
    robots = {each: VirtualRobot(pair, each, shift.cost_profile, variants) for each in variants}
    results: Done = {variant: [] for variant in shift.variants}
    for number in shift.rooms:
        with closing(SeenRoom(number, shift.renderer)) as seen:
            for variant, robot in robots.items():
                record = robot.carry_out(seen)
                if number != shift.rooms[-1]:
                    record.speeds.clear()
                results[variant].append(record)
        pair.forget()
    return results


COLUMNS = {
    "preset": "preset",
    "link": "link",
    "rtt_ms": "rtt ms",
    "outage": "outage",
    "explain": "explain",
    "drive": "drive",
    "lookup": "lookup",
    "grammar": "grammar",
    "look": "look",
    "base": "base",
    "way": "way",
    "seen": "seen",
    "scan": "scan",
    "scenes": "rooms",
    "success": "success",
    "mission_s_p50": "mission s",
    "mission_s_p90": "p90",
    "mission_s_mean": "mean",
    "mission_over_cloud_ar": "of cloud_ar",
    "mission_p50_over_cloud_ar": "p50",
    "mission_over_driving_cloud_ar": "of driving",
    "mission_p50_over_driving_cloud_ar": "p50",
    "mission_over_driving_cloud_mtp": "of driving mtp",
    "mission_se_over_driving_cloud_mtp": "±",
    "net_lost_rooms": "lost",
    "first_motion_s_p50": "first motion",
    "first_motion_over_cloud_ar": "of cloud_ar",
    "standing": "standing",
    "standing_after_first_motion": "later",
    "waiting_s_mean": "waiting s",
    "pauses": "pauses",
    "longest_standing_s": "longest s",
    "decisions": "decisions",
    "first_word_s_mean": "first word s",
    "action_s_mean": "action s",
    "answer_s_mean": "answer s",
    "target_passes": "passes",
    "passes_over_cloud_ar": "of cloud_ar",
    "tokens_per_pass": "tokens/pass",
    "up_bytes": "up",
    "down_bytes": "down",
    "gpu_s": "GPU s",
    "usd": "USD",
    "joules": "J",
    "collisions": "collisions",
    "not_arrived": "not arrived",
    "not_own": "not own",
    "frame_age_s_p99": "frame age s",
    "way_since_frame_m_p99": "way since m",
    "same_decisions_as_cloud_ar": "same",
}


def _times(text: str) -> list[float]:
    try:
        return [finite(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError("give ms with commas, such as 0,50,200") from None


OPTIONS: Options = {
    "--scenes": {"type": int, "default": 25, "help": "rooms (default %(default)s)"},
    "--cost-profile": {"default": "fsd-go2", "help": "names, or custom (%(default)s)"},
    "--presets": {
        "default": "cloud_ar:explain=full:drive=stop_and_go,cloud_ar:explain=none,auto",
        "help": "each with options of its own, the first as what others are over (%(default)s)",
    },
    "--rtt": {"type": _times, "help": "ms with commas, in place of the cost profile's"},
    "--explain": {"choices": EXPLAIN, "default": Variant.explain, "help": "(%(default)s)"},
    "--drive": {"choices": DRIVE_CHOICES, "default": Variant.drive, "help": "(%(default)s)"},
    "--grammar": {"choices": GRAMMARS, "default": GRAMMARS[0], "help": "(%(default)s)"},
    "--renderer": {"default": "auto", "help": "auto, egl or rays"},
    "--shift": {"type": int, "default": 25, "help": "rooms after which all is forgotten"},
    "--processes": {"type": int, "default": 2, "help": "shifts side by side"},
    "--speeds": {"type": path_of, "help": "write the base's speeds in the last room there"},
    **COST_OPTIONS,
    "--link": COST_OPTIONS["--link"] | {"nargs": "+"},
}


def run(args: argparse.Namespace) -> list[Row]:
    """Run the suite; returns a row per cost profile, link and preset with its options."""
    check_counts(args, "scenes", "shift", "processes")
    take_link(args)
    if args.speeds is not None:
        check_writable(args.speeds)
    cost_profiles = [cost_profile.with_assumed() for cost_profile in cost_profiles_of(args, None)]
    rooms = [args.seed * 1_000_003 + number for number in range(args.scenes)]
    measured = [measure(args, cost_profile, rooms) for cost_profile in cost_profiles]
    if args.speeds is not None:
        write_json(args.speeds, last_speeds(measured[0]))
    return [
        row
        for cost_profile, results in zip(cost_profiles, measured, strict=True)
        for row in rows_of(cost_profile.name, results)
    ]


def last_speeds(results: Done) -> dict[str, Any]:
    """Each variant's speed (m/s) and turning speed (rad/s) over time, in the last of the rooms."""
    speeds: dict[str, Any] = {}
    for variant, records in results.items():
        last = records[-1]
        rows = [(at - last.begun, *each) for at, *each in last.speeds if at <= last.ended]
        columns = ([round(value, 4) for value in column] for column in zip(*rows, strict=True))
        speeds[variant.label] = dict(zip(("s", "m_s", "rad_s"), columns, strict=True))
    return speeds


def measure(args: argparse.Namespace, cost_profile: CostProfile, rooms: Sequence[int]) -> Done:
    """The results of every variant, in the order of the rooms."""
    variants = variants_of(args, cost_profile)
    shifts = [
        Shift(
            tuple(rooms[start : start + args.shift]), tuple(variants), cost_profile, args.renderer
        )
        for start in range(0, len(rooms), args.shift)
    ]
    results: Done = {variant: [] for variant in variants}
    with side_by_side(min(args.processes, len(shifts))) as mapped:
        for number, done in enumerate(mapped(work, shifts), 1):
            for variant, rooms_done in done.items():
                results[variant] += rooms_done
            print(
                f"{cost_profile.name}: shift {number} of {len(shifts)}", file=sys.stderr, flush=True
            )
    return results


VARIED = tuple(f.name for f in fields(Variant) if f.name not in ("preset", "link"))
NUMBERS = ("look",)  # among them


def variants_of(args: argparse.Namespace, cost_profile: CostProfile) -> list[Variant]:
    """The variants that ``--presets`` names, over each round trip or link; raises UserError."""
    usual = {name: getattr(args, name) for name in ("explain", "drive", "grammar")}
    if args.link is not None:
        links = [LinkProfile(trace=trace) for trace in args.link]
    else:
        links = [profile_of(args, rtt / 2) for rtt in args.rtt or [cost_profile.rtt_ms]]
    found = [
        _variant(text, link=link, **usual) for link in links for text in args.presets.split(",")
    ]
    return [each for each in found if cost_profile.head or each.preset != CLOUD_MTP]


def _variant(text: str, **usual: object) -> Variant:
    preset, *options = text.split(":")
    given: dict[str, object] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in VARIED or not value:
            raise UserError(
                f"--presets {text}: {option!r} is no OPTION=VALUE; options are "
                f"{', '.join(VARIED)}, as in {preset}:explain=none:drive=continuous"
            )
        if name in given:
            raise UserError(f"--presets {text}: {name} is given twice")
        given[name] = value
    try:
        given |= {name: float(str(given[name])) for name in NUMBERS if name in given}
        return Variant(preset, **(usual | given))  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"--presets {text}: {error}") from None
