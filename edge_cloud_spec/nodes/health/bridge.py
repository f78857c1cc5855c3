"""How the link to the cloud is, with what went over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .health import Health, Level
from .rate import Rate


@dataclass
class BridgeHealth:
    """Remembers since when the link is not good, and how fast the counts grow."""

    _up: Rate = field(default_factory=Rate)
    _down: Rate = field(default_factory=Rate)
    _bad_since: float | None = None

    def look(
        self,
        link: Health,
        up_bytes: int,
        down_bytes: int,
        now: float,
        measured: Mapping[str, object],
    ) -> Health:
        """``link`` with the figures of this second; to be asked about once a second.

        ``up_bytes`` and ``down_bytes``: so far; ``measured``: what else there is.
        """
        if link.level == Level.OK:
            self._bad_since = None
        elif self._bad_since is None:
            self._bad_since = now
        values: dict[str, object] = {
            **measured,
            "up_bytes": up_bytes,
            "down_bytes": down_bytes,
            "up_bytes_per_s": round(self._up.per_second(up_bytes, now)),
            "down_bytes_per_s": round(self._down.per_second(down_bytes, now)),
        }
        message = link.message
        if self._bad_since is not None:
            seconds = round(now - self._bad_since)
            values["not_good_for_s"] = seconds
            message += f" (for {seconds} s)" if seconds else ""
        return replace(link, message=message, values=values)
