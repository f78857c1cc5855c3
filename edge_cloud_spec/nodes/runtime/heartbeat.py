"""Noticing a thread that hangs: the program says where it is and ends, so that it is respawned."""

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
    """The signs of life of one thread: it calls ``beat``, and ``rest`` when it waits for work.

    ``slack`` gives the seconds that one piece of its work may take beyond ``HANG_S``. Time is
    counted in looks of the watch and not by a clock: a process that was stopped (SIGSTOP), or a
    machine that slept, is not hung when it goes on.
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
        """Nothing is due until the next beat."""
        self._rests = True

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """A context for work of any length, such as loading a model, in which no beat is due."""
        self.rest()
        try:
            yield
        finally:
            self.beat()

    def look(self, seconds: float) -> float:
        """Check the thread, ``seconds`` after the last check; returns how long it hangs, 0: not."""
        alive = self._rests or self._beats != self._seen
        self._seen = self._beats
        self._silent_s = 0.0 if alive else self._silent_s + seconds
        return self._silent_s if self._silent_s >= HANG_S + self._slack() else 0.0

    def place(self) -> str:
        """Where the thread is: its innermost stack frame in our code, else of all."""
        frame = sys._current_frames().get(self._ident or 0)
        if frame is None:
            return "has ended"
        stack = traceback.extract_stack(frame)
        ours = [line for line in stack if "edge_cloud_spec" in line.filename]
        line = ours[-1] if ours else stack[-1]
        return f"is in {line.name} ({os.path.basename(line.filename)}, line {line.lineno})"


class HangWatch:
    """A thread that looks at all pulses and ends the program with status 3 when one has stopped."""

    def __init__(self, pulses: Callable[[], Iterable[Pulse]]) -> None:
        self._pulses = pulses
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking: the program ends normally."""
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
