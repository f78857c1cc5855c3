"""Detects a hanging thread: the program reports where it is and exits, so that it is respawned."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable

from ...signals import SignalEvent

HANG_S = 5.0  # s without a sign of life after which a thread counts as hung
HANG_CHECK_S = 0.5  # s between two looks
HUNG_STATUS = 3  # the exit status


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


def watch(pulses: list[Pulse], stop: SignalEvent) -> None:
    """Check the pulses in a thread until ``stop``; end the program with status 3 if one has
    stopped."""

    def run() -> None:
        while not stop.wait(HANG_CHECK_S):
            for pulse in list(pulses):  # threads come and go
                seconds = pulse.look(HANG_CHECK_S)
                if seconds and not stop.is_set():
                    text = f"hangs for {seconds:.0f} s: it {pulse.place()}"
                    sentence = f"error: the thread {pulse.thread} {text}; exiting"
                    print(sentence, file=sys.stderr, flush=True)
                    os._exit(HUNG_STATUS)  # flushes nothing that a hung thread may hold

    threading.Thread(target=run, name="hang watch", daemon=True).start()
