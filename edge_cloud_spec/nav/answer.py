"""Reading a model's answer clause by clause, while its words are still arriving.

An answer is a sequence of clauses ``key: text;``. The action of an answer is known as soon as the
``;`` of its ``action`` clause is verified, whatever follows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .action import Action, parse_action

DELIMITER = ";"


class NotAnAction(ValueError):
    """An ``action`` clause is complete and says something that is not an action."""


@dataclass(frozen=True)
class Answer:
    """What the complete clauses of a text say; None where the clause has not been completed."""

    action: Action | None
    reason: str | None


def read_answer(text: str) -> Answer:
    """Read the complete clauses of ``text`` (verified words so far); the first of each key counts.

    Raises NotAnAction when the action clause is complete but is not exactly an action.
    """
    said: dict[str, str] = {}
    for clause in text.split(DELIMITER)[:-1]:
        key, colon, value = clause.partition(":")
        if colon:
            said.setdefault(key.strip(), value.strip())
    action = None
    if "action" in said:
        action = parse_action(said["action"])
        if action is None:
            raise NotAnAction(f"{said['action']!r} is not an action; nothing moves")
    return Answer(action, said.get("reason"))
