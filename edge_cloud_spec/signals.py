"""Handles signals that end a run, so that its processes are cleaned up.

A handler runs between two instructions of the main thread, which may hold any lock just then: one
that waits for a lock, as ``threading.Event.set`` does, waits for itself for ever. So a handler here
writes a byte, or raises an exception.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

REPEAT_S = 1.0  # a signal this soon after another says nothing new
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ending_signals() -> tuple[signal.Signals, ...]:
    """SIGINT, SIGTERM and SIGHUP, which end a run.

    SIGINT also where it is ignored, since shells make background jobs ignore it. A SIGHUP that is
    ignored (``nohup``) is left out.
    """
    is_left_out = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return tuple(each for each in _SIGNALS if each != signal.SIGHUP or not is_left_out)


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP act as Ctrl-C, so that no process is left running.

    A repeated signal, of an impatient person or of ``timeout``, which signals twice, does not
    interrupt the cleanup.
    """
    last = -math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > REPEAT_S:
            raise KeyboardInterrupt

    with handled(interrupt):
        yield


class SignalEvent:
    """A ``threading.Event`` without a lock: a pipe, with a byte in it once the event is set.

    A signal handler may set it, whatever the main thread does at that moment. It is never cleared.
    """

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._writable, False)

    def set(self) -> None:
        """Wake all who wait; for any thread and for signal handlers."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it was set often
            os.write(self._writable, b"\0")

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, or for so long; returns whether it is."""
        poll = select.poll()
        poll.register(self._readable, select.POLLIN)
        return bool(poll.poll(None if seconds is None else 1000 * seconds))

    def is_set(self) -> bool:
        """Whether it was set."""
        return self.wait(0.0)


@contextlib.contextmanager
def signals_as_event() -> Iterator[SignalEvent]:
    """A context in which SIGINT, SIGTERM and SIGHUP set an event, for a loop that ends between two
    steps."""
    came = SignalEvent()
    with handled(lambda number, frame: came.set()):
        yield came


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """A context in which this handler gets the ``ending_signals``; only in the main thread."""
    try:
        replaced = {number: signal.signal(number, handler) for number in ending_signals()}
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, before in replaced.items():
            signal.signal(number, before)
