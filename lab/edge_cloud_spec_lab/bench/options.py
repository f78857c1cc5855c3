"""Options shared by suites: a cost profile, a link, processes."""

from __future__ import annotations

import argparse
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.share import path_of

from ..harness.cost_profiles import (
    COSTS,
    CUSTOM,
    CostProfile,
    Head,
    cost_profile_names,
    custom_cost_profile,
    load_cost_profile,
)
from ..harness.emulated_link import LinkProfile, read_trace
from .command import Options

T = TypeVar("T")
Player = TypeVar("Player", bound=tuple[Any, ...])

BASELINE_PRESET = "cloud_ar"  # the target alone
CHANGES = (*COSTS, "exit_hit", "gamma", "runner_up", "head")


def finite(text: str) -> float:
    """Parse an option's number; raises ArgumentTypeError unless it is finite."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number")
    return number


def counts(text: str) -> list[int]:
    """Parse an option's numbers; raises ArgumentTypeError unless they are whole and at least 1."""
    numbers = text.split(",")
    if not all(number.isdecimal() and int(number) for number in numbers):
        raise argparse.ArgumentTypeError("give whole numbers of 1 or more, such as 1,2,4")
    return [int(number) for number in numbers]


def _outage(text: str) -> tuple[float, float]:
    every, _, lasts = text.partition(",")
    try:
        return finite(every), finite(lasts)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError("give EVERY,FOR in seconds, such as 60,2") from None


def _head(text: str) -> Head:
    try:
        return Head(tuple(finite(part) for part in text.split(",")))
    except (argparse.ArgumentTypeError, UserError) as error:
        raise argparse.ArgumentTypeError(f"{error}; give shares such as 0.75,0.47,0.27") from None


# What is asked for in place of a cost profile's costs, and the link's outages.
COST_OPTIONS: Options = {
    f"--{name.replace('_', '-')}": {
        "type": finite,
        "help": f"{about}, in place of the cost profile's",
    }
    for name, about in {
        "draft_ms": "a pass of the draft model",
        "verify_ms": "a pass of the target over a draft",
        "ar_ms": "a pass of the target alone",
        "alpha": "share of the draft's tokens that are right",
        "exit_hit": "share of the rounds that an early exit predicts",
        "runner_up": "share of the draft's misses where its second choice is right",
    }.items()
} | {
    "--gamma": {"type": int, "help": "tokens of a chain, in place of the cost profile's"},
    "--head": {
        "type": _head,
        "metavar": "SHARES",
        "help": "acceptance by position of a head by which the target speculates (cloud_mtp)",
    },
    "--outage": {
        "type": _outage,
        "metavar": "EVERY,FOR",
        "help": "the link is gone every so many seconds for so many",
    },
    "--link": {
        "type": path_of,
        "metavar": "FILE",
        "help": "a link as it was measured, in rows of seconds, round trip ms and maybe Mbit/s; "
        "empty round trips and gaps are outages",
    },
}


def cost_profiles_of(args: argparse.Namespace, rtt_ms: float | None) -> list[CostProfile]:
    """The cost profiles of ``--cost-profile``, changed by the other options; raises UserError."""
    given: dict[str, Any] = {
        name: getattr(args, name) for name in CHANGES if getattr(args, name) is not None
    }
    chosen = args.cost_profile or (CUSTOM if set(COSTS) & set(given) else "all")
    if chosen == CUSTOM:
        return [custom_cost_profile(rtt_ms, **given)]
    names = cost_profile_names() if chosen == "all" else chosen.split(",")
    found = [load_cost_profile(name) for name in names]
    if given:
        found = [replace(cost_profile, published={}, **given) for cost_profile in found]
    if "head" in given:  # its passes need no exits
        found = [
            replace(cost_profile, without_exits=cost_profile.with_assumed().without_exits)
            for cost_profile in found
        ]
    return found if rtt_ms is None else [cost_profile.with_rtt(rtt_ms) for cost_profile in found]


def take_link(args: argparse.Namespace) -> None:
    """Replace the file of ``--link`` (or each of several) by its trace, and ``--rtt`` by its round
    trip; without ``--link``, set the link's defaults for options not given. Raises UserError."""
    usual = {"jitter": 0.0, "rate": 0.0, "outage": (0.0, 0.0)}
    given = {name: vars(args).get(name) for name in ("rtt", *usual)}
    given = {name: value for name, value in given.items() if value not in (None, [])}
    if args.link is None:
        vars(args).update(usual | given)
    elif given:
        raise UserError(f"--link tells all of the link: leave out --{', --'.join(given)}")
    elif isinstance(args.link, list):
        args.link = [read_trace(path) for path in args.link]
    else:
        args.link = read_trace(args.link)
        args.rtt = args.link.median_rtt_ms


def profile_of(args: argparse.Namespace, one_way_ms: float) -> LinkProfile:
    """The trace of ``--link``, or a link of this delay with the options' jitter, rate and outages;
    raises UserError."""
    if args.link is not None:
        return LinkProfile(trace=args.link)
    return LinkProfile(one_way_ms, args.jitter, args.rate, *args.outage)


def check_counts(args: argparse.Namespace, *names: str) -> None:
    """Raise UserError if one of these options is below 1."""
    for name in names:
        if getattr(args, name) < 1:
            raise UserError(f"--{name} is at least 1")


@contextmanager
def side_by_side(processes: int) -> Iterator[Callable[..., Any]]:
    """A lazy ``map`` over so many processes. One is this process, which keeps what it loads."""
    if processes == 1:
        yield map
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            yield pool.imap


def missions_by_player(
    args: argparse.Namespace, players: Sequence[Player], work: Callable[[Any], T]
) -> Iterator[tuple[Player, list[T]]]:
    """Each player, a tuple, with its results in ``scenes`` scenes, the same for all; ``work`` takes
    a player's values and the scene's seed. UserError: the options count nothing."""
    check_counts(args, "scenes", "processes")
    seeds = [args.seed * 1_000_003 + number for number in range(args.scenes)]
    jobs = [(*player, seed) for player in players for seed in seeds]
    with side_by_side(min(args.processes, len(jobs))) as mapped:
        results = mapped(work, jobs)
        for player in players:
            yield player, list(islice(results, len(seeds)))
