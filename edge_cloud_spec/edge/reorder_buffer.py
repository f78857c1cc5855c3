"""Verdicts that overtook an earlier one: the cloud continued with a pushed draft."""

from __future__ import annotations

from ..decoding.digest import PrefixDigest
from ..wire.messages import Verdict

MAX_EARLY = 64


class ReorderBuffer:
    """Keeps each verdict by its prefix, until the answer reaches that prefix."""

    def __init__(self) -> None:
        self._kept: dict[PrefixDigest, Verdict] = {}

    def keep(self, verdict: Verdict, here: PrefixDigest | None) -> bool:
        """Keep a verdict beyond ``here`` (None: the robot does not know where it is yet).

        False: one is kept for its prefix, or MAX_EARLY are.
        """
        passed = 0 if here is None else here.length
        for old in [old for old in self._kept if old.length < passed]:
            del self._kept[old]
        if verdict.base in self._kept or len(self._kept) >= MAX_EARLY:
            return False
        self._kept[verdict.base] = verdict
        return True

    def take(self, here: PrefixDigest) -> Verdict | None:
        """The verdict on what follows ``here``, if it arrived already."""
        return self._kept.pop(here, None)
