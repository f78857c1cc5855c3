"""Reading a model's answer clause by clause, while its words are still arriving.

An answer is a sequence of clauses ``key: text;`` with the keys ``action`` and ``reason``. The
action of an answer is known as soon as the ``;`` of its ``action`` clause is verified, whatever
follows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .action import Action, parse_action

DELIMITER = ";"
_CLAUSE = re.compile(r"\s*(action|reason): (\S[^;]*)")


class NotAnAction(ValueError):
    """What has been said so far cannot become an answer with an action; nothing may move."""


@dataclass(frozen=True)
class Answer:
    """What the complete clauses of a text say; None where the clause has not been completed."""

    action: Action | None
    reason: str | None


def read_answer(text: str) -> Answer:
    """Read the complete clauses of ``text`` (verified words so far); the first of each key counts.

    Reading is strict up to the action, so that an error message with an action in it is none, and
    indifferent after it: longer text never changes an action that was already complete.
    Raises NotAnAction when a clause before the action is malformed, or the action clause is
    complete but is not exactly an action.
    """
    action: Action | None = None
    reason: str | None = None
    for clause in text.split(DELIMITER)[:-1]:
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            if action is None:
                raise NotAnAction(f"{_shortened(clause)} is not a clause of an answer")
        elif match[1] == "reason":
            reason = reason or match[2]
        elif action is None:
            action = parse_action(match[2])
            if action is None:
                raise NotAnAction(f"{_shortened(match[2])} is not an action")
    return Answer(action, reason)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
