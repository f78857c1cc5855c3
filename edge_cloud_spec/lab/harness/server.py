"""Verifiers for benchmarks and tests: in this process, in another, or as ``serve`` starts them."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ...cloud.model_thread.worker import Worker
from ...cloud.serving.server import Server, ServerSettings, serve
from ...cloud.serving.service import DecodeService
from ...errors import UserError


class VerifierProcess:
    """``edge-cloud-spec serve`` on the CPU with these options; ``address`` is where it listens.

    After ``kill`` or ``stop`` it can be started again at the same address. Raises UserError when
    the verifier does not come up.
    """

    def __init__(self, options: Sequence[str] = (), address: str = "127.0.0.1:0") -> None:
        self._options = tuple(options)
        self.address = address
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> VerifierProcess:
        """Start it and wait until robots can connect."""
        command = [sys.executable, "-m", "edge_cloud_spec.cli", "serve", "--address", self.address]
        command += ["--device", "cpu", "--dtype", "float32"]  # as the models of the other side are
        self._process = subprocess.Popen(
            [*command, *self._options], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := re.match(r"serving on (\S+)", line):
                self.address = match[1]
                return self
        raise UserError(f"the verifier ended with status {self._process.wait()} at its start")

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> int:
        """Ask it to end; returns its exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End it with SIGKILL, as a power cut would; returns its exit status."""
        return self._end(signal.SIGKILL)

    def _end(self, number: int) -> int:
        process = self._process
        if process is None:
            return 0
        self._process = None
        process.send_signal(number)
        try:
            status = process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return status

    def __enter__(self) -> VerifierProcess:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


START_S = 120.0


@dataclass(frozen=True)
class ServerHoldings:
    """What a server holds now: bytes of messages that wait each way and of caches, and counts."""

    streams: int = 0
    sessions: int = 0
    received_bytes: int = 0
    to_send_bytes: int = 0
    kv_bytes: int = 0


class ServerProcess:
    """Serves what ``make_worker`` makes there (so it must be picklable) at ``address``."""

    def __init__(self, make_worker: Callable[[], Worker], **settings: Any) -> None:
        """settings: of the server. Raises UserError where it does not come up."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (make_worker, {"address": "127.0.0.1:0", "grace_s": 0.2} | settings, theirs)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._pipe = ours
        try:
            if not ours.poll(START_S):
                raise EOFError
            self.address: str = ours.recv()
        except EOFError:
            self.close()
            raise UserError("the verifier's process did not come up; see its error above") from None

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process.pid is not None
        return self._process.pid

    def holdings(self) -> ServerHoldings:
        """What it holds now; for one thread at a time."""
        self._pipe.send(None)
        if not self._pipe.poll(START_S):
            raise UserError("the verifier's process does not answer")
        held: ServerHoldings = self._pipe.recv()
        return held

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.join(15)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(make_worker: Callable[[], Worker], settings: dict[str, Any], pipe: Any) -> None:
    logging.basicConfig(level=logging.ERROR)
    worker, server = make_worker(), ServerSettings(**settings)
    service = DecodeService(worker, server)

    def ready(address: str) -> None:
        pipe.send(address)
        threading.Thread(target=_answer, args=(pipe, worker, service), daemon=True).start()

    serve(worker, server, ready, service)


def _answer(pipe: Any, worker: Worker, service: DecodeService) -> None:
    """Say what is held, each time that somebody asks."""
    while True:
        try:
            pipe.recv()
        except (EOFError, OSError):  # nobody is left who asks
            return
        waiting = service.streams.waiting_bytes
        held = ServerHoldings(
            len(service.streams),
            worker.sessions,
            waiting["received"],
            waiting["to_send"],
            worker.kv_memory.in_use,
        )
        pipe.send(held)


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
