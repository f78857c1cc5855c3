"""A shift: some rooms one after the other, in each of which every variant's robot has its turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...harness.regimes import Regime
from .room_result import RoomResult
from .variant import Variant


@dataclass(frozen=True)
class Shift:
    """The rooms of one robot of each variant: what it measured and heard in one helps it in the
    next. At the beginning of the first nothing is known, to robot or cloud."""

    rooms: tuple[int, ...]
    variants: tuple[Variant, ...]
    regime: Regime
    renderer: str


def shifts_of(
    rooms: Sequence[int], length: int, variants: Sequence[Variant], regime: Regime, renderer: str
) -> list[Shift]:
    """All rooms in shifts of so many."""
    return [
        Shift(tuple(rooms[start : start + length]), tuple(variants), regime, renderer)
        for start in range(0, len(rooms), length)
    ]


def work(shift: Shift) -> dict[Variant, list[RoomResult]]:
    """Every room under every variant; the models and what they said of a room are shared."""
    from ...harness.mission.embedded_pair import loaded_pair
    from ...harness.mission.seen_room import SeenRoom
    from ...harness.mission.virtual_robot import VirtualRobot

    pair = loaded_pair()
    robots = {v: VirtualRobot(pair, v.conditions(shift.regime)) for v in shift.variants}
    results: dict[Variant, list[RoomResult]] = {variant: [] for variant in shift.variants}
    for number in shift.rooms:
        with SeenRoom(number, shift.renderer) as seen:
            for variant, robot in robots.items():
                results[variant].append(RoomResult.of(robot.carry_out(seen)))
        pair.forget()
    return results
