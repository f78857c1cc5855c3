"""What the navigator tells the rest of the graph, as one readable line (topic ``nav_status``)."""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("idle", "ready", "moving", "stopped")
NOBODY = "-"


@dataclass(frozen=True)
class Status:
    """``<state> <request> <detail>``.

    ``idle``: standing still, a decision is welcome. ``ready``: still moving, but the next decision
    may start. ``moving``: carrying out an action. ``stopped``: no action is taken until the detail
    is mended. ``request`` is the last one that the navigator settled (moved on, or refused), ``-``
    before the first. Raises ValueError for another state.
    """

    state: str
    request: str = NOBODY
    detail: str = ""

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"{self.state!r} is not a state; there are {', '.join(STATES)}")

    def __str__(self) -> str:
        return f"{self.state} {self.request} {self.detail}".rstrip()

    @property
    def welcomes_decision(self) -> bool:
        """Whether the next decision may start."""
        return self.state in ("idle", "ready")

    @classmethod
    def parse(cls, line: str) -> Status:
        """The status that ``str`` wrote. Raises ValueError for a line that is none."""
        state, _, rest = line.partition(" ")
        request, _, detail = rest.partition(" ")
        return cls(state, request or NOBODY, detail)
