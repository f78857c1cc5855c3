"""Signals that end a run, with its processes cleaned up."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from types import FrameType

REPEAT_S = 1.0  # a signal this soon after another says nothing new
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run as Ctrl-C does, so that no process is left running.

    SIGINT is set too, because a shell has its background jobs ignore it. A repeat, of an impatient
    person or of ``timeout``, which signals twice, does not interrupt the cleaning up.
    """
    last = -math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > REPEAT_S:
            raise KeyboardInterrupt

    try:
        replaced = {n: signal.signal(n, interrupt) for n in SIGNALS}
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
