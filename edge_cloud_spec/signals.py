"""Handles signals that end a run, so that its processes are cleaned up."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

REPEAT_S = 1.0  # a signal this soon after another says nothing new
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP act as Ctrl-C, so that no process is left running.

    SIGINT is set too, because shells make background jobs ignore it. A repeated signal, of an
    impatient person or of ``timeout``, which signals twice, does not interrupt the cleanup.
    """
    last = -math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > REPEAT_S:
            raise KeyboardInterrupt

    with handled(interrupt):
        yield


@contextlib.contextmanager
def signals_as_event() -> Iterator[threading.Event]:
    """A context in which SIGINT and SIGTERM set an event, for a loop that ends between two steps.

    Only poll it with ``is_set``: the handler runs in the thread that would wait.
    """
    came = threading.Event()
    with handled(lambda number, frame: came.set()):
        yield came


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """A context in which this handler gets SIGINT, SIGTERM and SIGHUP; only in the main thread."""
    try:
        replaced = {n: signal.signal(n, handler) for n in SIGNALS}
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, before in replaced.items():
            signal.signal(number, before)
