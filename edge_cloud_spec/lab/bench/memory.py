"""How much memory a process has."""

from __future__ import annotations

import os
from pathlib import Path


def memory_mb(process: int) -> float:
    """Resident memory of a process; 0 where unknown."""
    statm = Path(f"/proc/{process}/statm")
    if not statm.exists():
        return 0.0
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
