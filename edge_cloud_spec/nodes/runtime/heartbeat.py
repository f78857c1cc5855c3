"""Detects a hanging thread: the program reports where it is and exits, so that it is respawned."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator

HANG_S = 5.0  # s without a sign of life after which a thread counts as hung
CHECK_S = 0.5  # s between two looks
HUNG = 3  # the exit status


class Pulse:
    """One thread's signs of life: it calls ``beat``, and ``rest`` when it waits for work.

    ``slack`` gives the seconds that one piece of work may take beyond ``HANG_S``. Time is counted
    in checks and not by a clock, so that a process that was stopped (SIGSTOP), or a machine that
    slept, does not count as hanging afterwards.
    """

    def __init__(self, thread: str, slack: Callable[[], float] = lambda: 0.0) -> None:
        self.thread = thread
        self._slack = slack
        self._beats = self._seen = 0
        self._rests = True
        self._silent_s = 0.0
        self._ident: int | None = None

    def beat(self) -> None:
        """Report progress; another beat, or a rest, is due after this."""
        self._ident = threading.get_ident()
        self._rests = False
        self._beats += 1

    def rest(self) -> None:
        """Expect no beat until the next one."""
        self._rests = True

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """A context for work of any length, such as loading a model, in which no beat is
        expected."""
        self.rest()
        try:
            yield
        finally:
            self.beat()

    def look(self, seconds: float) -> float:
        """Check the thread, ``seconds`` after the last check; returns for how long it has hung, s;
        0: it has not."""
        alive = self._rests or self._beats != self._seen
        self._seen = self._beats
        self._silent_s = 0.0 if alive else self._silent_s + seconds
        return self._silent_s if self._silent_s >= HANG_S + self._slack() else 0.0

    def place(self) -> str:
        """The thread's innermost stack frame in our code, else in any."""
        frame = sys._current_frames().get(self._ident or 0)
        if frame is None:
            return "has ended"
        stack = traceback.extract_stack(frame)
        ours = [line for line in stack if "edge_cloud_spec" in line.filename]
        line = ours[-1] if ours else stack[-1]
        return f"is in {line.name} ({os.path.basename(line.filename)}, line {line.lineno})"


class HangWatch:
    """A thread that checks all pulses and ends the program with status 3 when one has stopped."""

    def __init__(self, pulses: Callable[[], Iterable[Pulse]]) -> None:
        self._pulses = pulses
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop checking, because the program ends normally."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(CHECK_S):
            for pulse in list(self._pulses()):
                seconds = pulse.look(CHECK_S)
                if seconds and not self._closed.is_set():
                    text = f"hangs for {seconds:.0f} s: it {pulse.place()}"
                    print(f"error: the thread {pulse.thread} {text}; exiting", file=sys.stderr)
                    sys.stderr.flush()
                    os._exit(HUNG)
