"""The verdicts of one session: each is drawn once, and repeated as it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...decoding.digest import PrefixDigest
from ...wire.messages import Verdict


class VerdictHistory:
    """Verdicts by the prefix of the draft that each is on, in the order of the answer.

    They are kept with their tokens, since the robot may have lost the draft. Only the last keeps
    its residual, the largest part of a verdict: no robot needs that of an earlier one.
    """

    def __init__(self) -> None:
        self.last: PrefixDigest | None = None  # the newest verdict's prefix
        self._kept: dict[PrefixDigest, Verdict] = {}

    def __contains__(self, base: PrefixDigest) -> bool:
        return base in self._kept

    def add(self, verdict: Verdict) -> None:
        """The verdict on the prefix where the answer stood, complete with its tokens."""
        if self.last is not None and self._kept[self.last].residual is not None:
            self._kept[self.last] = replace(self._kept[self.last], residual=None)
        self._kept[verdict.base] = verdict
        self.last = verdict.base

    def on(self, base: PrefixDigest) -> Verdict:
        """The verdict on this prefix; KeyError where there is none."""
        return self._kept[base]

    def since(self, base: PrefixDigest) -> Iterator[Verdict]:
        """Those on this prefix and on all that came after it."""
        return (kept for place, kept in self._kept.items() if place.length >= base.length)
