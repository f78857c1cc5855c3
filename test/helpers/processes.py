"""What runs on this machine, by the environment that it was started in."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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


def installed_script(program: Path, module: str) -> Path:
    """``program``, with the text that CMake gives an executable for this module."""
    written = re.search(
        r"file\(WRITE \$\{script\}(.*?)\"\)\n", (ROOT / "CMakeLists.txt").read_text(), re.DOTALL
    )
    script = "".join(re.findall(r'"([^"]*)"?', written[1] + '"')).replace("\\n", "\n")
    program.write_text(script.replace("${module}", module))
    return program
