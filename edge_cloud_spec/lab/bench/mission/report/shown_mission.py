"""The mission that the report shows, as each of the compared variants carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....harness.mission.embedded_pair import loaded_pair
from ....harness.mission.record import MissionRecord, MissionTrace
from ....harness.mission.seen_room import SeenRoom
from ....harness.mission.virtual_robot import VirtualRobot
from ....harness.regimes import Regime
from ..variant import Variant

BEFORE = 2  # missions of the robot before the one that is shown


@dataclass(frozen=True, eq=False)
class ShownMission:
    """One variant's mission with all that happened in it; times are the robot's, s."""

    variant: Variant
    record: MissionRecord
    trace: MissionTrace

    @property
    def name(self) -> str:
        """Of the variant, with its seconds."""
        return f"{self.variant.label}, {self.record.seconds:.1f} s"


def shown_missions(
    variants: Sequence[Variant], regime: Regime, rooms: Sequence[int], renderer: str
) -> tuple[str, list[ShownMission]]:
    """The instruction, and the last of these rooms under each variant."""
    pair = loaded_pair()
    traces = [MissionTrace() for _ in variants]
    robots = [
        VirtualRobot(pair, variant.conditions(regime), trace)
        for variant, trace in zip(variants, traces, strict=True)
    ]
    for number in rooms[: BEFORE + 1]:
        with SeenRoom(number, renderer) as seen:
            records = [robot.carry_out(seen) for robot in robots]
            instruction = seen.room.instruction
        pair.forget()
    shown = zip(variants, records, traces, strict=True)
    return instruction, [ShownMission(*each) for each in shown]
