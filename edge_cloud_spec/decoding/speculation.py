"""When the robot drafts: which predicted verdicts it drafts for while it waits for one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Speculation:
    """Which predictions of a verdict a preset drafts for.

    ``all_accepted``: that all of a draft's likeliest path is accepted. ``open``: and that the
    verdict is then left open, so that the next draft begins right there (PicoSpec); else the
    likeliest token after it is predicted as the bonus (SpecEdge). ``runners_up``: that the draft's
    own second choice replaces the first rejected token. ``exits``: what early exits predict (FSD).

    ``push``: send a pre-draft as soon as it is finished, so that the cloud continues at once when
    its prediction comes true. ``ahead``: how many drafts beyond the one being verified; 0 is
    stop and wait. ``cut``: the levels after which a draft is cut short and sent, if the cloud
    would wait for more of it (PicoSpec's latency-aware truncation, 3.2); 0 is never. ``width``:
    nodes in one pass of the draft model. Predictions of a confidence below ``least`` are not
    worked on.
    """

    all_accepted: bool = False
    open: bool = False
    runners_up: bool = False
    exits: bool = False
    push: bool = False
    ahead: int = 0
    cut: int = 0
    width: int = 1
    least: float = 0.02

    @property
    def predicts(self) -> bool:
        """Whether it predicts verdicts at all."""
        return self.all_accepted or self.runners_up or self.exits


STOP_AND_WAIT = Speculation()
