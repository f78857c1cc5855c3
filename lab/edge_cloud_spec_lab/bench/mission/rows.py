"""The rows of ``bench mission``: figures per variant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import mean, stdev

import numpy as np

from edge_cloud_spec.pilot.decision_loop import EXPLAIN_FULL, EXPLAIN_NONE

from ...harness.cost_profiles import prices
from ...harness.emulated_link import LinkProfile
from ...harness.mission.virtual_robot import DecisionRecord, MissionRecord, Variant
from ...harness.scripted_robot import CLOUD_MTP
from ..command import Row
from ..options import BASELINE_PRESET

Results = Mapping[Variant, Sequence[MissionRecord]]


def baseline_of(variant: Variant, variants: Iterable[Variant]) -> Variant | None:
    """The target alone over the same link: stop-and-go with whole answers, or the most similar
    variant."""
    alone = [v for v in variants if v.preset == BASELINE_PRESET and v.link == variant.link]

    def likeness(other: Variant) -> tuple[bool, ...]:
        same = replace(other, preset=variant.preset, lookup=variant.lookup) == variant
        return other.stops, other.explain == EXPLAIN_FULL, same

    return max(alone, key=likeness, default=None)


def driving_baseline_of(
    variant: Variant, variants: Iterable[Variant], preset: str = BASELINE_PRESET
) -> Variant | None:
    """The target alone (or ``cloud_mtp``) over the same link that drives on: one that explains
    nothing, else one that explains as long as the variant does."""
    alone = [v for v in variants if v.preset == preset and v.link == variant.link and not v.stops]
    kept = [v for v in alone if v.explain in (EXPLAIN_NONE, variant.explain)]
    return min(kept, key=lambda v: v.explain != EXPLAIN_NONE, default=None)


def rows_of(cost_profile: str, results: Results) -> list[Row]:
    """A row per variant."""
    return [_row(cost_profile, variant, results) for variant in results]


def _row(cost_profile: str, variant: Variant, results: Results) -> Row:
    rooms = results[variant]
    decisions = [decision for room in rooms for decision in room.decisions]
    tokens = sum(len(decision.tokens) for decision in decisions)
    passes = sum(room.target_passes for room in rooms)
    seconds = [room.seconds for room in rooms]
    gpu_s, drafter_s, up_bytes, down_bytes = (
        mean(getattr(room, name) for room in rooms)
        for name in ("gpu_s", "drafter_s", "up_bytes", "down_bytes")
    )
    not_own = sum(decision.own is False for decision in decisions)
    row = {
        "preset": variant.preset,
        "cost_profile": cost_profile,
        **_link(variant.link),
        "explain": variant.explain,
        "drive": variant.drive,
        "lookup": variant.loaded_preset.lookup,
        "grammar": variant.grammar,
        "look": variant.look,
        "rule": variant.rule,
        "base": variant.base,
        "way": variant.way,
        "seen": variant.seen,
        "scan": variant.scan,
        "scenes": len(rooms),
        "success": mean(room.success for room in rooms),
        "mission_s_p50": _percentile(seconds, 50),
        "mission_s_p90": _percentile(seconds, 90),
        "mission_s_mean": mean(seconds),
        "first_motion_s_p50": first_motion(rooms),
        "standing_after_first_motion": standing_after_first_motion(rooms),
        "standing": 1 - sum(room.moving_s for room in rooms) / sum(seconds),
        "waiting_s_mean": mean(room.seconds - room.moving_s for room in rooms),
        "pauses": mean(max(0, len(room.moves) - 1) for room in rooms),
        "longest_standing_s": max(room.longest_standing_s for room in rooms),
        "decisions": len(decisions) / len(rooms),
        "target_passes": passes / len(rooms),
        "not_own": not_own,
        "tokens_per_pass": tokens / passes if passes else None,
        "up_bytes": up_bytes,
        "down_bytes": down_bytes,
        "gpu_s": gpu_s,
        "drafter_s": drafter_s,
        "usd": prices().usd(gpu_s, up_bytes + down_bytes),
        "joules": prices().joules(gpu_s, drafter_s),
        "collisions": mean(room.contacts for room in rooms),
        "not_arrived": mean(room.not_arrived for room in rooms),
        "first_word_s_mean": mean(d.first_word - d.begun for d in decisions),
        "action_s_mean": mean((d.settled or d.ended) - d.begun for d in decisions),
        "answer_s_mean": mean(d.ended - d.begun for d in decisions),
        **_spreads([d.since for d in decisions if d.since is not None]),
        "baseline": None,
        "same_decisions_as_cloud_ar": None,
        "passed": not (not_own and variant.loaded_preset.exact),
    }
    if (baseline := baseline_of(variant, results)) is not None:
        row |= {"baseline": baseline.label, **_ratios(rooms, results[baseline])}
        if variant.stops and baseline.stops:
            alone = results[baseline]
            row["same_decisions_as_cloud_ar"] = mean(map(same_decisions, rooms, alone))
            row["passed"] &= all(map(decide_alike, rooms, alone)) or not variant.repeats(baseline)
    for preset in (BASELINE_PRESET, CLOUD_MTP):
        if (driving := driving_baseline_of(variant, results, preset)) is not None:
            mean_over, p50_over = _over(rooms, results[driving])
            row[f"mission_over_driving_{preset}"] = mean_over
            row[f"mission_p50_over_driving_{preset}"] = p50_over
            row[f"mission_se_over_driving_{preset}"] = _error(rooms, results[driving])
    return row


def _link(link: LinkProfile) -> Row:
    every, lasts = link.outage_every_s, link.outage_s
    return {
        "rtt_ms": link.rtt_ms,
        "outage": f"{every:g},{lasts:g}" if lasts else "",
        **({} if link.trace is None else {"link": link.trace.name}),
    }


def same_decisions(room: MissionRecord, other: MissionRecord) -> bool:
    """Whether both made the same decisions."""
    same = map(_is_same, room.decisions, other.decisions)
    return len(room.decisions) == len(other.decisions) and all(same)


def decide_alike(room: MissionRecord, other: MissionRecord) -> bool:
    """Whether both made the same decisions as long as their pictures are the same.

    They are, but after a contact: how a base slides along a thing depends on the time.
    """
    if not room.contacts:
        return same_decisions(room, other)
    both = zip(room.decisions, other.decisions, strict=False)
    return all(_is_same(a, b) for a, b in takewhile(_sees_the_same, both))


def _is_same(one: DecisionRecord, other: DecisionRecord) -> bool:
    """Whether these are the same decision; answers that were cut off are compared as far as both
    go."""
    length = min(len(one.tokens), len(other.tokens))
    return one.action == other.action and one.tokens[:length] == other.tokens[:length]


def _sees_the_same(both: tuple[DecisionRecord, DecisionRecord]) -> bool:
    return both[0].picture == both[1].picture


def first_motion(rooms: Iterable[MissionRecord]) -> float | None:
    """The median time of the first motion, s, over robots that moved."""
    moved = [room.first_motion - room.begun for room in rooms if room.first_motion is not None]
    return _percentile(moved, 50) if moved else None


def standing_after_first_motion(rooms: Iterable[MissionRecord]) -> float | None:
    """The share of time standing, from the first motion on; None: no motion."""
    moved = [room for room in rooms if room.first_motion is not None]
    seconds = sum(room.ended - (room.first_motion or 0.0) for room in moved)
    return 1 - sum(room.moving_s for room in moved) / seconds if seconds else None


def _spreads(since: Sequence[tuple[float, float, float]]) -> Row:
    """p50, p99 and maximum of what had passed since its frame when each motion began."""
    begun = np.array(since).reshape(-1, 3)
    names = "frame_age_s", "way_since_frame_m", "turn_since_frame_rad"
    parts = {"p50": 50, "p99": 99, "worst": 100}
    return {
        f"{name}_{part}": _percentile(values.tolist(), percent) if len(values) else None
        for name, values in zip(names, begun.T, strict=True)
        for part, percent in parts.items()
    }


def _over(rooms: Sequence[MissionRecord], alone: Sequence[MissionRecord]) -> tuple[float, float]:
    """The ratio of mean mission times, and of medians."""
    ours, theirs = ([room.seconds for room in each] for each in (rooms, alone))
    return sum(ours) / sum(theirs), _percentile(ours, 50) / _percentile(theirs, 50)


def _error(rooms: Sequence[MissionRecord], alone: Sequence[MissionRecord]) -> float | None:
    """The standard error of the ratio of mean mission times, of the same rooms; None: of one."""
    if len(rooms) < 2:
        return None
    over, _ = _over(rooms, alone)
    theirs = mean(room.seconds for room in alone)
    pairs = zip(rooms, alone, strict=True)
    return stdev(a.seconds - over * b.seconds for a, b in pairs) / theirs / math.sqrt(len(rooms))


def _ratios(rooms: Sequence[MissionRecord], alone: Sequence[MissionRecord]) -> Row:
    """``net_lost_rooms``: those that only the target alone succeeds in, minus those that only this
    one does."""
    ours, theirs = first_motion(rooms), first_motion(alone)
    mean_over, p50_over = _over(rooms, alone)
    pairs = zip(rooms, alone, strict=True)
    return {
        "mission_over_cloud_ar": mean_over,
        "mission_p50_over_cloud_ar": p50_over,
        "net_lost_rooms": sum(other.success - room.success for room, other in pairs),
        "first_motion_over_cloud_ar": ours / theirs if ours and theirs else None,
        "passes_over_cloud_ar": sum(r.target_passes for r in rooms)
        / max(1, sum(r.target_passes for r in alone)),
    }


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))
