"""What a mission's prompts remember of its earlier decisions."""

from __future__ import annotations

from ..nav.history import MAX_ANSWER_CHARACTERS, HistorySpec, Turn


class MissionMemory:
    """The turns of one mission: the frames that were decided on, with the verified answers.

    It begins anew with another mission.
    """

    def __init__(self) -> None:
        self._mission = ""
        self._turns: tuple[Turn, ...] = ()

    def turns(self, mission: str, spec: HistorySpec) -> tuple[Turn, ...]:
        """What the next prompt of this mission holds before its frame."""
        return spec.chosen(spec.kept(self._turns)) if mission == self._mission else ()

    def add(
        self, mission: str, spec: HistorySpec, jpeg: bytes, answer: str, free_space: str = ""
    ) -> None:
        """A decision of this mission is verified; ``free_space``: as its prompt told it."""
        before = self._turns if mission == self._mission else ()
        self._mission = mission
        turn = Turn.of(jpeg, answer[:MAX_ANSWER_CHARACTERS], free_space)
        self._turns = spec.kept((*before, turn))
