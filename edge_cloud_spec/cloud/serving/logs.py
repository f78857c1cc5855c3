"""The verifier's log: lines of text or JSON, with the session's id and the client's name.

Records about a session or client carry them: ``log.info(text, extra={"session": ..., "client":
...})``. Robots choose parts of the client's name, so line breaks are escaped, and a repeated line
about one robot is written once a second.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from ...throttle import LONGEST_S, Throttle, with_more

ABOUT = ("session", "client")  # extra fields of a record
FORMATS = ("text", "json")


def _about(record: logging.LogRecord) -> dict[str, str]:
    values = {name: str(getattr(record, name, "")) for name in ABOUT}
    return {name: value for name, value in values.items() if value}


class TextLines(logging.Formatter):
    """``INFO logger: message session=... client=...``, one line per record except tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's line, without a traceback."""
        about = "".join(f" {name}={json.dumps(value)}" for name, value in _about(record).items())
        return _one_line(super().formatMessage(record)) + about

    def formatException(self, ei: Any) -> str:
        """The traceback, with a prefix on each line that no record has."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  | {_one_line(line)}" for line in lines)


class JsonLines(logging.Formatter):
    """A JSON object per line: time (s since 1970), level, logger, message, session, client,
    error."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        entry: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_about(record),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _one_line(text: str) -> str:
    """The text with line breaks and terminal control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class OncePerSecond(logging.Filter):
    """Passes a repeated message about a client at most once a second, then more and more rarely,
    and adds how often it was repeated."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._throttle = Throttle(longest_s=LONGEST_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write this record."""
        client = str(getattr(record, "client", ""))
        if not client or record.levelno >= logging.WARNING:
            return True
        more = self._throttle.admit((record.getMessage(), client), self._clock())
        if more:
            record.msg, record.args = with_more(record.getMessage(), more), ()
        return more is not None


def is_our_error(record: logging.LogRecord) -> bool:
    """False for the traceback that gRPC logs where a robot is gone as its stream is ended."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core")


def set_up_logging(form: str, level: int = logging.INFO) -> None:
    """Write the log to standard error, in one of ``FORMATS``."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.addFilter(is_our_error)
    handler.addFilter(OncePerSecond())
    logging.basicConfig(level=level, handlers=[handler], force=True)
