"""One replica: the worker and the server that stand alone, too, on a loop in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from ..model_thread.worker import Worker
from ..serving.access import raise_file_limit
from ..serving.metrics import VerifierCollector
from ..serving.server import Server, ServerSettings
from .placement import ReplicaLoad
from .replica_service import ReplicaService

T = TypeVar("T")

TIMEOUT_S = 20.0


class Replica:
    """A worker that serves on a port of its own. Its methods are for any thread but its own.

    ``address`` is where robots reach it: at ``host``, where it listens on all interfaces.
    """

    def __init__(
        self,
        worker: Worker,
        settings: ServerSettings,
        name: str,
        key: bytes,
        host: str = "",
        memory: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """settings: of the fleet; the port is another one. key: of the fleet. memory: the share of
        its KV memory that is in use, from any thread. Raises UserError.
        """
        raise_file_limit()
        listen = settings.address.rpartition(":")[0]
        settings = replace(settings, address=f"{listen}:0", metrics="")
        self._worker, self._memory = worker, memory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="replica", daemon=True)
        self._thread.start()
        worker.start()
        self._service = ReplicaService(worker, settings, name, key)
        self._server = Server(worker, settings, self._service)
        port = self._run(self._server.start()).rpartition(":")[2]
        self.address = f"{host or listen}:{port}"

    def load(self) -> ReplicaLoad:
        """What it holds now."""
        waiting = sum(stream.backlog[0] for stream in list(self._service.streams.streams))
        return ReplicaLoad(self._worker.sessions, waiting, self._memory())

    def metrics(self) -> list[Any]:
        """The families of ``/metrics``, which the front serves; needs prometheus-client."""
        return list(VerifierCollector(self._worker, self._service).collect())

    def drain(self) -> None:
        """Send its robots elsewhere, each between two rounds."""
        self._loop.call_soon_threadsafe(self._service.drain)

    @property
    def streams(self) -> int:
        """Robots that are here."""
        return len(self._service.streams.streams)

    def stop(self) -> None:
        """End it; robots that are here lose their streams."""
        self._run(self._server.stop())
        self._worker.stop()
        self._worker.join(timeout=TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=TIMEOUT_S)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=TIMEOUT_S)
