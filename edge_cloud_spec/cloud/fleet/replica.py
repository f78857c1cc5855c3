"""One replica: the worker and server of a single verifier, as a Ray actor.

Its streams need the router's lease. Draining, it redirects them. Ray decides where it runs, and
restarts it when it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
import grpc.aio

from ...loop_thread import LoopThread
from ...wire.channel import LEASE, is_loopback
from ...wire.codec import encode_server
from ...wire.frames import ServerFrame
from ...wire.messages import Code, Fault
from ..model_thread.worker import Worker
from ..serving.access import AccessSettings, raise_file_limit
from ..serving.client_streams import SendQueue
from ..serving.metrics import verifier_metrics
from ..serving.server import Server, ServerSettings
from ..serving.service import DecodeService
from .lease import lease_problem
from .registry import ReplicaLoad

DRAIN_S = 1.0  # after which streams without a verdict are redirected, too
GO_ELSEWHERE = encode_server(
    Fault(Code.MOVED, "this replica drains; update edge_cloud_spec on the robot to go on elsewhere")
)

REPLICA_TIMEOUT_S = 20.0
MakeWorker = Callable[[], Worker]  # loads the models
# Of a thread that reloads models: it gets a third of a serving thread's time.
RELOADING_NICENESS = 5


class ReplicaService(DecodeService):
    """The gRPC service of one named replica, which checks leases and can drain."""

    def __init__(
        self,
        worker: Worker,
        access: AccessSettings,
        name: str,
        key: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """key: signs the fleet's leases. clock: Unix time, s. Raises UserError."""
        super().__init__(worker, access)
        self.draining = False
        self._name, self._key, self._clock = name, key, clock

    def drain(self) -> None:
        """Accept no more robots, and redirect each connected robot after its next verdict.

        Call it on the serving loop.
        """
        self.draining = True
        for stream, queue in self.streams.streams.items():
            stream.send_frame = partial(_send_last, queue)
        asyncio.get_running_loop().call_later(DRAIN_S, self._end_rest)

    def _end_rest(self) -> None:
        for queue in list(self.streams.streams.values()):
            queue.put(GO_ELSEWHERE)
            queue.put(None)

    async def _takes(self, credential: str, context: grpc.aio.ServicerContext[Any, Any]) -> bool:
        metadata = dict(context.invocation_metadata() or ())
        shown, now = bytes(metadata.get(LEASE, b"")), self._clock()
        if problem := lease_problem(shown, self._key, credential, self._name, now):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
        if self.draining:
            await context.write(GO_ELSEWHERE.data)
        return not self.draining


def _send_last(queue: SendQueue, frame: ServerFrame | None) -> None:
    """Send a message; if it ends a round, redirect the robot."""
    queue.put(frame)
    if frame is not None and frame.head.kind == "verdict" and not frame.head.finish:
        queue.put(GO_ELSEWHERE)
        queue.put(None)


@dataclass(frozen=True)
class ReplicaReport:
    """A replica's address and load; ``streams``: connected robots.

    ``unix_s``: the replica's clock, on which leases expire.
    """

    address: str
    pid: int
    load: ReplicaLoad
    streams: int
    unix_s: float


class Replica:
    """A worker with a server on a port of its own. Call its methods from other threads than its
    own.

    ``address`` is where robots reach it; it names ``host`` if the server listens on all interfaces.
    """

    def __init__(
        self,
        worker: Worker,
        settings: ServerSettings,
        name: str,
        key: bytes,
        host: str = "",
    ) -> None:
        """settings: the fleet's, except the port. key: the fleet's. Raises UserError."""
        raise_file_limit()
        listen = settings.address.rpartition(":")[0]
        settings = replace(settings, address=f"{listen}:0", metrics="")
        self._worker = worker
        self._thread = LoopThread("replica", timeout_s=REPLICA_TIMEOUT_S)
        worker.start()
        self._service = ReplicaService(worker, settings, name, key)
        self._server = Server(worker, settings, self._service)
        port = self._thread.run(self._server.start()).rpartition(":")[2]
        self.address = f"{host or listen}:{port}"

    def report(self) -> ReplicaReport:
        """Its address and load now."""
        streams = list(self._service.streams.streams)
        waiting = sum(stream.backlog[0] for stream in streams)
        load = ReplicaLoad(len(self._worker.held), waiting, self._worker.kv_memory.usage)
        return ReplicaReport(self.address, os.getpid(), load, len(streams), time.time())

    def metrics(self) -> list[Any]:
        """The metric families of ``/metrics``, which the router serves; needs prometheus-client."""
        return list(verifier_metrics(self._worker, self._service))

    def drain(self) -> None:
        """Redirect the robots to other replicas, each between two rounds."""
        self._thread.loop.call_soon_threadsafe(self._service.drain)

    def stop(self) -> None:
        """End the replica; its robots lose their streams."""
        self._thread.run(self._server.stop())
        self._worker.stop()
        self._worker.join(timeout=REPLICA_TIMEOUT_S)
        self._thread.close()


class ReplicaActor(Replica):
    """The Ray actor: a replica that loads its own models."""

    def __init__(
        self, make: MakeWorker, settings: ServerSettings, name: str, key: bytes, *, far: bool
    ) -> None:
        """far: robots connect from other machines, to this machine's address. Raises UserError."""
        import ray

        # Loading takes seconds of CPU time, while other replicas serve robots.
        again = ray.get_runtime_context().was_current_actor_reconstructed
        with ThreadPoolExecutor(1, "load", _let_others_go_first if again else None) as loading:
            worker = loading.submit(make).result()
        host = ""
        if far:
            host = str(ray.util.get_node_ip_address())
            if is_loopback(f"{host}:0"):  # Ray is local, but the robots are not
                host = _own_address()
        super().__init__(worker, settings, name, key, host)


def _own_address() -> str:
    """The address at which other machines reach this one; found without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            # An address reserved for documentation; routed by default, nothing is sent.
            route.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(route.getsockname()[0])


def _let_others_go_first() -> None:
    """Raise this thread's niceness; on Linux other threads are unaffected."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), RELOADING_NICENESS)
