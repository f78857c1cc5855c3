"""Whether the cloud's own draft model pays, beside what is looked up: as measured."""

from __future__ import annotations

from collections.abc import Callable

from ...decoding.mean import PassYield
from .scored_draft import ScoredDraft

FEW = 4  # passes after which a source is judged by what it gave
AGAIN = 32  # choices after which the source that gives less is tried again


class OwnDrafting:
    """Tokens per second by source, of all sessions of a cloud that go on alone.

    Seconds are the clock's, from verdict to verdict: sessions share a pass of the target, but wait
    for one another's drafts. Belongs to the model's thread.
    """

    def __init__(self, in_the_way: Callable[[], bool] = lambda: False) -> None:
        """in_the_way: whether others wait for the model's thread; they do not wait for a draft."""
        self._in_the_way = in_the_way
        self._drafted, self._looked_up, self._bare = PassYield(), PassYield(), PassYield()
        self._since = 0  # choices since the source that gives less was tried

    def pays(self, looked_up: int) -> bool:
        """Whether to let the draft model draft where so many tokens were looked up."""
        other = self._looked_up if looked_up else self._bare
        if other.count < FEW or self._in_the_way():
            return False
        if self._drafted.count < FEW:
            return True
        better = self._drafted.rate > other.rate
        self._since += 1
        if self._since < AGAIN:
            return better
        self._since = 0
        return not better

    def judged(self, scored: ScoredDraft, tokens: int, seconds: float) -> None:
        """A pass over this draft settled so many tokens, so many seconds after the last verdict."""
        looked_up = self._looked_up if scored.draft.looked_up else self._bare
        (self._drafted if scored.source == "cloud" else looked_up).observe(tokens, seconds)
