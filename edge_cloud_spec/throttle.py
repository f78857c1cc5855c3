"""What keeps a log readable, and its reader's pipe from filling: so many lines a second."""

from __future__ import annotations

import math
from collections import OrderedDict

MAX_KINDS = 1024  # whose last time is kept
EVERY_S = 1.0


class Throttle:
    """At most ``most`` lines of a kind a second; the next line counts those left out."""

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._kinds: OrderedDict[object, tuple[float, int, int]] = OrderedDict()

    def admit(self, kind: object, now: float) -> int | None:
        """How many were left out since the last that was written; None: leave this one out, too.

        ``now`` in steady seconds.
        """
        begun, written, left_out = self._kinds.pop(kind, (-math.inf, 0, 0))
        if now - begun >= EVERY_S:
            begun, written = now, 0
        if written >= self._most:
            self._kinds[kind] = (begun, written, left_out + 1)
            return None
        self._kinds[kind] = (begun, written + 1, 0)
        if len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        return left_out


def with_more(text: str, left_out: int) -> str:
    """The line, and how many it stands for."""
    return f"{text} ({left_out} more of these)" if left_out else text
