"""Mutated frames against a real verifier: it must not crash, hang or grow, nor harm a session."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import threading
import warnings
from collections import Counter
from logging.handlers import BufferingHandler
from pathlib import Path
from random import Random

import grpc.aio
from fuzz import Broken
from fuzz.drafts import GIANTS, KINDS, Place, giant, opening_of
from fuzz.peers import Bystander, Hostile
from fuzz.target import SPEC, BoundedTarget, Target
from helpers.bounded_toy import SESSION_BYTES
from helpers.cloud.grpc_cloud import Cloud

from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.serving.logs import is_our_error
from edge_cloud_spec.decoding.digest import PrefixDigest

PEERS = 6  # hostile streams at a time
ROOM = 3  # sessions that there is memory for
BATCH = 10  # frames of each before the sessions are looked at
MEGABYTE = 2**20


Resources = dict[str, int]
"""What must not grow: resident bytes of this process, which holds the verifier, its sessions and
threads, and the tasks of the server's loop."""


def grown(now: Resources, before: Resources) -> list[str]:
    """What has grown too much since."""
    spare = {"memory": max(20 * 2**20, before["memory"] // 10), "threads": 2, "tasks": 2 * PEERS}
    bounds = {what: before[what] + more for what, more in spare.items()} | {"sessions": PEERS + 1}
    above = {what: most for what, most in bounds.items() if now[what] > most}
    return [f"{what}: {now[what]}, above {most}" for what, most in above.items()]


def run(frames: int, seed: int) -> Counter[str]:
    """So many mutated frames to a verifier; what came of them. Raises Broken."""
    counts, alarm = Counter[str](), BufferingHandler(10**6)
    alarm.setLevel(logging.ERROR)  # an error in the log is a failure: nobody sees it on a robot
    alarm.addFilter(is_our_error)
    limits = WorkerLimits(
        keep_s=0.0, idle_s=3600.0, batch_rows=100, kv_mb=ROOM * SESSION_BYTES / 2**20
    )
    worker = Worker(BoundedTarget(), SPEC, Target(1.0), limits)  # type: ignore[arg-type]
    logging.getLogger().addHandler(alarm)
    try:
        with warnings.catch_warnings(), Cloud(worker) as cloud:
            warnings.simplefilter("error", RuntimeWarning)  # NaN that numpy went on with
            asyncio.run(_fuzz(cloud, frames, seed, counts))
    finally:
        logging.getLogger().removeHandler(alarm)
    if alarm.buffer:
        raise Broken("\n".join(map(alarm.format, alarm.buffer[:10])))
    counts["evictions"] = worker.kv_memory.evictions
    return counts


async def _fuzz(cloud: Cloud, frames: int, seed: int, counts: Counter[str]) -> None:
    async with grpc.aio.insecure_channel(cloud.address) as channel:
        hostile = [
            Hostile(channel, Random(f"{seed} {n}"), counts, kind=n * len(KINDS) // PEERS)
            for n in range(PEERS)
        ]
        bystander = Bystander(channel, Random(seed), Counter())
        try:
            await _rounds(cloud, hostile, bystander, frames, counts)
        finally:
            for peer in (*hostile, bystander):
                await peer.close()
    remaining = asyncio.all_tasks() - {asyncio.current_task()}  # gRPC's own, of ended calls
    if remaining:  # else what is due comes to a loop that is closed
        await asyncio.wait(remaining, timeout=5.0)


async def _rounds(
    cloud: Cloud, hostile: list[Hostile], bystander: Bystander, frames: int, counts: Counter[str]
) -> None:
    number, before = 0, None
    while counts["frames"] < frames:
        await bystander.ready(number)
        if number == 0:  # before memory is counted
            nowhere = Place(opening_of(0, 0, b""), "", PrefixDigest(0, 0))
            await _batch(hostile[0], [giant(each, nowhere) for each in range(GIANTS)])
        await asyncio.gather(*(_batch(peer) for peer in hostile))
        counts["frames"] += PEERS * BATCH
        await bystander.check()
        number += 1
        if before is None and counts["frames"] >= frames / 5:
            before = _count_resources(cloud)
    for _ in range(5):
        problems = grown(_count_resources(cloud), before)
        if not problems:
            return
        await asyncio.sleep(0.3)  # what stays so when all is quiet
    raise Broken("; ".join(problems))


async def _batch(peer: Hostile, frames: list[bytes] | None = None) -> None:
    try:
        await peer.batch(BATCH, frames)
    except Exception as error:
        said = "\n  ".join(frame[:100].hex() for frame in peer.mutated)
        raise Broken(f"{error!r}, after the frames\n  {said}") from error


def _count_resources(cloud: Cloud) -> Resources:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)  # or what the last giant took counts, though it is free
    _, pages, *_ = Path("/proc/self/statm").read_text().split()
    return {
        "memory": int(pages) * os.sysconf("SC_PAGE_SIZE"),
        "sessions": len(cloud.worker.held),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks(cloud.loop)),
    }
