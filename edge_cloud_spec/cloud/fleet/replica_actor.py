"""A replica as a Ray actor: Ray decides where it runs, and starts it again when it died."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ...wire.channel import is_loopback
from ..model_thread.worker import Worker
from ..serving.server import ServerSettings
from .placement import ReplicaLoad
from .replica import Replica

# Loads the models; the worker, and the share of its KV memory that is in use (for any thread).
MakeWorker = Callable[[], tuple[Worker, Callable[[], float]]]


RELOADING_NICENESS = 5  # of a thread that loads models again: a third of what one that serves gets


@dataclass(frozen=True)
class ReplicaReport:
    """Where a replica serves and what it holds; ``streams``: robots that are connected.

    ``unix_s``: its clock, by which leases end.
    """

    address: str
    pid: int
    load: ReplicaLoad
    streams: int
    unix_s: float


class ReplicaActor:
    """What Ray runs: ``Replica`` and nothing else."""

    def __init__(
        self, make: MakeWorker, settings: ServerSettings, name: str, key: bytes, *, far: bool
    ) -> None:
        """far: robots come from other machines, to this one's own address. Raises UserError."""
        import ray

        # Loading takes seconds of a core, while the others serve this replica's robots, too.
        again = ray.get_runtime_context().was_current_actor_reconstructed
        with ThreadPoolExecutor(1, "load", _let_others_go_first if again else None) as loading:
            worker, memory = loading.submit(make).result()
        host = ""
        if far:
            host = str(ray.util.get_node_ip_address())
            if is_loopback(f"{host}:0"):  # Ray is for this machine alone; its robots are not
                host = _own_address()
        self._replica = Replica(worker, settings, name, key, host, memory)

    def report(self) -> ReplicaReport:
        """Where it is and what it holds."""
        replica = self._replica
        return ReplicaReport(
            replica.address, os.getpid(), replica.load(), replica.streams, time.time()
        )

    def metrics(self) -> list[Any]:
        """What it counts."""
        return self._replica.metrics()

    def drain(self) -> None:
        """Send its robots elsewhere."""
        self._replica.drain()


def _own_address() -> str:
    """Where other machines reach this one; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect(("192.0.2.1", 9))  # reserved for documents: it goes the default way
        except OSError:
            return "127.0.0.1"
        return str(route.getsockname()[0])


def _let_others_go_first() -> None:
    """On Linux niceness is a thread's own: what serves later, in other threads, is not nice."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), RELOADING_NICENESS)
