"""The action language: what a verified answer may ask the robot to do, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
