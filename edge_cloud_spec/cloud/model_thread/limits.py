"""What robots may use of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ...decoding.draft import MAX_DRAFTED, MAX_NODES
from ...options import bounded


@dataclass(frozen=True)
class WorkerLimits:
    """Limits on what robots may use.

    ``idle_s``: a session whose stream sent nothing for this long may be dropped if its place is
    needed. ``queue_bytes``: the most bytes queued per stream and direction; beyond it the robot is
    not read from, or its stream is ended if it does not read. A client is ``RobotStream.client``.
    ``lookup_nodes``: the most lookup nodes in a pass.
    """

    sessions: int = bounded(64, 1, inf, "robots at once")
    sessions_per_robot: int = bounded(16, 1, inf, "sessions of one robot's credential at once")
    bytes_per_robot: int = bounded(
        32 * 2**20,
        1,
        inf,
        "of its messages that wait, each way, and of its sessions' pictures",
    )
    passes_per_robot: int = bounded(8, 1, inf, "of its sessions in one pass")
    keep_s: float = bounded(
        60.0,
        0.0,
        inf,
        "seconds a lost session is kept, unless another needs its place",
        flag="--keep",
    )
    idle_s: float = 120.0
    draft_tokens: int = bounded(MAX_DRAFTED, 1, MAX_NODES, "longest draft, or largest tree")
    queue_bytes: int = 8 * 2**20
    batch: int = bounded(32, 1, inf, "sessions in one pass at most; 1: one at a time")
    batch_rows: int = bounded(256, 1, inf, "tokens in one pass at most, and in a part of a prompt")
    kv_mb: float = bounded(
        0.0,
        0.0,
        inf,
        "MB for keys and values; 0: 2048 on a CPU, the most of what is free on a GPU",
        flag="--kv-memory",
    )
    lookup_suffixes: int = bounded(
        65_536, 0, 2**24, "of answers to draft from, 44 bytes each, for each credential; 0: none"
    )
    lookup_nodes: int = 16
    history_mb: float = bounded(
        8.0, 0.0, inf, "MB of messages and pictures that are kept for each robot's credential"
    )
