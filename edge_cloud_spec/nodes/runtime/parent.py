"""Processes that end with the one that started them, however that one ends (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

ENDS_WITH_LAUNCH = "EDGE_CLOUD_SPEC_ENDS_WITH_LAUNCH"  # in the environment: the launch's process id
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let Linux send this process SIGTERM when its parent ends."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_with_launch() -> None:
    """End with the launch that started this process, as its environment asks."""
    launch = os.environ.pop(ENDS_WITH_LAUNCH, "")
    if launch != str(os.getppid()):
        return  # another program stands between both, such as a debugger
    end_with_parent()
    if launch != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGTERM)  # it ended before it could be said
