"""Verifiers for benchmarks and tests: in this process, or in another."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...cloud.command import add_serve_arguments, make_worker
from ...cloud.model_thread.worker import Worker
from ...cloud.serving.access import raise_file_limit
from ...cloud.serving.server import Server, ServerSettings
from ...cloud.serving.service import DecodeService
from ...errors import UserError
from .loop_thread import TIMEOUT_S, LoopThread


@dataclass(frozen=True)
class ServerHoldings:
    """What a server holds now: bytes of messages that wait each way and of caches, and counts."""

    streams: int = 0
    sessions: int = 0
    received_bytes: int = 0
    to_send_bytes: int = 0
    kv_bytes: int = 0


class InProcessServer:
    """A worker and its server; ``address`` is where robots reach it, ``service`` its streams."""

    def __init__(self, worker: Worker, **settings: Any) -> None:
        """settings: the server's. Raises UserError."""
        self.worker = worker
        with ExitStack() as endings:
            cloud = LoopThread("cloud")
            endings.callback(cloud.close)
            worker.start()
            endings.callback(self._end_worker)
            chosen = ServerSettings(**{"address": "127.0.0.1:0", "grace_s": 0.1, **settings})
            self.service = DecodeService(worker, chosen)
            self._server = Server(worker, chosen, self.service)
            self.address: str = cloud.run(self._server.start())
            endings.callback(lambda: cloud.run(self._server.stop()))
            self.loop, self._endings = cloud.loop, endings.pop_all()

    @property
    def holdings(self) -> ServerHoldings:
        """The memory and sessions that the verifier holds now."""
        waiting, worker = self.service.streams.waiting_bytes, self.worker
        return ServerHoldings(
            len(self.service.streams),
            worker.sessions,
            waiting["received"],
            waiting["to_send"],
            worker.kv_memory.in_use,
        )

    def stop(self) -> None:
        """End the server, the worker and both threads."""
        self._endings.close()

    def _end_worker(self) -> None:
        self.worker.stop()
        self.worker.join(timeout=TIMEOUT_S)
        assert not self.worker.is_alive()

    def __enter__(self) -> InProcessServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ServerProcess:
    """Serves what ``make_worker`` makes there (so it must be picklable) at ``address``."""

    def __init__(self, make_worker: Callable[[], Worker]) -> None:
        """Raises UserError where it does not come up."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make_worker, theirs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.address: str = self._receive(None)
        except UserError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process.pid is not None
        return self._process.pid

    def holdings(self) -> ServerHoldings:
        """The memory and sessions that the verifier holds now; for one thread at a time."""
        self._pipe.send(None)
        held: ServerHoldings = self._receive(TIMEOUT_S)
        return held

    def _receive(self, seconds: float | None) -> Any:
        with suppress(EOFError):
            if self._pipe.poll(seconds):
                answer = self._pipe.recv()
                if isinstance(answer, UserError):
                    raise answer
                return answer
        raise UserError("the verifier's process does not answer; see its error above")

    def close(self) -> None:
        """End it."""
        self._pipe.close()
        self._process.join(15)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class VerifierProcess(ServerProcess):
    """Serves what ``edge-cloud-spec serve`` does with these options, on the CPU in float32."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        """Raises UserError where it does not come up."""
        parser = argparse.ArgumentParser()
        add_serve_arguments(parser)
        as_the_other_side = ["--device", "cpu", "--dtype", "float32"]
        super().__init__(partial(make_worker, parser.parse_args([*as_the_other_side, *options])))


def _serve(make_worker: Callable[[], Worker], pipe: Any) -> None:
    """Say the address, then what is held each time that somebody asks, until nobody is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench ends its processes
    logging.basicConfig(level=logging.ERROR)
    raise_file_limit()
    try:
        with redirect_stdout(None), InProcessServer(make_worker()) as server:
            pipe.send(server.address)
            with suppress(EOFError, OSError):
                while True:
                    pipe.recv()
                    pipe.send(server.holdings)
    except UserError as error:
        pipe.send(error)
