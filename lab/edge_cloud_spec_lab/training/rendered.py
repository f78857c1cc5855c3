"""Files of training examples, rendered by processes that import what renders them and no more."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

Write = Callable[[Path, int, int, str], object]
"""Renders into a file, by a seed, so many examples, with a renderer."""


def _write(job: tuple[Write, Path, int, int, str]) -> Path:
    write, path, seed, count, renderer = job
    part = path.with_suffix(".part.npz")
    write(part, seed, count, renderer)
    part.replace(path)
    return path


def make_files(
    write: Write,
    folder: Path,
    kind: str,
    seed: int,
    count: int,
    per_file: int,
    renderer: str,
    processes: int,
) -> list[Path]:
    """Files of ``count`` examples of a kind, rendered into ``folder`` unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = []
    for start in range(0, count, per_file):
        number, size = seed * 1000 + start // per_file, min(per_file, count - start)
        path = folder / f"{kind}_{renderer}_{number}_{size}.npz"
        jobs.append((write, path, number, size, renderer))
    todo = [job for job in jobs if not job[1].exists()]
    if todo:
        os.environ.setdefault("LP_NUM_THREADS", "1")  # else Mesa takes every core in each process
        print(f"{kind}: 0 of {len(todo)} files", flush=True)
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            for done, path in enumerate(pool.imap_unordered(_write, todo), 1):
                print(f"{kind}: {done} of {len(todo)} files, {path.name}", flush=True)
    return [job[1] for job in jobs]
