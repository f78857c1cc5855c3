"""What the navigator tells the rest of the graph, as one readable line (topic ``nav_status``)."""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("idle", "ready", "moving", "stopped")
NOBODY = "-"
MAX_REQUEST = 200  # characters


def is_request(name: str) -> bool:
    """Whether a request may be called so: one printable word, and not that for nobody."""
    one_word = 0 < len(name) <= MAX_REQUEST and name.isprintable() and " " not in name
    return one_word and name != NOBODY


@dataclass(frozen=True)
class Status:
    """``<state> <request> <stops> <detail>``.

    ``idle``: standing still, a decision is welcome. ``ready``: still moving, but the next decision
    may start. ``moving``: carrying out an action. ``stopped``: no action is taken until the detail
    is mended. ``request`` is the last one that the navigator settled (moved on, or refused), ``-``
    before the first. ``stops`` counts the stops and the releases, from a number that is another for
    each navigator: words that were decided under another count move nothing. Raises ValueError for
    another state, or a request that is not one word.
    """

    state: str
    request: str = NOBODY
    detail: str = ""
    stops: int = 0

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"{self.state!r} is not a state; there are {', '.join(STATES)}")
        if self.request != NOBODY and not is_request(self.request):
            raise ValueError(f"{self.request[:80]!r} is no request's name: it must be one word")

    def __str__(self) -> str:
        return f"{self.state} {self.request} {self.stops} {self.detail}".rstrip()

    @property
    def text(self) -> str:
        """What people want to know of it."""
        return f"{self.state} {self.detail}".rstrip()

    @property
    def welcomes_decision(self) -> bool:
        """Whether the next decision may start."""
        return self.state in ("idle", "ready")

    @classmethod
    def parse(cls, line: str) -> Status:
        """The status that ``str`` wrote. Raises ValueError for a line that is none."""
        state, request, stops, detail = (*line.split(" ", 3), "", "", "")[:4]
        if not (stops.isascii() and stops.isdigit()):
            raise ValueError(f"{line[:80]!r} is no status: <state> <request> <stops> <detail>")
        return cls(state, request, detail, int(stops))
