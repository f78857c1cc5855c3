"""The results of missions, and the rows of ``bench mission``: figures per variant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from ....pilot.decision_loop import FULL, NONE
from ...harness.emulated_link import LinkProfile
from ...harness.mission.virtual_robot import MissionRecord, Variant
from ..command import Row


@dataclass(frozen=True)
class RoomResult:
    """One room under one variant; times in seconds, those of decisions summed.

    ``first_motion_s``: None if the robot never moved. ``answers``: the tokens of each decision;
    ``actions``: their actions. ``not_own``: how many answers differ from the target's. ``motions``:
    at each begin, the age of its frame (s), and way (m) and turn (rad) since.
    """

    room: int
    success: bool
    mission_s: float
    first_motion_s: float | None
    moving_s: float
    longest_standing_s: float
    first_word_s: float
    action_s: float
    answer_s: float
    target_passes: int
    not_own: int
    up_bytes: int
    down_bytes: int
    collisions: int
    not_arrived: int
    actions: tuple[str, ...]
    answers: tuple[tuple[int, ...], ...]
    motions: tuple[tuple[float, float, float], ...]

    @classmethod
    def of(cls, record: MissionRecord) -> RoomResult:
        """The result of a finished mission."""
        first, decisions = record.first_motion, record.decisions
        return cls(
            room=record.room,
            success=record.success,
            mission_s=record.seconds,
            first_motion_s=None if first is None else first - record.begun,
            moving_s=record.moving_s,
            longest_standing_s=record.longest_standing_s,
            first_word_s=sum(d.first_word - d.begun for d in decisions),
            action_s=sum((d.settled or d.ended) - d.begun for d in decisions),
            answer_s=sum(d.ended - d.begun for d in decisions),
            target_passes=record.target_passes,
            not_own=sum(d.own is False for d in decisions),
            up_bytes=record.up_bytes,
            down_bytes=record.down_bytes,
            collisions=record.contacts,
            not_arrived=record.not_arrived,
            actions=tuple(d.action for d in decisions),
            answers=tuple(d.tokens for d in decisions),
            motions=tuple(d.since for d in decisions if d.since is not None),
        )


Results = Mapping[Variant, Sequence[RoomResult]]


BASELINE = "cloud_ar"


def baseline_of(variant: Variant, variants: Iterable[Variant]) -> Variant | None:
    """The target alone over the same link: stop-and-go with whole answers, or the most similar
    variant."""
    alone = [v for v in variants if v.preset == BASELINE and v.link == variant.link]

    def likeness(other: Variant) -> tuple[bool, ...]:
        same = replace(other, preset=variant.preset, lookup=variant.lookup) == variant
        return other.stops, other.explain == FULL, same

    return max(alone, key=likeness, default=None)


def driving_baseline_of(variant: Variant, variants: Iterable[Variant]) -> Variant | None:
    """The target alone over the same link that drives on and explains nothing."""
    alone = (v for v in variants if v.preset == BASELINE and v.link == variant.link)
    return next((v for v in alone if not v.stops and v.explain == NONE), None)


def rows_of(cost_profile: str, results: Results) -> list[Row]:
    """A row per variant."""
    return [
        {
            **_row(cost_profile, variant, rooms, baseline_of(variant, results), results),
            **_over_driving(rooms, driving_baseline_of(variant, results), results),
        }
        for variant, rooms in results.items()
    ]


def _row(
    cost_profile: str,
    variant: Variant,
    rooms: Sequence[RoomResult],
    baseline: Variant | None,
    results: Results,
) -> Row:
    alone = results[baseline] if baseline is not None else None
    same = None
    if baseline is not None and alone is not None and variant.stops and baseline.stops:
        same = same_decisions(rooms, alone)
    decisions = sum(len(room.actions) for room in rooms)
    tokens = sum(len(answer) for room in rooms for answer in room.answers)
    passes = sum(room.target_passes for room in rooms)
    seconds = [room.mission_s for room in rooms]
    not_own = sum(room.not_own for room in rooms)
    repeats = baseline is not None and variant.repeats(baseline)
    return {
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
        "longest_standing_s": max(room.longest_standing_s for room in rooms),
        "decisions": decisions / len(rooms),
        "target_passes": passes / len(rooms),
        "not_own": not_own,
        "tokens_per_pass": tokens / passes if passes else None,
        "up_bytes": mean(room.up_bytes for room in rooms),
        "down_bytes": mean(room.down_bytes for room in rooms),
        "collisions": mean(room.collisions for room in rooms),
        "not_arrived": mean(room.not_arrived for room in rooms),
        "first_word_s_mean": sum(room.first_word_s for room in rooms) / decisions,
        "action_s_mean": sum(room.action_s for room in rooms) / decisions,
        "answer_s_mean": sum(room.answer_s for room in rooms) / decisions,
        **_spreads(rooms),
        "baseline": None if baseline is None else baseline.label,
        "same_decisions_as_cloud_ar": same,
        **({} if alone is None else _ratios(rooms, alone)),
        "passed": (same in (None, 1.0) or not repeats)
        and not (not_own and variant.loaded_preset.exact),
    }


def _link(link: LinkProfile) -> Row:
    every, lasts = link.outage_every_s, link.outage_s
    return {
        "rtt_ms": link.rtt_ms,
        "outage": f"{every:g},{lasts:g}" if lasts else "",
        **({} if link.trace is None else {"link": link.trace.name}),
    }


def same_decisions(rooms: Sequence[RoomResult], alone: Sequence[RoomResult]) -> float:
    """The share of rooms with the same decisions as the target alone; answers that were cut off are
    compared as far as both go."""
    return mean(
        len(room.answers) == len(other.answers)
        and room.actions == other.actions
        and all(
            a[: len(b)] == b[: len(a)] for a, b in zip(room.answers, other.answers, strict=True)
        )
        for room, other in zip(rooms, alone, strict=True)
    )


def first_motion(rooms: Iterable[RoomResult]) -> float | None:
    """The median time of the first motion, s, over robots that moved."""
    moved = [room.first_motion_s for room in rooms if room.first_motion_s is not None]
    return _percentile(moved, 50) if moved else None


def standing_after_first_motion(rooms: Iterable[RoomResult]) -> float | None:
    """The share of time standing, from the first motion on; None: no motion."""
    moved = [room for room in rooms if room.first_motion_s is not None]
    seconds = sum(room.mission_s - (room.first_motion_s or 0.0) for room in moved)
    return 1 - sum(room.moving_s for room in moved) / seconds if seconds else None


def _spreads(rooms: Iterable[RoomResult]) -> Row:
    """p50, p99 and maximum of each figure in ``motions``."""
    begun = np.array([motion for room in rooms for motion in room.motions]).reshape(-1, 3)
    names = "frame_age_s", "way_since_frame_m", "turn_since_frame_rad"
    parts = {"p50": 50, "p99": 99, "worst": 100}
    return {
        f"{name}_{part}": _percentile(values.tolist(), percent) if len(values) else None
        for name, values in zip(names, begun.T, strict=True)
        for part, percent in parts.items()
    }


def net_lost(rooms: Sequence[RoomResult], alone: Sequence[RoomResult]) -> int:
    """The number of rooms that only the target alone succeeds in, minus those that only this one
    does."""
    return sum(b.success - a.success for a, b in zip(rooms, alone, strict=True))


def _over_driving(rooms: Sequence[RoomResult], baseline: Variant | None, results: Results) -> Row:
    if baseline is None:
        return {}
    mean_over, p50_over = _over(rooms, results[baseline])
    return {
        "mission_over_driving_cloud_ar": mean_over,
        "mission_p50_over_driving_cloud_ar": p50_over,
    }


def _over(rooms: Sequence[RoomResult], alone: Sequence[RoomResult]) -> tuple[float, float]:
    """The ratio of mean mission times, and of medians."""
    ours, theirs = ([room.mission_s for room in each] for each in (rooms, alone))
    return sum(ours) / sum(theirs), _percentile(ours, 50) / _percentile(theirs, 50)


def _ratios(rooms: Sequence[RoomResult], alone: Sequence[RoomResult]) -> Row:
    ours, theirs = first_motion(rooms), first_motion(alone)
    mean_over, p50_over = _over(rooms, alone)
    return {
        "mission_over_cloud_ar": mean_over,
        "mission_p50_over_cloud_ar": p50_over,
        "net_lost_rooms": net_lost(rooms, alone),
        "first_motion_over_cloud_ar": ours / theirs if ours and theirs else None,
        "passes_over_cloud_ar": sum(r.target_passes for r in rooms)
        / max(1, sum(r.target_passes for r in alone)),
    }


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))
