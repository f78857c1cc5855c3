"""Verifiers for benchmarks and tests, in this process or another."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, redirect_stdout, suppress
from functools import partial
from typing import Any

from edge_cloud_spec.cloud.command import ServeSettings, make_worker
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.serving.access import raise_file_limit
from edge_cloud_spec.cloud.serving.server import Server, ServerSettings
from edge_cloud_spec.cloud.serving.service import DecodeService
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.loop_thread import TIMEOUT_S, LoopThread
from edge_cloud_spec.options import add_options, from_options


class InProcessServer(ExitStack):
    """A worker and its server in threads; ``address`` is where robots reach it, ``service`` its
    streams."""

    def __init__(self, worker: Worker, **settings: Any) -> None:
        """settings: the server's. Raises UserError."""
        super().__init__()
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
            self.loop = cloud.loop
            self.push(endings.pop_all())

    def _end_worker(self) -> None:
        self.worker.stop()
        self.worker.join(timeout=TIMEOUT_S)
        assert not self.worker.is_alive()


class ServerProcess(AbstractContextManager["ServerProcess"]):
    """A process that serves the result of ``make_worker`` (picklable) at ``address``."""

    def __init__(self, make_worker: Callable[[], Worker]) -> None:
        """Raises UserError if it does not start."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make_worker, theirs), daemon=True)
        self._process.start()
        theirs.close()
        answer = UserError("the verifier's process has ended; see its error above")
        with suppress(EOFError):
            answer = self._pipe.recv()
        if isinstance(answer, UserError):
            self.close()
            raise answer
        self.address: str = answer

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(15)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __exit__(self, *_: object) -> None:
        self.close()


class VerifierProcess(ServerProcess):
    """A process that runs ``edge-cloud-spec serve`` with these options, on the CPU in float32."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        """Raises UserError if it does not start."""
        as_the_other_side = ["--device", "cpu", "--dtype", "float32"]
        settings = parsed([*as_the_other_side, *options])
        super().__init__(partial(make_worker, settings))


def parsed(options: Sequence[str]) -> ServeSettings:
    """The settings of ``edge-cloud-spec serve`` with these options; raises UserError."""
    parser = argparse.ArgumentParser()
    add_options(parser, ServeSettings())
    return from_options(ServeSettings(), parser.parse_args(options))


def _serve(make_worker: Callable[[], Worker], pipe: Any) -> None:
    """Send the address, and serve until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench ends its processes
    logging.basicConfig(level=logging.ERROR)
    raise_file_limit()
    try:
        with redirect_stdout(None), InProcessServer(make_worker()) as server:
            pipe.send(server.address)
            with suppress(EOFError, OSError):
                pipe.recv()
    except UserError as error:
        pipe.send(error)
