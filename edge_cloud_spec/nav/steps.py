"""An action as a step: how far, or by how much it turns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..options import Bounded, bounded
from .answer import Action


@dataclass(frozen=True)
class Steps(Bounded):
    """Sizes of the actions, m and degrees. Raises ValueError naming a field out of range."""

    move_small: float = bounded(0.2, 0.02, 3.0, "move small, m")
    move_medium: float = bounded(0.45, 0.02, 3.0, "move medium, m")
    move_large: float = bounded(0.9, 0.02, 3.0, "move large, m")
    turn_small: float = bounded(7.0, 1.0, 180.0, "turn small, degrees")
    turn_medium: float = bounded(24.0, 1.0, 180.0, "turn medium, degrees")
    turn_large: float = bounded(48.0, 1.0, 180.0, "turn large, degrees")
    search: float = bounded(48.0, -180.0, 180.0, "turn of a search, degrees, left positive")


@dataclass(frozen=True)
class Goal:
    """A step relative to its start: metres forward or radians to the left; one of them is 0."""

    distance: float = 0.0
    angle: float = 0.0


def shortened(action: Action, steps: Steps) -> Action:
    """The action, its amount limited to the largest step."""
    most: float = getattr(steps, f"{action.verb}_large", 0.0)
    return replace(action, amount=most) if action.amount > most else action


def goal_of(action: Action, steps: Steps) -> Goal:
    """The step of an action, at most the largest; an empty one for ``stop``."""
    if action.verb == "stop":
        return Goal()
    if action.verb == "search":
        return Goal(angle=math.radians(steps.search))
    size: float = (
        getattr(steps, f"{action.verb}_{action.size}")
        if action.size
        else shortened(action, steps).amount
    )
    if action.verb == "move":
        return Goal(distance=size if action.direction == "forward" else -size)
    return Goal(angle=math.radians(size if action.direction == "left" else -size))
