"""The language of answers: its actions, its clauses as they arrive, and its grammar.

An answer is a sequence of clauses ``key: text;`` with the keys ``action`` and ``reason``. The
action of an answer is known as soon as the ``;`` of its ``action`` clause is verified, whatever
follows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UserError

SIZES = ("small", "medium", "large")

_ACTION = re.compile(
    r"(?P<verb>move|turn) (?P<direction>forward|backward|left|right) (?P<size>small|medium|large)"
    r"|(?P<bare>search|stop)"
)
_DIRECTIONS = {"move": ("forward", "backward"), "turn": ("left", "right")}


@dataclass(frozen=True)
class Action:
    """One action: ``verb`` is move, turn, search or stop; the last two have nothing else."""

    verb: str
    direction: str = ""
    size: str = ""

    def __str__(self) -> str:
        return " ".join(word for word in (self.verb, self.direction, self.size) if word)


def parse_action(text: str) -> Action | None:
    """The action that ``text`` is, whole and to the letter; None for anything else.

    A text that merely contains an action ("cannot move forward small") is not one.
    """
    match = _ACTION.fullmatch(text)
    if match is None:
        return None
    if match["bare"]:
        return Action(match["bare"])
    if match["direction"] not in _DIRECTIONS[match["verb"]]:
        return None
    return Action(match["verb"], match["direction"], match["size"])


def every_action() -> tuple[Action, ...]:
    """All actions of the language."""
    sized = tuple(
        Action(verb, direction, size)
        for verb, directions in _DIRECTIONS.items()
        for direction in directions
        for size in SIZES
    )
    return (*sized, Action("search"), Action("stop"))


DELIMITER = ";"


def clause_of(action: Action) -> str:
    """The clause with which an answer says this action."""
    return f"action: {action}{DELIMITER}"


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


def action_of(text: str) -> Action | None:
    """The action that a text says completely, with its delimiter; None: it says none."""
    try:
        return read_answer(text).action
    except NotAnAction:
        return None


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


GRAMMARS = ("none", "action")
REASON_TOKENS = 32  # of a reason, so that the action comes soon where the reason comes first

_CLAUSES = {
    "action first": 'start: action (" " reason)?',
    "reason first": 'start: reason " " action',
}


def answer_grammar(name: str, order: str) -> str:
    """The text of this grammar, for ``SamplingPolicy``; empty for ``none``.

    ``action``: an answer is the clauses that ``read_answer`` reads, in the order that was asked
    for. A reason is printable ASCII, and may be left out where it comes last. Raises UserError.
    """
    if name not in GRAMMARS:
        raise UserError(f"the grammar {name!r} is unknown: use one of {', '.join(GRAMMARS)}")
    if name == "none":
        return ""
    if order not in _CLAUSES:
        raise UserError(f"the order {order!r} is unknown: use one of {', '.join(_CLAUSES)}")
    return "\n".join(
        (
            _CLAUSES[order],
            f'action: "action: " ACTION "{DELIMITER}"',
            f'reason: "reason: " text "{DELIMITER}"',
            f"ACTION: /{'|'.join(map(str, every_action()))}/",
            f"text[max_tokens={REASON_TOKENS}]: /[!-:<-~][ -:<-~]*/",
        )
    )
