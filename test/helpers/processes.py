"""What runs on this machine, by the environment that it was started in."""

from __future__ import annotations

from pathlib import Path


def processes_with(variable: str) -> list[str]:
    """The command lines of the processes with this NAME=VALUE in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
