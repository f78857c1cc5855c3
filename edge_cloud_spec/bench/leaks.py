"""What a process holds: memory, threads, and the objects of decodes that may have ended."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from ..cloud.sessions import CloudSession
from ..cloud.sessions import RobotStream as CloudStream
from ..edge.client import ClientStream as LinkStream
from ..edge.decoder import EdgeDecoder
from ..edge.speculator import Speculator
from ..models.drafter import Drafter
from .options import Harness

OF_DECODES = (EdgeDecoder, Speculator, Drafter, CloudSession, CloudStream, LinkStream)


@dataclass(frozen=True)
class ResourceUse:
    """Counts at one moment between two decodes. ``objects``: robot caches, streams and sessions

    of either end, whoever still holds them.
    """

    threads: int
    tasks: int
    sessions: int
    pushed: int
    objects: int

    def growth(self, before: ResourceUse) -> dict[str, int]:
        """How many more than before, by name."""
        names = [field.name for field in fields(self)]
        return {name: getattr(self, name) - getattr(before, name) for name in names}


def resource_use(harness: Harness) -> ResourceUse:
    """What there is now."""
    gc.collect()
    objects = sum(isinstance(each, OF_DECODES) for each in gc.get_objects())
    worker = harness.worker
    return ResourceUse(
        threading.active_count(), harness.tasks(), worker.sessions, worker.pushed, objects
    )


def resident_mb() -> float:
    """Memory of this process, without what is free and not given back; 0 where unknown."""
    gc.collect()
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    return memory_mb(os.getpid())


def memory_mb(process: int) -> float:
    """Resident memory of a process; 0 where unknown."""
    statm = Path(f"/proc/{process}/statm")
    if not statm.exists():
        return 0.0
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
