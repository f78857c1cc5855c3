"""Ends a process of the graph together with the launch that started it, and without delay."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

ENDS_WITH_LAUNCH = "EDGE_CLOUD_SPEC_ENDS_WITH_LAUNCH"  # in the environment: the launch's process id
_PR_SET_PDEATHSIG = 1


def end_with_launch() -> None:
    """Let Linux send this process SIGTERM when the launch that started it ends, if the environment
    asks for it."""
    launch = os.environ.pop(ENDS_WITH_LAUNCH, "")
    if launch != str(os.getppid()):
        return  # another program stands between both, such as a debugger
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if launch != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGTERM)  # it ended before that was set


def leave(status: int) -> NoReturn:
    """Exit at once, after everything of ours is closed.

    Finalizing an interpreter with torch takes seconds on a busy machine, in which a late signal
    finds no handler; a launch allows five for everything.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
