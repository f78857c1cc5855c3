"""A verifier in a process of its own, around a worker that the caller describes."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from ....cloud.model_thread.worker import Worker
from ....cloud.serving.server import ServerSettings, serve
from ....cloud.serving.service import DecodeService
from ....errors import UserError

START_S = 120.0


@dataclass(frozen=True)
class ServerHoldings:
    """What a server holds now: bytes of messages that wait each way and of caches, and counts."""

    streams: int = 0
    sessions: int = 0
    received_bytes: int = 0
    to_send_bytes: int = 0
    kv_bytes: int = 0

    def most(self, other: ServerHoldings) -> ServerHoldings:
        """The larger of each."""
        names = [field.name for field in fields(self)]
        return ServerHoldings(*(max(getattr(self, n), getattr(other, n)) for n in names))


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
