"""The tiny pair's right answer to a view, for training and for scoring.

An answer is an action and a reason, in the requested order::

    action: turn left small; reason: silver bottle far 3.0 left 14, right of red chair 2.0;
    reason: no silver bottle, silver can near 1.0 ahead 4; action: search;
    action: turn right medium; reason: red box midway 1.8 ahead 2, alone, first right;

In the last something is in the way, and the robot goes around it. The numbers are metres and
degrees. The view determines every word, so that a drafter that sees less is corrected often.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edge_cloud_spec.nav.answer import ORDERS

from ...sim.kinds import THING_KINDS
from ...sim.room import PHRASINGS
from ...sim.thing import VisibleThing

SIDES = ("left", "ahead", "right")
FLAT_PHRASES = (
    "first go to the {0}, then go to the {0}",
    "first go to the {0}, then go back to the {0}",
    "turn left at the hallway",
    "turn right at the hallway",
    *(
        f"go through the {n} door on the {s}"
        for n in ("first", "second", "third")
        for s in SIDES[::2]
    ),
)
"""What is asked for in flats, beside the things."""

_FIND = "(?:[Ff]ind|[Gg]o to|[Ww]alk to|[Ll]ook for|[Dd]rive to|[Ww]here is) the "

ROOM_INSTRUCTION = rf"{_FIND}(?P<name>{'|'.join(THING_KINDS)})[.?!]?"
"""What the shipped pair understands: it was trained before flats were."""

INSTRUCTION_PATTERN = re.compile(
    rf"(?:{_FIND}NAME"
    r"|[Ff]irst go to the NAME, then go (?:back )?to the NAME"
    r"|[Tt]urn (?:left|right) at the hallway"
    r"|[Gg]o through the (?:first|second|third) door on the (?:left|right))[.?!]?".replace(
        "NAME", f"(?:{'|'.join(THING_KINDS)})"
    )
)

VISIBLE_PIXELS = 24
"""Fewer pixels (of 128 x 128), but not none, are ambiguous: never asked for and in no answer."""

AHEAD_DEG, SLIGHT_DEG = 6.0, 18.0
STOP_M, NEAR_M, MIDWAY_M = 0.8, 1.3, 2.4  # metres
IN_LINE = 4.0  # degrees between two things of which one is before the other

DISTANCE_WORDS = ("near", "midway", "far")


@dataclass(frozen=True)
class Piece:
    """Some words of an answer and their weight in training (1: determined by the picture).

    ``right``: what should stand there, if it is something else that is to be learned.
    """

    text: str
    weight: float
    right: str = ""


def side(bearing: float) -> str:
    """The word for a bearing in degrees (positive to the left)."""
    if abs(bearing) <= AHEAD_DEG:
        return "ahead"
    return "left" if bearing > 0 else "right"


def distance_word(distance: float) -> str:
    """The word for a distance in metres."""
    return "near" if distance < NEAR_M else "midway" if distance < MIDWAY_M else "far"


def metres(distance: float) -> str:
    """A distance rounded to 0.2 m, from 2 m on to 0.5 m, at most 6 m; as text."""
    if distance < 1.9:
        return f"{max(1, round(distance * 5)) / 5:.1f}"
    return f"{min(12, max(4, round(distance * 2))) / 2:.1f}"


def degrees(bearing: float) -> str:
    """A bearing without its side, in even degrees, at most 30; as text."""
    return str(min(30, 2 * round(abs(bearing) / 2)))


def best_action(thing: VisibleThing | None) -> str:
    """A perfect model's action towards the named thing; None: the thing is not in view."""
    if thing is None:
        return "search"
    if abs(thing.bearing) > AHEAD_DEG:
        size = "medium" if abs(thing.bearing) > SLIGHT_DEG else "small"
        return f"turn {side(thing.bearing)} {size}"
    if thing.distance < STOP_M:
        return "stop"
    size = (
        "small" if thing.distance < NEAR_M else "medium" if thing.distance < MIDWAY_M else "large"
    )
    return f"move forward {size}"


def visible(things: Sequence[VisibleThing]) -> dict[str, VisibleThing]:
    """The things that an answer may name, by name."""
    return {thing.name: thing for thing in things if thing.pixels >= VISIBLE_PIXELS}


def askable(things: Sequence[VisibleThing]) -> tuple[str, ...]:
    """The names of things that are clearly in the view or clearly not."""
    doubtful = {thing.name for thing in things if 0 < thing.pixels < VISIBLE_PIXELS}
    return tuple(name for name in THING_KINDS if name not in doubtful)


def alike(first: str, second: str) -> bool:
    """Whether two things share their colour or their shape."""
    return first != second and bool(set(first.split()) & set(second.split()))


def absent(things: Sequence[VisibleThing]) -> list[str]:
    """The names of things that are clearly not in the view."""
    there = {thing.name for thing in things}
    return [name for name in THING_KINDS if name not in there]


def deceptive(things: Sequence[VisibleThing]) -> list[str]:
    """The absent names that are like one of something in view."""
    return [name for name in absent(things) if any(alike(name, other) for other in visible(things))]


def relation(thing: VisibleThing, other: VisibleThing) -> str:
    """Where ``thing`` appears relative to ``other``."""
    between = thing.bearing - other.bearing
    if abs(between) <= IN_LINE:
        return "before" if thing.distance <= other.distance else "behind"
    return "left of" if between > 0 else "right of"


def place(thing: VisibleThing, words: float, numbers: float) -> list[Piece]:
    """The words for where something is, and their weights."""
    return [
        Piece(f" {distance_word(thing.distance)}", words),
        Piece(f" {metres(thing.distance)}", numbers),
        Piece(f" {side(thing.bearing)}", words),
        Piece(f" {degrees(thing.bearing)}", numbers),
    ]


def reason_of(seen: dict[str, VisibleThing], name: str) -> list[Piece]:
    """What is said of a thing where these are in view."""
    others = [thing for thing in seen.values() if thing.name != name]
    if name not in seen:
        pieces = [Piece(" no", 2.0), Piece(f" {name}", 0.1)]
        others.sort(key=lambda thing: (not alike(thing.name, name), -thing.pixels))
        if not others:
            return [*pieces, Piece(",", 0.1), Piece(" nothing", 0.5), Piece(" known", 0.1)]
        for index, thing in enumerate(others[:2]):
            pieces += [Piece(",", 0.5 if index else 0.1), Piece(f" {thing.name}", 0.5)]
            pieces += place(thing, 0.7, 0.3)
        return pieces
    thing = seen[name]
    colour, shape = name.split()
    pieces = [Piece(f" {colour}", 2.0), Piece(f" {shape}", 0.1)]
    pieces += place(thing, 2.0, 0.7)
    if not others:
        return [*pieces, Piece(",", 0.1), Piece(" alone", 0.5)]
    beside = min(others, key=lambda other: abs(other.bearing - thing.bearing))
    where, *of = relation(thing, beside).split()
    pieces += [Piece(",", 0.1), Piece(f" {where}", 0.7), *(Piece(f" {word}", 0.1) for word in of)]
    pieces += [Piece(f" {beside.name}", 0.5), Piece(f" {metres(beside.distance)}", 0.3)]
    likeness = [other for other in others if alike(other.name, name) and other is not beside]
    if likeness:
        other = max(likeness, key=lambda other: other.pixels)
        pieces += [Piece(",", 0.5), Piece(" not", 0.1), Piece(f" {other.name}", 0.5)]
        pieces += [Piece(f" {side(other.bearing)}", 0.7)]
    return pieces


def first_of(action: str) -> list[Piece]:
    """What is said of an action that does not lead straight to the thing: what is done first."""
    way = action.split()[1] if " " in action else action
    return [Piece(",", 0.5), Piece(" first", 0.1), Piece(f" {way}", 0.7)]


def pieces(things: Sequence[VisibleThing], name: str, order: str, action: str = "") -> list[Piece]:
    """The words of the best answer about ``name`` in a view, with their weights.

    ``action``: the best one, where something is in the way; else it follows from the things.
    Raises ValueError when ``name`` is not askable in this view, or the order is unknown.
    """
    if order not in ORDERS:
        raise ValueError(f"order {order!r} is none of {ORDERS}")
    if name not in askable(things):
        raise ValueError(f"{name!r} cannot be asked for in this view")
    seen = visible(things)
    straight, reason = best_action(seen.get(name)), reason_of(seen, name)
    if action not in ("", straight):
        reason += first_of(action)
    return assembled(action or straight, reason, order)


def assembled(action: str, reason: Sequence[Piece], order: str) -> list[Piece]:
    """An answer of this action and this reason, in this order."""
    words = action.split()
    acted = [Piece("action:", 0.1), *(Piece(f" {word}", 2.0) for word in words), Piece(";", 0.1)]
    if words[:2] == ["move", "forward"]:
        acted[2] = Piece(" forward", 0.1)
    reasoned = [Piece("reason:", 0.1), *reason, Piece(";", 0.5)]
    first, last = (acted, reasoned) if order == "action first" else (reasoned, acted)
    return [*first, Piece(f" {last[0].text}", 0.1), *last[1:]]


def answer(things: Sequence[VisibleThing], name: str, order: str) -> str:
    """The best answer about ``name`` in a view that shows ``things``; raises as ``pieces`` does."""
    return "".join(piece.text for piece in pieces(things, name, order))


@dataclass(frozen=True)
class Statement:
    """What an answer states about the named thing; empty strings if it states nothing."""

    visible: bool | None
    side: str = ""
    distance: str = ""
    action: str = ""


_REASON = re.compile(
    r"reason: (?:(?P<no>no )|(?P<name>[a-z]+ [a-z]+) "
    rf"(?P<distance>{'|'.join(DISTANCE_WORDS)}) [0-9.]+ (?P<side>{'|'.join(SIDES)}))"
)
_ACTION_PATTERN = re.compile(r"action: (?P<action>[a-z ]+);")


def read(text: str) -> Statement:
    """Parse an answer, possibly a broken one."""
    acted = _ACTION_PATTERN.search(text)
    action = acted["action"] if acted else ""
    reason = _REASON.search(text)
    if reason is None:
        return Statement(None, action=action)
    if reason["no"]:
        return Statement(False, action=action)
    return Statement(True, reason["side"], reason["distance"], action)


def numbers() -> list[str]:
    """Every number in answers, with the space before it."""
    found = {metres(tenth / 10) for tenth in range(100)} | {degrees(b) for b in range(40)}
    return sorted(f" {number}" for number in found)


def vocabulary() -> list[str]:
    """Every word of instructions and answers, with the space before it."""
    words = {f" {word}" for name in THING_KINDS for word in name.split()}
    words |= {f" {word}" for word in (*SIDES, *DISTANCE_WORDS)}
    spoken = "turn move forward backward small medium large search stop"
    spoken += " of before behind alone not no nothing known first is the to for"
    words |= {f" {word}" for word in spoken.split()}
    words |= {"action:", " action:", "reason:", " reason:", "action", "reason"}
    openings = {phrase.split()[0] for phrase in PHRASINGS}
    return sorted(words | openings | {opening.capitalize() for opening in openings})


def flat_vocabulary() -> list[str]:
    """The words that only flats need, in an order that stays: their ids follow all others."""
    spoken = "hallway room enter leave hidden done look second third round then through on at back"
    spoken += " go 1 3 5 7"
    return [*(f" {word}" for word in spoken.split()), "turn", "Turn", "first", "First"]
