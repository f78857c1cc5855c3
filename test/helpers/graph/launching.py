"""Nodes in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator


def launching() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python's ``program`` with ROS arguments; what still runs at the end is killed. A test
    that fails shows what became of each."""
    running: list[subprocess.Popen[str]] = []

    def begin(program: list[str], *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, *program, "--ros-args", *arguments]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield begin
    for process in running:
        status = process.poll()
        process.kill()
        _, errors = process.communicate()
        print(*process.args[1:], "still ran" if status is None else f"ended by {status}", errors)
