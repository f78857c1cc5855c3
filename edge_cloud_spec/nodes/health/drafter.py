"""Whether the drafter decides: its camera, its model's thread, its last decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from .health import Health, Level, worst_of

SLACK_S = 10.0  # s beyond the cloud's patience that the draft model may take for its own part


@dataclass(frozen=True)
class DrafterFacts:
    """What the drafter knows of itself.

    ``deciding``: seconds since the running decision went on, None while none runs; ``patience``:
    seconds of silence after which a decision ends by itself. ``problem``: the last one, while it is
    recent. ``last``: figures of the last decision.
    """

    instruction: str
    camera: Health
    alive: bool = True
    deciding: float | None = None
    patience: float = 10.0
    problem: str = ""
    last: dict[str, object] = field(default_factory=dict)


def drafter_health(facts: DrafterFacts) -> Health:
    """The worst of the thread, the camera and the last decision; else what is followed."""
    what = f"following {facts.instruction!r}" if facts.instruction else "no instruction"
    found = [Health(Level.OK, what, values=facts.last), facts.camera]
    if not facts.alive:
        said = "the model's thread has ended"
        found.append(Health(Level.ERROR, said, "see the drafter's log and restart it"))
    elif facts.deciding is not None and facts.deciding > facts.patience + SLACK_S:
        said = f"the model's thread has been at one decision for {facts.deciding:.0f} s"
        advice = "restart the drafter, or take a smaller model (model.path, model.quantize)"
        found.append(Health(Level.ERROR, said, advice))
    if facts.problem:
        found.append(Health(Level.ERROR, facts.problem, values={"last problem": facts.problem}))
    return worst_of(found)
