"""A verifier's server in this process, on an asyncio loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from ...cloud.model_thread.worker import Worker
from ...cloud.serving.server import Server, ServerSettings
from ...cloud.serving.service import DecodeService

TIMEOUT_S = 100.0


class InProcessServer:
    """A worker and its server; ``address`` is where robots reach it, ``service`` its streams."""

    def __init__(self, worker: Worker, **settings: Any) -> None:
        self.worker = worker
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="cloud", daemon=True)
        self._thread.start()
        worker.start()
        try:
            chosen = ServerSettings(**{"address": "127.0.0.1:0", "grace_s": 0.1, **settings})
            self.service = DecodeService(worker, chosen)
            self._server: Server | None = Server(worker, chosen, self.service)
            self.address = self._run(self._server.start())
        except BaseException:
            self._server = None
            self.stop()
            raise

    def stop(self) -> None:
        """End the server, the worker and both threads."""
        if self._server is not None:
            self._run(self._server.stop())
        self.worker.stop()
        self.worker.join(timeout=TIMEOUT_S)
        self._run(_end_tasks())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=TIMEOUT_S)
        self.loop.close()
        assert not self.worker.is_alive()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=TIMEOUT_S)

    def __enter__(self) -> InProcessServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


async def _end_tasks() -> None:
    """Cancel the remaining tasks, as asyncio.run does."""
    remaining = asyncio.all_tasks() - {asyncio.current_task()}
    for task in remaining:
        task.cancel()
    await asyncio.gather(*remaining, return_exceptions=True)
