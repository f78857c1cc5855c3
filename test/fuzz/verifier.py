"""Mutated frames against a real verifier: it must not crash, hang or grow, nor harm a session."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import threading
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import grpc.aio
from fuzz import Broken
from fuzz.drafts import GIANTS, KINDS, Place, giant, opening_of
from fuzz.peers import Bystander, Failure, Hostile
from fuzz.robot import fuzz_robot
from fuzz.target import SPEC, BoundedTarget, Target
from helpers.bounded_toy import SESSION_BYTES
from helpers.cloud.grpc_cloud import Cloud

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.serving.logs import is_our_error
from edge_cloud_spec.decoding.digest import PrefixDigest

PEERS = 6  # hostile streams at a time
ROOM = 3  # sessions that there is memory for
BATCH = 10  # frames of each before the sessions are looked at
MEGABYTE = 2**20


@dataclass(frozen=True)
class ResourceCounts:
    """What must not grow."""

    memory: int  # resident bytes of this process, which holds the verifier
    sessions: int
    threads: int
    tasks: int  # of the server's loop

    def grown(self, before: ResourceCounts) -> list[str]:
        """What has grown too much since."""
        spare = max(20 * MEGABYTE, before.memory // 10)
        bounds = {
            "memory": (self.memory, before.memory + spare),
            "sessions": (self.sessions, PEERS + 1),
            "threads": (self.threads, before.threads + 2),
            "tasks": (self.tasks, before.tasks + 2 * PEERS),
        }
        return [f"{what}: {n}, above {most}" for what, (n, most) in bounds.items() if n > most]


@dataclass
class Report:
    """What came of a run."""

    frames: int = 0
    slowest: float = 0.0  # check of the bystander, in seconds
    answers: Counter[str] = field(default_factory=Counter)  # kinds, faults by their code
    robot: Counter[str] = field(default_factory=Counter)
    evictions: int = 0  # of sessions' caches
    failures: list[str] = field(default_factory=list)
    before: ResourceCounts | None = None
    after: ResourceCounts | None = None


class _Alarm(logging.Handler):
    """An error in the log is a failure: nobody sees it on a robot."""

    def __init__(self, failures: list[str]) -> None:
        super().__init__(logging.ERROR)
        self.addFilter(is_our_error)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        self._failures.append(self.format(record))


def counted(frames: int, seed: int) -> Counter[str]:
    """What came of a run. Raises Broken."""
    report = run(frames, seed)
    if report.failures:
        raise Broken("\n".join(report.failures[:10]))
    slowest = {"ms of the slowest answer to the bystander": round(1e3 * report.slowest)}
    return Counter({**report.answers, **report.robot, "evictions": report.evictions, **slowest})


def run(frames: int, seed: int, target: Target | None = None) -> Report:
    """Send so many mutated frames to a verifier, and as many to the robot's decoder."""
    report = Report()
    alarm = _Alarm(report.failures)
    logging.getLogger().addHandler(alarm)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # NaN that numpy went on with
            limits = WorkerLimits(
                keep_s=0.0, idle_s=3600.0, batch_rows=100, kv_mb=ROOM * SESSION_BYTES / 2**20
            )
            worker = Worker(target or BoundedTarget(), SPEC, Target(1.0), limits)  # type: ignore[arg-type]
            with Cloud(worker) as cloud:
                asyncio.run(_fuzz_cloud(cloud, frames, seed, report))
            report.evictions = worker.kv_memory.evictions
            fuzz_robot(frames, seed, report.robot, report.failures)
    finally:
        logging.getLogger().removeHandler(alarm)
    return report


async def _fuzz_cloud(cloud: Cloud, frames: int, seed: int, report: Report) -> None:
    async with grpc.aio.insecure_channel(cloud.address) as channel:
        hostile = [
            Hostile(channel, Random(f"{seed} {n}"), report.answers, kind=n * len(KINDS) // PEERS)
            for n in range(PEERS)
        ]
        bystander = Bystander(channel, Random(seed), Counter())
        try:
            await _rounds(cloud, hostile, bystander, frames, report)
        except Failure as failure:
            report.failures.append(str(failure))
        for peer in (*hostile, bystander):
            await peer.close()
    remaining = asyncio.all_tasks() - {asyncio.current_task()}  # gRPC's own, of ended calls
    if remaining:  # else what is due comes to a loop that is closed
        await asyncio.wait(remaining, timeout=5.0)


async def _rounds(
    cloud: Cloud,
    hostile: list[Hostile],
    bystander: Bystander,
    frames: int,
    report: Report,
) -> None:
    number = 0
    while report.frames < frames and not report.failures:
        await bystander.ready(number)
        giants = [_giant(number)] if number < GIANTS else None  # before memory is counted
        await asyncio.gather(*(_batch(peer, report, giants) for peer in hostile))
        begin = time.perf_counter()
        await bystander.check()
        report.slowest = max(report.slowest, time.perf_counter() - begin)
        number += 1
        if report.before is None and report.frames >= frames / 5:
            report.before = _count_resources(cloud)
    report.failures += await _growth(cloud, report)


async def _growth(cloud: Cloud, report: Report) -> list[str]:
    """What has grown, and stays so when all is quiet."""
    grown: list[str] = []
    for _ in range(5):
        report.after = _count_resources(cloud)
        grown = report.after.grown(report.before or report.after)
        if not grown:
            break
        await asyncio.sleep(0.3)
    return grown


def _giant(number: int) -> bytes:
    return giant(number, Place(opening_of(0, 0, b""), "", PrefixDigest(0, 0)))


async def _batch(peer: Hostile, report: Report, frames: list[bytes] | None) -> None:
    try:
        await peer.batch(BATCH, frames)
    except Exception as error:
        said = "\n  ".join(frame[:100].hex() for frame in peer.mutated)
        report.failures.append(f"{error!r}, after the frames\n  {said}")
    report.frames += len(frames) if frames else BATCH


def _count_resources(cloud: Cloud) -> ResourceCounts:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)  # or what the last giant took counts, though it is free
    tasks = len(asyncio.all_tasks(cloud.loop))
    sessions = cloud.worker.sessions
    return ResourceCounts(_resident(), sessions, threading.active_count(), tasks)


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
