"""Whether the drafter decides: its camera, its model's thread, its last decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .health import Health, Level, worst_of


@dataclass(frozen=True)
class DrafterFacts:
    """What the drafter knows of itself.

    ``note``: how the instruction is followed. ``alive``: whether the model's thread is.
    ``problem``: the last one, while it is recent.
    ``last``: figures of the last decision.
    """

    instruction: str
    camera: Health
    note: str = ""
    alive: bool = True
    problem: str = ""
    last: Mapping[str, object] = field(default_factory=dict)


def drafter_health(facts: DrafterFacts) -> Health:
    """The worst of the thread, the camera and the last decision; else what is followed."""
    what = f"following {facts.instruction!r}" if facts.instruction else "no instruction"
    what += facts.note
    found = [Health(Level.OK, what, values=facts.last), replace(facts.camera, check="camera")]
    if not facts.alive:
        said = "the model's thread has ended"
        advice = "see the drafter's log and restart it"
        found.append(Health(Level.ERROR, said, advice, check="model"))
    if facts.problem:
        found.append(Health(Level.ERROR, facts.problem, values={"last problem": facts.problem}))
    return worst_of(found)
