"""What became of one instruction, read from the lines of ``instruction_status``. No ROS here."""

from __future__ import annotations

from dataclasses import dataclass

from ..instruction import normalized

STARTED = "the drafter has started; publish an instruction"
INACTIVE = "the drafter is not active"
"""What a drafter says of itself while it follows nothing: whatever was followed is lost."""

OUTCOMES = {
    "done": "found",
    "not_found": "not_found",
    "blocked": "blocked",
    "given_up": "given_up",
    "failed": "failed",
}
"""State of ``instruction_status`` that ends an instruction -> outcome of the goal."""


@dataclass(frozen=True)
class GoalEnd:
    """An ``outcome`` of the action NavigateByInstruction, and its sentence."""

    outcome: str
    message: str


class FollowedGoal:
    """One instruction from its publication on; ``state`` is ``waiting``, then ``following``.

    While it waits, only the drafter's taking or refusing it counts: what is said of an earlier
    instruction may still arrive. Then any other state of the drafter ends it.
    """

    def __init__(self, instruction: str) -> None:
        self.instruction = normalized(instruction)
        self.state, self.words = "waiting", ""
        self._finished: set[str] = set()

    @property
    def decisions(self) -> int:
        """How many decisions were made for it."""
        return len(self._finished)

    def on_status(self, line: str) -> GoalEnd | None:
        """Take a line of ``instruction_status``; how that ends the goal, None: it goes on."""
        state, _, detail = line.partition(" ")
        if state == "following" and self._is_about_it(detail):
            self.state = "following"
            return None
        if self.state == "waiting":
            return GoalEnd("failed", detail) if state == "failed" else None
        if state == "following":
            return GoalEnd("cancelled", f"another instruction came: {detail}")
        if state == "idle" and detail in (STARTED, INACTIVE):
            return GoalEnd("failed", "the drafter was started again, or ended; send the goal again")
        return GoalEnd(OUTCOMES.get(state, "cancelled"), detail)

    def on_words(self, request: str, instruction: str, answer: str, finished: bool) -> bool:
        """Take the words of a decision; whether they are about this goal."""
        if self.state == "waiting" or normalized(instruction) != self.instruction:
            return False
        self.words = answer or self.words
        if finished:
            self._finished.add(request)
        return True

    def _is_about_it(self, detail: str) -> bool:
        """Whether a detail is the instruction, alone or with something said of it."""
        return detail == self.instruction or detail.startswith(f"{self.instruction}: ")
