"""What became of one task: its words now, beside the recorded ones where there are some."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..edge.events import CUT
from ..observe.decision import Decision
from ..observe.run_log import RunLog
from .difference import parting, reasons
from .recording import ReplayTask


@dataclass(frozen=True)
class Comparison:
    """One decision of a replay. ``at`` in s; ``recorded`` is None where nothing was recorded.

    ``replayed`` is None with a ``problem``; ``equal`` is None where there is nothing to compare.
    ``token`` is the first that differs, from 1, ``why`` what likely made it.
    """

    number: int
    frame: int
    at: float
    stamp: int
    instruction: str
    recorded: str | None
    replayed: str | None
    equal: bool | None
    problem: str = ""
    token: int | None = None
    difference: str = ""
    why: str = ""

    @property
    def place(self) -> str:
        """Where in the bag, in words."""
        picture = f"picture {self.frame}" if self.frame else "a picture that only it holds"
        return f"decision {self.number}, {picture}, at {self.at:.2f} s"

    def as_row(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def compare(
    number: int, task: ReplayTask, answer: Decision | str, was: RunLog, now: RunLog
) -> Comparison:
    """``was``: the recorded run, ``now``: this one."""
    recorded = task.recorded
    place = (number, task.frame, task.at, task.stamp, task.instruction)
    words = recorded.answer if recorded is not None else None
    if isinstance(answer, str):
        equal = None if recorded is None else False
        return Comparison(*place, words, None, equal, problem=answer)
    if recorded is None:
        return Comparison(*place, None, answer.answer, None)
    part = parting(recorded, answer)
    cut = CUT in (recorded.finish, answer.finish)
    if part is None and (cut or recorded.finish == answer.finish):
        return Comparison(*place, words, answer.answer, True)
    return Comparison(
        *place,
        words,
        answer.answer,
        False,
        token=part.token if part else len(recorded.tokens) + 1,
        difference=str(part) if part else f"it ended with {recorded.finish}, not {answer.finish}",
        why=reasons((was, recorded), (now, answer)),
    )
