"""Verdicts that overtook an earlier one: the cloud went straight on to what was pushed."""

from __future__ import annotations

from ..decoding.digest import PrefixDigest
from ..wire.messages import Verdict

MAX_EARLY = 64


class ReorderBuffer:
    """Kept by the prefix that each is about, until the answer gets there."""

    def __init__(self) -> None:
        self._kept: dict[PrefixDigest, Verdict] = {}

    def keep(self, verdict: Verdict, here: PrefixDigest) -> bool:
        """Keep a verdict beyond ``here``. False where one is known already, or too many are."""
        for old in [old for old in self._kept if old.length < here.length]:
            del self._kept[old]
        if verdict.base in self._kept or len(self._kept) >= MAX_EARLY:
            return False
        self._kept[verdict.base] = verdict
        return True

    def take(self, here: PrefixDigest) -> Verdict | None:
        """The verdict on what follows ``here``, if it came already."""
        return self._kept.pop(here, None)
