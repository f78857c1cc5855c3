"""How much of an answer is decoded: what follows the action moves nothing."""

from __future__ import annotations

from .answer import NotAnAction, read_answer

FULL, UNTIL_NEXT, NONE = "full", "until_next", "none"
EXPLAIN = (FULL, UNTIL_NEXT, NONE)


def has_action(answer: str) -> bool:
    """Whether the answer's action is complete with its delimiter."""
    try:
        return read_answer(answer).action is not None
    except NotAnAction:
        return False


def is_enough(explain: str, acted: bool, next_is_due: bool) -> bool:
    """Whether a decode that has verified its action (``acted``) is to be cut off now.

    ``full``: never. ``until_next``: as soon as the next decision needs the models. ``none``: at
    once.
    """
    return acted and (explain == NONE or (explain == UNTIL_NEXT and next_is_due))
