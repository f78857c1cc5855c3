"""A navigator without ROS, its clock, and the words that it is sent."""

from __future__ import annotations

from dataclasses import replace

from edge_cloud_spec.nav.answer import CLAUSES, Dialect
from edge_cloud_spec.nav.events import Drive, Effect, Event, Instruction, Report, Tick, Words
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.pose import Velocity
from edge_cloud_spec.nav.settings import NavigatorSettings
from edge_cloud_spec.nav.status import FOLLOWING, GoalStatus
from edge_cloud_spec.wire.messages import END

FORWARD = "action: move forward large;"


def goal_of(instruction: str) -> GoalStatus:
    """What a drafter says when it takes the instruction; the goal's name is the text."""
    text = instruction.strip()
    return GoalStatus(FOLLOWING, text, goal_id=text)


def words(text: str, request: str = "r1", position: int = 0, **changes: object) -> Words:
    """The beginning of an answer, and what it says. ``instruction``: for whose goal they are
    (``goal_of``)."""
    given = {"verified": True, "finished": False, "stamp": 0, "age": 0.2, "tokens": (0,) * 4}
    given["goal_id"] = str(changes.get("instruction", "")).strip()
    said = Words(request=request, position=position, text=text, **(given | changes))  # type: ignore[arg-type]
    return read_as(CLAUSES, said)[0]


def read_as(dialect: Dialect, *pieces: Words) -> list[Words]:
    """The pieces of one answer as a drafter of this dialect tells them: with what the answer up to
    each says."""
    answer, told = "", []
    for piece in pieces:
        answer += piece.text
        reading = dialect.read(answer, piece.finish_reason == END)
        told.append(replace(piece, answer=answer, reading=reading))
    return told


class Drill:
    """A navigator and its clock; ``moves`` tells whether an event made it move."""

    def __init__(self, settings: NavigatorSettings | None = None) -> None:
        self.navigator, self.now = Navigator(settings), 50.0
        self._instruction = ""

    def on(self, event: Event, after: float = 0.0) -> list[Effect]:
        self.now += after
        if isinstance(event, Instruction):
            self._instruction = event.text
            self.navigator.on(goal_of(event.text), self.now)
        return self.navigator.on(event, self.now)

    def run(self, seconds: float) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(round(seconds / 0.05)):
            effects += self.on(Tick(), 0.05)
        return effects

    def current(self, text: str, request: str, **changes: object) -> Words:
        """Words of a decision that has heard of every stop, release and instruction."""
        heard = {"stops": self.navigator.stops, "instruction": self._instruction}
        return words(text, request, **(heard | changes))

    @property
    def status(self) -> str:
        return str(self.navigator.status)


def drives(effects: list[Effect]) -> list[Velocity]:
    return [effect.velocity for effect in effects if isinstance(effect, Drive)]


def reports(effects: list[Effect]) -> str:
    return " ".join(effect.problem for effect in effects if isinstance(effect, Report))
