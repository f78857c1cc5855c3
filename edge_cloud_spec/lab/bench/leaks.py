"""What a process holds: memory, threads, and the objects of decodes; a leak is what has grown."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from ...cloud.model_thread.sessions import CloudSession, RobotStream
from ...edge.client import ClientStream
from ...edge.decoder import EdgeDecoder
from ...edge.drafts import Drafts
from ...models.draft_model import DraftModel
from .options import Harness

Sample = TypeVar("Sample")

ENDING_S = 10.0  # that a thread may take to end

DECODE_OBJECTS = (EdgeDecoder, Drafts, DraftModel, CloudSession, RobotStream, ClientStream)


@dataclass(frozen=True)
class ResourceCounts:
    """Counts between two decodes.

    ``objects``: robot caches, streams and sessions of either end that are still referenced.
    """

    threads: int
    tasks: int
    sessions: int
    pushed: int
    objects: int

    def growth(self, before: ResourceCounts) -> dict[str, int]:
        """How many more than before, by name."""
        names = [field.name for field in fields(self)]
        return {name: getattr(self, name) - getattr(before, name) for name in names}


def count_resources(harness: Harness) -> ResourceCounts:
    """The counts of this process and its cloud worker."""
    gc.collect()
    # Not isinstance, which asks each object for its class: some of torch's warn when asked.
    objects = sum(issubclass(type(each), DECODE_OBJECTS) for each in gc.get_objects())
    worker = harness.worker
    return ResourceCounts(
        threading.active_count(), harness.tasks(), worker.sessions, worker.held.pushed, objects
    )


def threads_left(before: set[threading.Thread]) -> list[str]:
    """The names of the threads that were not there ``before`` and do not end.

    gRPC's poller is told to end with the last of its objects, and gRPC does not always wait for it:
    a moment later it may still be in the list.
    """
    gc.collect()
    new = set(threading.enumerate()) - before
    for thread in new:
        thread.join(ENDING_S)
    return [thread.name for thread in new if thread.is_alive()]


def resident_mb() -> float:
    """Memory of this process, without free memory that malloc keeps; 0 where unknown."""
    gc.collect()
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    return memory_mb(os.getpid())


FEW = 16  # samples; with fewer, nothing is compared
WARM_UP = 0.1  # of the samples, which are not counted: caches fill


def quarters(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """The first and the last quarter after the warm-up; both all of them where there are few."""
    warm = samples[int(WARM_UP * len(samples)) :]
    size = len(warm) // 4 if len(samples) >= FEW else 0
    return (warm[:size], warm[-size:]) if size else (samples, samples)


def memory_mb(process: int) -> float:
    """Resident memory of a process; 0 where unknown."""
    statm = Path(f"/proc/{process}/statm")
    if not statm.exists():
        return 0.0
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def sampled(look: Callable[[], Sample]) -> Iterator[list[Sample]]:
    """Samples taken ten times a second by a thread, and once before."""
    samples, done = [look()], threading.Event()

    def sample() -> None:
        while not done.wait(0.1):
            samples.append(look())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield samples
    finally:
        done.set()
        sampler.join()
