"""Requests of other forms than a robot's picture and instruction."""

from __future__ import annotations

from helpers.checkpoints import jpeg

from edge_cloud_spec.request import Message, Part, Picture


def user(*parts: Part) -> Message:
    return Message("user", parts)


def shown(number: int, size: tuple[int, int] = (0, 0)) -> Picture:
    """One of some pictures of unequal sizes."""
    return Picture.of(jpeg(200 + number, 112 + 28 * number, 96), size)


ANY_FORM = {
    "no picture": (user("Say ", "something."),),
    "three pictures between texts": (
        user("First ", shown(0), "then", shown(1), " and ", shown(2, (96, 64)), "which?"),
    ),
    "pictures side by side": (user(shown(1), shown(2)),),
    "several turns": (
        user("Hello"),
        Message("assistant", ("Good day",)),
        user(shown(0), "What is this?"),
        Message("assistant", ("A chair", ".")),
        user("And now?"),
    ),
    "a system text of the robot's own": (
        Message("system", ("Be brief.",)),
        user("Hello", shown(1)),
    ),
}
