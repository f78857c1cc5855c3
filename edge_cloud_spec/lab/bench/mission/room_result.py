"""What is kept of a mission for the rows, and written down so that it need not be run again."""

from __future__ import annotations

from dataclasses import dataclass

from ...harness.mission.record import MissionRecord
from .energy import joules


@dataclass(frozen=True)
class RoomResult:
    """One room under one variant; times in seconds, those of decisions their sums.

    ``first_motion_s``: None where the robot never moved. ``answers``: the tokens of each decision;
    ``actions``: what was done on them.
    """

    room: int
    success: bool
    mission_s: float
    first_motion_s: float | None
    moving_s: float
    first_word_s: float
    action_s: float
    answer_s: float
    target_passes: int
    up_bytes: int
    down_bytes: int
    collisions: int
    joules: float
    actions: tuple[str, ...]
    answers: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, record: MissionRecord) -> RoomResult:
        """The result of a mission that is over."""
        first, decisions = record.first_motion, record.decisions
        spent = joules(record.seconds, record.moving_s, record.draft_busy_s, record.target_busy_s)
        return cls(
            room=record.room,
            success=record.success,
            mission_s=record.seconds,
            first_motion_s=None if first is None else first - record.begun,
            moving_s=record.moving_s,
            first_word_s=sum(d.first_word - d.begun for d in decisions),
            action_s=sum((d.settled or d.ended) - d.begun for d in decisions),
            answer_s=sum(d.ended - d.begun for d in decisions),
            target_passes=record.target_passes,
            up_bytes=record.up_bytes,
            down_bytes=record.down_bytes,
            collisions=record.contacts,
            joules=spent,
            actions=tuple(d.action for d in decisions),
            answers=tuple(d.tokens for d in decisions),
        )
