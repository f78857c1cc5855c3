"""Signals that end a run in an orderly way."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def polite_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run as Ctrl-C does, so that nothing is left behind.

    SIGINT is named too: a shell has its background jobs ignore it.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = {n: signal.signal(n, interrupt) for n in ENDING}
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
