"""Random input to what must bear it: ``python -m fuzz`` with ``test`` on the path."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any


class Broken(AssertionError):
    """A promise was broken."""


def rarely(random: Random, chance: float, odd: Sequence[Any], usual: Any) -> Any:
    """One of the odd values with this chance, else the usual one."""
    return random.choice(odd) if random.random() < chance else usual


def spoil(patch: Any, owner: Any, name: str, wrong: Any) -> None:
    """Replace what is right; a wrong function is given it before its arguments."""
    right = getattr(owner, name)
    if callable(wrong):
        patch.setattr(owner, name, lambda *given, **named: wrong(right, *given, **named))
    else:
        patch.setattr(owner, name, wrong)
